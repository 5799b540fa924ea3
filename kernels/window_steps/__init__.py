"""Gradient steps of a world model: GRU, feature network and output layer over windows of truncated backpropagation,
with gradients and Adam, for a whole batch of sequences in one call, on a CPU."""

from psdrl.kernels.window_steps.native import possible, serves, window_steps_
from psdrl.kernels.window_steps.reference import WindowNet

__all__ = ["WindowNet", "possible", "serves", "window_steps_"]
