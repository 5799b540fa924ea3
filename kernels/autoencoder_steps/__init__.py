"""Gradient steps of a convolutional autoencoder: pixels, forward pass, gradients and Adam of n batches in one call, on
a CPU, for frames that its first kernel tiles."""

from psdrl.kernels.autoencoder_steps.native import autoencoder_steps_, possible, serves
from psdrl.kernels.autoencoder_steps.reference import Pictures

__all__ = ["Pictures", "autoencoder_steps_", "possible", "serves"]
