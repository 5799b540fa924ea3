"""The same by csrc/, for float32 on a CPU. No gradients are left behind: Adam uses them up."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from psdrl.kernels import adam, choice
from psdrl.kernels.window_steps.reference import WindowNet

if adam.NATIVE:

    @torch.library.register_fake("psdrl::window_steps_")
    def _window_steps_(latents: Tensor, actions: Tensor, *others: Any) -> Tensor:
        return latents.new_empty(-(-len(actions) // others[10]))


def possible(latents: Tensor, optimiser: torch.optim.Optimizer) -> bool:
    """Whether `window_steps_` can take this optimiser's steps on such latent states (L + 1, B, Z)."""
    return bool(latents.numel()) and adam.possible(latents, optimiser)


def serves(latents: Tensor, net: WindowNet, window: int, loop: Callable[[], object]) -> bool:
    """Whether it is faster than `loop()`, a window's forward and backward pass by other means, which changes nothing
    but gradients; Adam's own step is added to it."""

    def candidates() -> choice.Candidates:
        copies, optimiser = adam.copied(net.parameters)
        copy = net._replace(gru=copies[: len(net.gru)], layers=copies[len(net.gru) :])
        z = latents[: window + 1]
        actions = torch.zeros(len(z) - 1, z.shape[1], dtype=torch.int64)
        rewards = torch.zeros(actions.shape)
        return {
            "csrc": lambda: window_steps_(z, actions, rewards, optimiser, copy, window),
            "aten": lambda: (loop(), optimiser.step()),
        }

    name = f"windows of {window} x {len(net.gru)} + {len(net.layers)}"
    rows = latents[:1].expand(window, -1, -1).flatten(0, 1)
    return choice.choose(name, rows, net.layers[-2], candidates) == "csrc"


@torch.no_grad()
def window_steps_(
    latents: Tensor,
    actions: Tensor,
    rewards: Tensor,
    optimiser: torch.optim.Optimizer,
    net: WindowNet,
    window: int,
    weights: Tensor | None = None,
) -> Tensor:
    """See `reference`: parameters and Adam's numbers change in place."""
    losses = torch.ops.psdrl.window_steps_(
        latents,
        actions,
        rewards,
        weights,
        net.parameters,
        *adam.moments(optimiser, net.parameters),
        net.hidden,
        bool(net.gru),
        net.bends,
        net.with_inputs,
        window,
        net.reward_weight,
        net.mean,
        *adam.rates(optimiser),
    )
    adam.changed(net.parameters)
    return losses
