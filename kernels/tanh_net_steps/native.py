"""The same by csrc/, for float32 on a CPU. No gradients are left behind: Adam uses them up."""

from typing import Any

import torch
from torch import Tensor

from psdrl.kernels.extension import missing

NATIVE = missing() is None

if NATIVE:

    @torch.library.register_fake("psdrl::tanh_net_steps_")
    def _tanh_net_steps_(states: Tensor, targets: Tensor, *lists: Any) -> Tensor:
        return states.new_empty(len(states), lists[4])


def serves(states: Tensor, optimiser: torch.optim.Optimizer) -> bool:
    """Whether `tanh_net_steps_` takes this optimiser's steps on such states."""
    if not (NATIVE and states.is_cpu and states.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")):
        return False
    plain = isinstance(optimiser, torch.optim.Adam) and len(optimiser.param_groups) == 1
    group = optimiser.param_groups[0]
    return plain and not (group["weight_decay"] or group["amsgrad"] or group["maximize"])


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
