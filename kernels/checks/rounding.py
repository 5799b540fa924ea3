"""What a precision's own rounding does to an operation: the measure of every check.

The oracle is evaluated on the CPU in float64, with the operands of its products rounded as the mode rounds them, every
stored result rounded to the mode's storage, and the error of adding up in float32. No library and no device has a say.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

Precision = Literal["fp32", "tf32", "bf16"]
Rounding = Callable[[Tensor], Tensor]
PRODUCTS = {
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::convolution",
    "aten::convolution_backward", "aten::mkldnn_convolution",
}  # fmt: skip
UNIT_ROUNDOFF = 2.0**-24  # of float32


def exactly(x: Tensor) -> Tensor:
    """Operands as they are: IEEE float32."""
    return x


def to_tf32(x: Tensor) -> Tensor:
    """Rounded to 10 bits of mantissa, half away from zero, as cuBLAS and cuDNN do (cvt.rna); x's dtype."""
    return ((x.float().contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32).to(x.dtype)


def cut_to_tf32(x: Tensor) -> Tensor:
    """Cut off after 10 bits: Triton hands float32 to the tensor cores as it is, and they ignore the other 13 bits. The
    error of a product is 2.3 to 2.9 times that of rounding, since all errors point towards zero."""
    return (x.float().contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32).to(x.dtype)


def to_bf16(x: Tensor) -> Tensor:
    """Rounded to 7 bits of mantissa, half to even; x's dtype."""
    return x.to(torch.bfloat16).to(x.dtype)


ROUNDINGS: dict[Precision, tuple[Rounding, ...]] = {
    "fp32": (exactly,),
    "tf32": (to_tf32, cut_to_tf32),
    "bf16": (to_bf16,),
}


class Emulated(TorchDispatchMode):
    """Operations of `dtype` tensors as a precision computes them.

    operand: how the factors of products and convolutions are rounded; biases, being one-dimensional, are not.
    stored: products, or with `everything` all new results, are rounded to this dtype; None: they are not.
    summed: products err by what K additions in float32 do. In sequence each errs by u / sqrt(3) (root mean square) of a
    partial sum that grows with the square root: u sqrt(K / 6) of the result, u = 2^-24. Other orders err less. Tensor
    cores cut off where they should round, once per 8 or 16 products: up to u K / 8, 1.7e-5 at K = 2292, a fortieth of
    tf32's own error.
    """

    def __init__(
        self,
        operand: Rounding,
        dtype: torch.dtype,
        stored: torch.dtype | None = None,
        everything: bool = False,
        summed: bool = False,
    ) -> None:
        super().__init__()
        self.operand, self.dtype, self.stored, self.everything, self.summed = operand, dtype, stored, everything, summed
        self.generator = torch.Generator().manual_seed(0)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        product = func._schema.name in PRODUCTS
        if product:
            args = pytree.tree_map(lambda x: self.operand(x) if self._concerns(x) and x.ndim > 1 else x, args)
        result = func(*args, **(kwargs or {}))
        if self.summed and product:
            result = result + self._error_of_sums(args, result)
        view_or_in_place = any(returned.alias_info is not None for returned in func._schema.returns)
        if self.stored is None or view_or_in_place or not (product or self.everything):
            return result
        return pytree.tree_map(lambda x: x.to(self.stored).to(x.dtype) if self._concerns(x) else x, result)

    def _concerns(self, x: Any) -> bool:
        return isinstance(x, Tensor) and x.dtype == self.dtype

    def _error_of_sums(self, args: tuple, result: Tensor) -> Tensor:
        inner = next(x for x in reversed(args) if isinstance(x, Tensor)).shape[-2]  # (m, K) (K, n)
        size = UNIT_ROUNDOFF * (inner / 6) ** 0.5 * rms(result)
        return size * torch.randn(result.shape, generator=self.generator, dtype=result.dtype)


def rms(x: Tensor) -> float:
    """The root of the mean square; NaN if anything is."""
    return float(x.double().square().mean().sqrt())


@contextmanager
def switches(device: torch.device, precision: Precision) -> Iterator[None]:
    """PyTorch's global switches for float32 products on this device as this precision wants them, then as before."""
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def casting(device: torch.device, precision: Precision) -> AbstractContextManager:
    """What `psdrl.execution` wraps around the networks: torch.autocast in bf16, nothing else."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
