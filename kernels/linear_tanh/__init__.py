"""Hidden layer: linear, state term, action column, bias, tanh."""

from psdrl.kernels.linear_tanh.aten import linear, linear_tanh

__all__ = ["linear", "linear_tanh"]
