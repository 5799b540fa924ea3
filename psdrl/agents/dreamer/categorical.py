"""Categorical variables: drawn with given uniform noise, straight-through gradients, balanced KL divergence.

Noise comes from outside, one uniform number per variable: the oracle and the fast path draw the same classes from it,
and a CUDA graph reads it like any other input.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def draw(probabilities: Tensor, noise: Tensor) -> Tensor:
    """Classes (...) drawn from probabilities (..., C) with noise (...) uniform in [0, 1): the first class whose
    cumulative probability exceeds it."""
    passed = (probabilities.cumsum(-1) <= noise[..., None]).sum(-1)
    return passed.clamp_max_(probabilities.shape[-1] - 1)  # a sum of float32 may end below 1


def one_hot(classes: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """(..., count) with a single 1 each."""
    zeros = torch.zeros(*classes.shape, count, dtype=dtype, device=classes.device)
    return zeros.scatter_(-1, classes[..., None], 1.0)


class StraightThrough(torch.autograd.Function):
    """One-hot samples (..., C) of logits (..., C): sample + probabilities - stop(probabilities)."""

    @staticmethod
    def forward(ctx, logits: Tensor, noise: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        probabilities = logits.softmax(-1)
        ctx.save_for_backward(probabilities)
        return one_hot(draw(probabilities, noise), logits.shape[-1], logits.dtype)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        """That of the softmax: p (g - sum p g)."""
        (p,) = ctx.saved_tensors
        weighted = p * gradient
        return weighted - p * weighted.sum(-1, keepdim=True), None


def sample(logits: Tensor, noise: Tensor) -> Tensor:
    """One-hot samples of logits (..., C), with straight-through gradients."""
    return StraightThrough.apply(logits, noise)


def divergence(logits: Tensor, other: Tensor) -> Tensor:
    """KL(p || q) (...), summed over the variables, of logits (..., G, C)."""
    p, q = F.log_softmax(logits, -1), F.log_softmax(other, -1)
    return (p.exp() * (p - q)).sum((-2, -1))


def balanced(posterior: Tensor, prior: Tensor, balance: float) -> tuple[Tensor, Tensor]:
    """The mean of b KL(stop(posterior) || prior) + (1 - b) KL(posterior || stop(prior)); and of KL, for the log."""
    to_prior = divergence(posterior.detach(), prior).mean()
    to_posterior = divergence(posterior, prior.detach()).mean()
    return balance * to_prior + (1 - balance) * to_posterior, to_prior.detach()


def log_probability(logits: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """log p(class) (...) of logits (..., C), and the entropy (...)."""
    logs = F.log_softmax(logits, -1)
    return logs.gather(-1, classes[..., None]).squeeze(-1), -(logs.exp() * logs).sum(-1)
