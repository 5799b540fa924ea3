"""ATen's GEMM with in-place epilogues. On the CPU csrc/ has a kernel for a handful of rows and a fused epilogue.
No gradients."""

import torch
from torch import Tensor
from torch.nn import functional as F

from psdrl.kernels.extension import missing

NATIVE = missing() is None  # asked once: acting calls `linear` 20 times per step
MOST_ROWS = 10  # 6 rows: about twice as fast as ATen's GEMM; from 12 on ATen wins (bench/RESULTS.md)

if NATIVE:

    @torch.library.register_fake("psdrl::linear_rows")
    def _linear_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return x.new_empty(x.shape[0], weight.shape[0])

    @torch.library.register_fake("psdrl::tanh_net_rows")
    def _tanh_net_rows(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
        return x.new_empty(x.shape[0], weights[-1].shape[0])

    @torch.library.register_fake("psdrl::bias_tanh_")
    def _bias_tanh_(y: Tensor, *_: Tensor | None) -> None:
        return None


def few_rows(x: Tensor) -> bool:
    """Whether csrc's kernels for a handful of rows serve."""
    return NATIVE and len(x) <= MOST_ROWS and x.is_cpu and x.dtype == torch.float32


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y (r, n) = x (r, k) W^T + b for weight (n, k) and bias (n,)."""
    if few_rows(x):
        return torch.ops.psdrl.linear_rows(x, weight, bias)
    return F.linear(x, weight, bias)


def linear_tanh(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, state: Tensor | None = None, columns: Tensor | None = None
) -> Tensor:
    """y (r, U); see `reference`."""
    if NATIVE and x.is_cpu and x.dtype == torch.float32:
        y = linear(x, weight)
        torch.ops.psdrl.bias_tanh_(y, bias, state, columns)
        return y
    y = linear(x, weight, bias)
    if state is not None:
        y.view(len(state), len(y) // max(1, len(state)), y.shape[1]).add_(state[:, None])
    if columns is not None:
        y.view(-1, *columns.shape).add_(columns)
    return y.tanh_()
