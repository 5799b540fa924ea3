"""A linear layer's weight gradient and Adam's step of it in one pass, for gradient steps on a few hundred rows."""

import torch
from torch import Tensor

from psdrl.kernels import dispatch, triton_support
from psdrl.kernels.weight_step import reference

NAME = "weight_step_"  # under which dispatch keeps a failed check


def serves(device: torch.device) -> bool:
    """Whether the kernel serves float32 weights on this device; elsewhere a product and the optimiser are as good."""
    return dispatch.serving(device, torch.float32, NAME) == "triton"


def weight_step_(
    weight: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    delta: Tensor,
    x: Tensor,
    rate: float,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Adam's step number `step` of weight (U, K) for the gradient delta^T x; see `reference`."""
    if triton_support.refusal(weight.device, weight.dtype) is not None or not serves(weight.device):
        return reference.weight_step_(weight, exp_avg, exp_avg_sq, step, delta, x, rate, betas, eps)
    from psdrl.kernels.weight_step.triton_kernel import weight_step_ as triton_step_

    return triton_step_(weight, exp_avg, exp_avg_sq, step, delta, x, rate, betas, eps)


__all__ = ["NAME", "serves", "weight_step_"]
