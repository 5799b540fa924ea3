"""Convolutions as matrix products, for the shapes at which oneDNN is slow on a CPU (see `gemm.py`)."""

from psdrl.kernels.convolution.gemm import (
    FEW_PIXELS,
    GemmConv2d,
    GemmConvTranspose2d,
    convolved,
    from_tiles,
    tiles,
    to_tiles,
)

__all__ = ["FEW_PIXELS", "GemmConv2d", "GemmConvTranspose2d", "convolved", "from_tiles", "tiles", "to_tiles"]
