"""The same by csrc/, for float32 on a CPU. No gradients are left behind: Adam uses them up."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from psdrl.kernels import adam, choice
from psdrl.kernels.autoencoder_steps.reference import Pictures

if adam.NATIVE:

    @torch.library.register_fake("psdrl::autoencoder_steps_")
    def _autoencoder_steps_(frames: Tensor, *others: Any) -> Tensor:
        return frames.new_empty(len(frames), dtype=torch.float32)


def possible(frames: Tensor, optimiser: torch.optim.Optimizer, net: Pictures) -> bool:
    """Whether `autoencoder_steps_` can take this optimiser's steps on such frames (n, B, c, s, s)."""
    return bool(frames.numel()) and frames.dtype == torch.uint8 and adam.possible(net.parameters[0], optimiser)


def serves(frames: Tensor, net: Pictures, loop: Callable[[], object]) -> bool:
    """Whether it is faster than `loop()`, the forward and backward pass of one batch by other means, which changes
    nothing but gradients; Adam's own step is added to it."""

    def candidates() -> choice.Candidates:
        copies, optimiser = adam.copied(net.parameters)
        copy = net._replace(parameters=copies)
        return {
            "csrc": lambda: autoencoder_steps_(frames[:1], optimiser, copy),
            "aten": lambda: (loop(), optimiser.step()),
        }

    shape = "x".join(str(p.shape[0]) for p in net.parameters[::2])
    return choice.choose(f"autoencoder of {shape}", frames[0].flatten(1), net.mean[0], candidates) == "csrc"


@torch.no_grad()
def autoencoder_steps_(frames: Tensor, optimiser: torch.optim.Optimizer, net: Pictures) -> Tensor:
    """See `reference`: parameters and Adam's numbers change in place."""
    losses = torch.ops.psdrl.autoencoder_steps_(
        frames,
        net.mean,
        net.contrast,
        net.parameters,
        *adam.moments(optimiser, net.parameters),
        net.strides,
        net.mean_loss,
        *adam.rates(optimiser),
    )
    adam.changed(net.parameters)
    return losses
