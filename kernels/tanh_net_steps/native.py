"""The same by csrc/, for float32 on a CPU. No gradients are left behind: Adam uses them up."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from psdrl.kernels import choice, dispatch
from psdrl.kernels.extension import missing
from psdrl.kernels.linear_tanh.aten import chosen_here

NATIVE = missing() is None

if NATIVE:

    @torch.library.register_fake("psdrl::tanh_net_steps_")
    def _tanh_net_steps_(states: Tensor, targets: Tensor, *lists: Any) -> Tensor:
        return states.new_empty(len(states), lists[4])


CACHE = 2**18  # numbers of a weight that a core's cache holds; only a guess for runs that measure nothing


def possible(states: Tensor, optimiser: torch.optim.Optimizer) -> bool:
    """Whether `tanh_net_steps_` can take this optimiser's steps on such states (n, B, D)."""
    if not (NATIVE and states.numel() and chosen_here(states) and dispatch.forced() is None):
        return False
    plain = isinstance(optimiser, torch.optim.Adam) and len(optimiser.param_groups) == 1
    group = optimiser.param_groups[0]
    return plain and not (group["weight_decay"] or group["amsgrad"] or group["maximize"])


def serves(states: Tensor, parameters: list[Tensor], networks: int, loop: Callable[[], object]) -> bool:
    """Whether it is faster than `loop()`, a step of one network on one batch by other means, which changes nothing
    but gradients; Adam's own step is added to it."""
    widest = max(parameters, key=Tensor.numel)

    def candidates() -> choice.Candidates:
        copies = [p.detach().clone().requires_grad_() for p in parameters[: len(parameters) // networks]]
        optimiser = torch.optim.Adam(copies, 0.0, fused=True)
        for p in copies:
            p.grad = torch.zeros_like(p)
        optimiser.step()  # makes its numbers
        one = states[:1], torch.zeros(states.shape[:2])[:1], optimiser, copies, 1
        steps = {"csrc": lambda: tanh_net_steps_(*one), "aten": lambda: (loop(), optimiser.step())}
        return steps if widest.numel() <= CACHE else dict(reversed(steps.items()))

    depth = len(parameters) // (2 * networks)
    return choice.choose(f"steps of {depth}", states[0], widest, candidates) == "csrc"


def tanh_net_steps_(
    states: Tensor, targets: Tensor, optimiser: torch.optim.Optimizer, parameters: list[Tensor], networks: int
) -> Tensor:
    """See `reference`: parameters and Adam's numbers change in place."""
    group, moments = optimiser.param_groups[0], [optimiser.state[p] for p in parameters]
    averages, squares, steps = ([entry[name] for entry in moments] for name in ("exp_avg", "exp_avg_sq", "step"))
    rate, (beta1, beta2), eps = group["lr"], group["betas"], group["eps"]
    return torch.ops.psdrl.tanh_net_steps_(
        states, targets, parameters, averages, squares, steps, networks, rate, beta1, beta2, eps
    )
