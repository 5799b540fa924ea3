"""The same by csrc/, for float32 on a CPU. No gradients are left behind: Adam uses them up."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from psdrl.kernels import adam, choice

if adam.NATIVE:

    @torch.library.register_fake("psdrl::tanh_net_steps_")
    def _tanh_net_steps_(states: Tensor, targets: Tensor, *others: Any) -> Tensor:
        return states.new_empty(len(states), others[5])


CACHE = 2**18  # numbers of a weight that a core's cache holds; only a guess for runs that measure nothing


def possible(states: Tensor, optimiser: torch.optim.Optimizer) -> bool:
    """Whether `tanh_net_steps_` can take this optimiser's steps on such states (n, B, D)."""
    return bool(states.numel()) and adam.possible(states, optimiser)


def serves(states: Tensor, parameters: Sequence[Tensor], networks: int, loop: Callable[[], object]) -> bool:
    """Whether it is faster than `loop()`, a step of one network on one batch by other means, which changes nothing
    but gradients; Adam's own step is added to it."""
    widest = max(parameters, key=Tensor.numel)

    def candidates() -> choice.Candidates:
        copies, optimiser = adam.copied(parameters[: len(parameters) // networks])
        one = states[:1], torch.zeros(states.shape[:2])[:1], optimiser, copies, 1
        steps = {"csrc": lambda: tanh_net_steps_(*one), "aten": lambda: (loop(), optimiser.step())}
        return steps if widest.numel() <= CACHE else dict(reversed(steps.items()))

    depth = len(parameters) // (2 * networks)
    return choice.choose(f"steps of {depth}", states[0], widest, candidates) == "csrc"


@torch.no_grad()
def tanh_net_steps_(
    states: Tensor,
    targets: Tensor,
    optimiser: torch.optim.Optimizer,
    parameters: Sequence[Tensor],
    networks: int,
    weights: Tensor | None = None,
) -> Tensor:
    """See `reference`: parameters and Adam's numbers change in place."""
    losses = torch.ops.psdrl.tanh_net_steps_(
        states,
        targets,
        weights,
        parameters,
        *adam.moments(optimiser, parameters),
        networks,
        *adam.rates(optimiser),
    )
    adam.changed(parameters)
    return losses
