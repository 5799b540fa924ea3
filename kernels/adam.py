"""What the gradient steps of csrc/ need of torch.optim.Adam: settings, moments, and copies to time them with."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from psdrl.kernels import dispatch
from psdrl.kernels.extension import missing
from psdrl.kernels.linear_tanh.aten import chosen_here

NATIVE = missing() is None


def possible(x: Tensor, optimiser: torch.optim.Optimizer) -> bool:
    """Whether csrc can take this optimiser's steps of networks that see such numbers as x: Adam in float32 on a CPU,
    and nobody who waits for a gradient, which is never made."""
    if not (NATIVE and chosen_here(x) and dispatch.forced() is None):
        return False
    plain = isinstance(optimiser, torch.optim.Adam) and len(optimiser.param_groups) == 1
    group = optimiser.param_groups[0]
    hooked = any(parameter._backward_hooks for parameter in group["params"])
    return plain and not (hooked or group["weight_decay"] or group["amsgrad"] or group["maximize"])


def moments(optimiser: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> tuple[list[Tensor], ...]:
    """Averages, squares and steps of these parameters."""
    states = [optimiser.state[p] for p in parameters]
    averages, squares, steps = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))
    return averages, squares, steps


def rates(optimiser: torch.optim.Optimizer) -> tuple[float, float, float, float]:
    """Learning rate, beta1, beta2 and epsilon."""
    group = optimiser.param_groups[0]
    return group["lr"], *group["betas"], group["eps"]


def copied(parameters: Sequence[Tensor]) -> tuple[list[Tensor], Any]:
    """Parameters like these and an Adam of theirs that has taken a step, for timing: nothing real changes."""
    copies = [p.detach().clone(memory_format=torch.preserve_format).requires_grad_() for p in parameters]
    optimiser = torch.optim.Adam(copies, 0.0, fused=True)
    for p in copies:
        p.grad = torch.zeros_like(p)
    optimiser.step()  # makes its numbers
    return copies, optimiser


def changed(parameters: Sequence[Tensor]) -> None:
    """Count a change of parameters that csrc has written in place, as PyTorch counts its own."""
    torch.autograd.graph.increment_version(list(parameters))
