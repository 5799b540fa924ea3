"""A whole encoder in one pass over the frames: csrc/ on a CPU, for frames that its first kernel tiles. No gradients."""

import torch
from torch import Tensor, nn

from psdrl.kernels.extension import missing

NATIVE = missing() is None

if NATIVE:

    @torch.library.register_fake("psdrl::encode_tiles")
    def _encode_tiles(
        frames: Tensor, mean: Tensor, contrast: Tensor, weights: list[Tensor], biases: list[Tensor], strides: list[int]
    ) -> Tensor:
        side = frames.shape[2]
        for weight, stride in zip(weights, strides, strict=True):
            side = (side - weight.shape[2]) // stride + 1
        return frames.new_empty(len(frames), weights[-1].shape[0] * side * side, dtype=torch.float32)


def encodes(frames: Tensor, weight: Tensor) -> bool:
    """Whether `encode_tiles` serves these frames for an encoder whose first layer has this weight."""
    return (
        NATIVE
        and frames.is_cpu
        and frames.dtype == torch.uint8
        and frames.shape[1] == 1
        and weight.dtype == torch.float32
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
    )


def encode_tiles(frames: Tensor, mean: Tensor, contrast: Tensor, convolutions: list[nn.Conv2d]) -> Tensor:
    """(n, c * h * w) of frames (n, 1, s, s) of uint8: (x / 255 - mean) contrast, then the convolutions, with ReLU after
    each.

    mean (1, s, s), contrast (); the first convolution's stride is its kernel p."""
    weights = [layer.weight for layer in convolutions]
    biases = [layer.bias for layer in convolutions]
    strides = [layer.stride[0] for layer in convolutions]
    return torch.ops.psdrl.encode_tiles(frames, mean, contrast, weights, biases, strides)
