"""Last hidden layer of the termination and value networks with their one output."""

from psdrl.kernels.tanh_dot.aten import tanh_dot

__all__ = ["tanh_dot"]
