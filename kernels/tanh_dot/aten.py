"""ATen's GEMM, tanh in place, a matrix-vector product. No gradients."""

from torch import Tensor

from psdrl.kernels.linear_tanh.aten import linear, linear_tanh


def tanh_dot(x: Tensor, weight: Tensor, bias: Tensor, out_weight: Tensor, out_bias: Tensor) -> Tensor:
    """y (r,); see `reference`."""
    return linear(linear_tanh(x, weight, bias), out_weight, out_bias).squeeze(1)
