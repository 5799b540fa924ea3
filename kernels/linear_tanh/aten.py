"""ATen's GEMM with in-place epilogues. On the CPU oneDNN's GEMM, with bias and tanh in its last pass, and csrc/ with a
kernel for a handful of rows and an epilogue with more terms. No gradients."""

import torch
from torch import Tensor
from torch.nn import functional as F

from psdrl.kernels.extension import missing

NATIVE = missing() is None  # asked once: acting calls `linear` 20 times per step
MOST_ROWS = 10  # 6 rows: about twice as fast as ATen's GEMM; from 12 on ATen wins (bench/RESULTS.md)
# What torch.compile's CPU code calls, too. Where measured (an AMD EPYC, 2 threads, float32) it beats F.linear, which is
# MKL: with bias and tanh 5.6 to 7.0 ms for 7680 rows of 256 x 256, 77 to 113 ms for 1500 rows of 2292 x 2292; 64 rows
# of 256 x 256 are even, 32 rows slower. In gradients, where an operand is transposed: 8.0 to 10.8 ms for 125 rows of
# 2292 x 2292, but 211 to 176 us for 256 rows of 256 x 256.
ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
LEAST, LEAST_TRANSPOSED = 4_000_000, 100_000_000  # multiply-adds from which it serves

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


def onednn(x: Tensor, weight: Tensor, least: int = LEAST) -> bool:
    """Whether oneDNN serves for x (r, k) and weight (n, k)."""
    large = x.shape[0] * weight.numel() >= least
    return large and ONEDNN and x.is_cpu and x.dtype == weight.dtype == torch.float32


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y (r, n) = x (r, k) W^T + b for weight (n, k) and bias (n,)."""
    if few_rows(x):
        return torch.ops.psdrl.linear_rows(x, weight, bias)
    if onednn(x, weight):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


def product(a: Tensor, b: Tensor) -> Tensor:
    """a (m, k) b (k, n), for gradients."""
    if onednn(a, b.T, LEAST_TRANSPOSED) and not torch.is_autocast_enabled("cpu"):
        return torch.ops.mkldnn._linear_pointwise(a, b.T, None, "none", [], "")
    return a @ b


def linear_tanh(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, state: Tensor | None = None, columns: Tensor | None = None
) -> Tensor:
    """y (r, U); see `reference`."""
    if state is None and columns is None and not few_rows(x) and onednn(x, weight):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "tanh", [], "")
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
