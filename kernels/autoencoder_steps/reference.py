"""Adam steps of a convolutional autoencoder: the oracle, by autograd and Adam's own step."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Pictures(NamedTuple):
    """An autoencoder's parameters, and what its pixels are."""

    parameters: list[Tensor]  # weight and bias of each convolution, then of each transposed one
    strides: list[int]  # of the convolutions; the transposed ones have the same in reverse order
    mean: Tensor  # (c, s, s)
    contrast: Tensor  # ()
    mean_loss: bool  # squared errors are averaged over pixels, not summed up


@torch.enable_grad()
def autoencoder_steps_(frames: Tensor, optimiser: torch.optim.Optimizer, net: Pictures) -> Tensor:
    """A step of the optimiser for each of n batches: frames (n, B, c, s, s) of uint8 -> the losses (n,) before each
    step (Eq. 1): squared errors of the pixels (x / 255 - mean) contrast, averaged over B."""
    pairs = list(zip(net.parameters[::2], net.parameters[1::2], strict=True))
    forth, back = pairs[: len(net.strides)], pairs[len(net.strides) :]
    losses = []
    for batch in frames:
        images = (batch.to(net.mean) / 255 - net.mean) * net.contrast
        x = images
        for (weight, bias), stride in zip(forth, net.strides, strict=True):
            x = F.relu(F.conv2d(x, weight, bias, stride))
        for i, ((weight, bias), stride) in enumerate(zip(back, reversed(net.strides), strict=True)):
            x = F.relu(x) if i else x
            x = F.conv_transpose2d(x, weight, bias, stride)
        error = (x - images).square().flatten(1)
        loss = (error.mean(1) if net.mean_loss else error.sum(1)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses)
