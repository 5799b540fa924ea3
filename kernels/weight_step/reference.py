"""The oracle."""

import torch
from torch import Tensor


@torch.no_grad()
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
    """Kingma and Ba's Algorithm 1 with g = delta^T x, in place; `step` () is t, the number of this step.

    m <- beta1 m + (1 - beta1) g,  v <- beta2 v + (1 - beta2) g^2,
    w <- w - rate m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps).

    weight, exp_avg (m), exp_avg_sq (v): (U, K); delta (n, U): the gradient of the layer's sums; x (n, K): its input.
    """
    gradient = (delta.T @ x).to(weight.dtype)
    beta1, beta2 = betas
    exp_avg.mul_(beta1).add_(gradient, alpha=1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    first, second = (1 - beta ** step.double() for beta in betas)
    weight.sub_((rate * exp_avg / first / ((exp_avg_sq / second).sqrt() + eps)).to(weight.dtype))
