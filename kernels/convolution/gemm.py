"""Convolution and transposed convolution by patches and one matrix product, channels last, with their gradients.

Both are the same three products seen from two sides: patches of the large image (im2col) against pixels of the small
one. The oracle is ATen's own convolution, which also serves on a GPU. On a CPU oneDNN is slow at two shapes of the
paper's autoencoder. Forward and backward of 250 frames, 2 threads, oneDNN and this: 192 to 384 channels, 6x6 to 2x2,
107 and 50 ms; its transpose 115 and 65 ms; a transposed convolution to one channel 98 and 84 ms (4x4 at stride 4, 40
frames: 3.7 and 1.3 ms). At the other layers oneDNN is faster.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

FEW_PIXELS = 3  # up to this side of the smaller image the product is faster than oneDNN


def patches_of(image: Tensor, kernel: int, stride: int) -> Tensor:
    """im2col: image (n, H, W, c) -> patches (n, h, w, kernel * kernel * c), each in order (y, x, channel)."""
    patches = image.unfold(1, kernel, stride).unfold(2, kernel, stride)  # (n, h, w, c, kernel, kernel)
    return patches.permute(0, 1, 2, 4, 5, 3).flatten(3)


def image_of(patches: Tensor, kernel: int, stride: int, height: int, width: int) -> Tensor:
    """col2im, the transpose of `patches_of`: overlapping patches are added; what none covers is zero."""
    count, rows, columns, inner = patches.shape
    channels = inner // kernel**2
    if kernel == stride and (rows * stride, columns * stride) == (height, width):
        blocks = patches.view(count, rows, columns, kernel, kernel, channels)
        return blocks.transpose(2, 3).reshape(count, height, width, channels)
    image = patches.new_zeros(count, height, width, channels)
    parts = patches.view(count, rows, columns, kernel, kernel, channels)
    for y in range(kernel):
        for x in range(kernel):
            ends = y + (rows - 1) * stride + 1, x + (columns - 1) * stride + 1
            image[:, y : ends[0] : stride, x : ends[1] : stride] += parts[:, :, :, y, x]
    return image


def tiles(images: Tensor, size: int) -> Tensor:
    """Images (n, c, H, W) as patches (n, h, w, size * size * c) that tile them, each in order (y, x, channel)."""
    count, channels, height, width = images.shape
    blocks = images.reshape(count, channels, height // size, size, width // size, size)
    return blocks.permute(0, 2, 4, 3, 5, 1).reshape(count, height // size, width // size, -1)


def from_tiles(patches: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A convolution whose stride is its kernel: patches (n, h, w, k * k * c), weight (o, c, k, k) -> (n, o, h, w)."""
    return F.linear(patches, _matrix(weight), bias).permute(0, 3, 1, 2)


def to_tiles(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A transposed one: x (n, c, h, w), weight (c, o, k, k), bias (o,) -> patches (n, h, w, k * k * o)."""
    return F.linear(x.permute(0, 2, 3, 1), _matrix(weight).T, bias.repeat(weight.shape[2] ** 2))


class _Convolution(torch.autograd.Function):
    """x (n, H, W, c), weight (o, c, k, k), bias (o,) -> pixels (n * h * w, o)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
        patches = patches_of(x, weight.shape[2], stride)
        ctx.save_for_backward(patches, weight)
        ctx.shape, ctx.stride = x.shape, stride
        return torch.addmm(bias, patches.flatten(0, 2), _matrix(weight).T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        patches, weight = ctx.saved_tensors
        (_, height, width, channels), (outputs, _, kernel, _) = ctx.shape, weight.shape
        weight_grad = (grad.T @ patches.flatten(0, 2)).view(outputs, kernel, kernel, channels).permute(0, 3, 1, 2)
        x_grad = None
        if ctx.needs_input_grad[0]:
            x_grad = image_of((grad @ _matrix(weight)).view_as(patches), kernel, ctx.stride, height, width)
        return x_grad, weight_grad, grad.sum(0), None


class _Transposed(torch.autograd.Function):
    """x (n, h, w, c), weight (c, o, k, k), bias (o,) -> image (n, H, W, o)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
        count, rows, columns, channels = x.shape
        kernel = weight.shape[2]
        height, width = ((n - 1) * stride + kernel + padding for n in (rows, columns))
        pixels = x.reshape(-1, channels)
        patches = (pixels @ _matrix(weight)).view(count, rows, columns, -1)
        ctx.save_for_backward(pixels, weight)
        ctx.shape, ctx.stride, ctx.padding = x.shape, stride, padding
        return image_of(patches, kernel, stride, height, width) + bias

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        pixels, weight = ctx.saved_tensors
        channels, outputs, kernel, _ = weight.shape
        seen = grad[:, : grad.shape[1] - ctx.padding, : grad.shape[2] - ctx.padding]
        patches = patches_of(seen, kernel, ctx.stride).flatten(0, 2)
        weight_grad = (pixels.T @ patches).view(channels, kernel, kernel, outputs).permute(0, 3, 1, 2)
        return (patches @ _matrix(weight).T).view(ctx.shape), weight_grad, grad.sum((0, 1, 2)), None, None


def _matrix(weight: Tensor) -> Tensor:
    """Weight (a, b, k, k) as (a, k * k * b); no copy if it is stored channels last."""
    return weight.permute(0, 2, 3, 1).flatten(1)


class GemmConv2d(nn.Conv2d):
    """A convolution without padding, as a matrix product."""

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_cpu:
            return super().forward(x)
        rows, columns = ((n - self.kernel_size[0]) // self.stride[0] + 1 for n in x.shape[2:])
        pixels = _Convolution.apply(x.permute(0, 2, 3, 1), self.weight, self.bias, self.stride[0])
        return pixels.view(len(x), rows, columns, -1).permute(0, 3, 1, 2)


class GemmConvTranspose2d(nn.ConvTranspose2d):
    """A transposed convolution without padding but at its end, as a matrix product."""

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        if not x.is_cpu:
            return super().forward(x, output_size)
        channels_last = x.permute(0, 2, 3, 1)
        image = _Transposed.apply(channels_last, self.weight, self.bias, self.stride[0], self.output_padding[0])
        return image.permute(0, 3, 1, 2)
