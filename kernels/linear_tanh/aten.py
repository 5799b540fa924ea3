"""ATen's GEMM with in-place epilogues; for a handful of rows on the CPU the small-row kernel of csrc/. No gradients."""

import torch
from torch import Tensor
from torch.nn import functional as F

from psdrl.kernels.extension import missing

SMALL_ROWS = missing() is None  # asked once: acting calls `linear` 20 times per step
MOST_ROWS = 32  # 6 rows: 4.6x faster than ATen's GEMM, 32 rows: 2.9x (bench/RESULTS.md)

if SMALL_ROWS:

    @torch.library.register_fake("psdrl::linear_rows")
    def _linear_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return x.new_empty(x.shape[0], weight.shape[0])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y (r, n) = x (r, k) W^T + b for weight (n, k) and bias (n,)."""
    if SMALL_ROWS and len(x) <= MOST_ROWS and x.is_cpu and x.dtype == torch.float32:
        return torch.ops.psdrl.linear_rows(x, weight, bias)
    return F.linear(x, weight, bias)


def linear_tanh(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, state: Tensor | None = None, columns: Tensor | None = None
) -> Tensor:
    """y (r, U); see `reference`."""
    y = linear(x, weight, bias)
    if state is not None:
        y.view(len(state), len(y) // max(1, len(state)), y.shape[1]).add_(state[:, None])
    if columns is not None:
        y.view(-1, *columns.shape).add_(columns)
    return y.tanh_()
