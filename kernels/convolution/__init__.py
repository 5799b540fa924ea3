"""Convolutions as matrix products, for the shapes at which oneDNN is slow on a CPU (see `gemm.py`); whole encoders."""

from psdrl.kernels.convolution.gemm import (
    FEW_PIXELS,
    GemmConv2d,
    GemmConvTranspose2d,
    from_tiles,
    tiles,
    to_tiles,
)
from psdrl.kernels.convolution.native import encode_tiles, encodes
from psdrl.kernels.convolution.shuffled import head, shuffles, stem

__all__ = [
    "FEW_PIXELS",
    "GemmConv2d",
    "GemmConvTranspose2d",
    "encode_tiles",
    "encodes",
    "from_tiles",
    "head",
    "shuffles",
    "stem",
    "tiles",
    "to_tiles",
]
