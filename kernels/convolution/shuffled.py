"""A first convolution and a last transposed one on blocks of s x s pixels as channels, s their stride: the same
function of the same weights, with 4 channels at both ends of the paper's autoencoder instead of 1.

Tensor cores multiply 8 channels of bfloat16 (4 of tf32) at once: a picture's one channel leaves seven eighths of them
idle in 16 taps forth and 25 back; on blocks 4 of 8 are busy in 4 and 9 taps. Blocks are those of `gemm.tiles`.
"""

from torch import Tensor, nn
from torch.nn import functional as F


def shuffles(first: nn.Conv2d, last: nn.ConvTranspose2d, side: int) -> bool:
    """Whether blocks can take the place of pixels at both ends, for pictures of side x side."""
    stride = first.stride[0]
    whole = last.kernel_size[0] + last.output_padding[0] == -(-last.kernel_size[0] // stride) * stride
    return (
        stride > 1 and last.stride[0] == stride and side % stride == 0 and first.kernel_size[0] % stride == 0 and whole
    )


def stem(blocks: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """The convolution of weight (o, c, k, k) as one of stride 1: blocks (n, h, w, s * s * c) -> (n, o, h', w')."""
    outputs, channels, kernel, _ = weight.shape
    taps = kernel // stride
    by_block = weight.view(outputs, channels, taps, stride, taps, stride).permute(0, 3, 5, 1, 2, 4)
    return F.conv2d(blocks.permute(0, 3, 1, 2), by_block.reshape(outputs, -1, taps, taps), bias)


def head(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """The transposed convolution of weight (c, o, k, k): x (n, c, h, w) -> blocks (n, h', w', s * s * o).

    Its kernel is extended by zeros to whole blocks; pixel s i + d of the result is the sum of w[s b + d] x[i - b]."""
    channels, outputs, kernel, _ = weight.shape
    taps = -(-kernel // stride)
    whole = F.pad(weight, (0, taps * stride - kernel) * 2)
    by_block = whole.view(channels, outputs, taps, stride, taps, stride).permute(3, 5, 1, 0, 2, 4)
    flipped = by_block.reshape(-1, channels, taps, taps).flip(2, 3)
    return F.conv2d(x, flipped, bias.repeat(stride**2), padding=taps - 1).permute(0, 2, 3, 1)
