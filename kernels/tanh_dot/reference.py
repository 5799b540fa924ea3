"""The oracle."""

import torch
from torch import Tensor
from torch.nn import functional as F


def tanh_dot(x: Tensor, weight: Tensor, bias: Tensor, out_weight: Tensor, out_bias: Tensor) -> Tensor:
    """y (r,) = tanh(x W^T + b) v + c for x (r, K), weight (U, K), bias (U,), out_weight v (1, U), out_bias c (1,)."""
    return F.linear(torch.tanh(F.linear(x, weight, bias)), out_weight, out_bias).squeeze(1)
