"""ATen's GEMM, tanh in place, a matrix-vector product; whole networks for a handful of rows by csrc/. No gradients."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from psdrl.kernels import choice
from psdrl.kernels.linear_tanh.aten import MOST_ROWS, NATIVE, chosen_here, linear, linear_tanh


def tanh_dot(x: Tensor, weight: Tensor, bias: Tensor, out_weight: Tensor, out_bias: Tensor) -> Tensor:
    """y (r,); see `reference`."""
    return linear(linear_tanh(x, weight, bias), out_weight, out_bias).squeeze(1)


def in_one_call(rows: int, device: torch.device) -> bool:
    """Whether csrc has a kernel for networks on so many rows."""
    return NATIVE and rows <= MOST_ROWS and device.type == "cpu"


def tanh_net(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], layers: Callable[[], Tensor]) -> Tensor:
    """The network in one call of csrc, where that is faster than `layers()`: at the cpu preset's three layers of 128 or
    256 units the calls cost as much as the arithmetic."""
    if not in_one_call(len(x), x.device) or not chosen_here(x) or torch.compiler.is_compiling():
        return layers()

    def one_call() -> Tensor:
        return torch.ops.psdrl.tanh_net_rows(x, weights, biases).squeeze(1)

    candidates = {"csrc": one_call, "aten": layers}
    serving = choice.choose(f"network of {len(weights)}", x, weights[0], lambda: candidates)
    return one_call() if serving == "csrc" else layers()
