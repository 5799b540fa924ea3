"""ATen's GEMM with in-place epilogues; for a handful of rows on the CPU the small-row kernel of csrc/. No gradients."""

import torch
from torch import Tensor
from torch.nn import functional as F

from psdrl.kernels.extension import missing

MOST_ROWS = 32  # 6 rows: 4.6x faster than ATen's GEMM, 32 rows: 2.9x (bench/RESULTS.md)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y (r, n) = x (r, k) W^T + b for weight (n, k) and bias (n,)."""
    if len(x) <= MOST_ROWS and x.is_cpu and x.dtype == torch.float32 and missing() is None:
        return torch.ops.psdrl.linear_rows(x, weight, bias)
    return F.linear(x, weight, bias)


def linear_tanh(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, state: Tensor | None = None, columns: Tensor | None = None
) -> Tensor:
    """y (r, U); see `reference`."""
    y = linear(x, weight, bias)
    if state is not None:
        y.view(len(state), -1, y.shape[1]).add_(state[:, None])
    if columns is not None:
        y.view(-1, *columns.shape).add_(columns)
    return y.tanh_()
