"""Gradient steps of value networks: forward pass, gradients and Adam of n batches in one call, on a CPU."""

from psdrl.kernels.tanh_net_steps.native import possible, serves, tanh_net_steps_

__all__ = ["possible", "serves", "tanh_net_steps_"]
