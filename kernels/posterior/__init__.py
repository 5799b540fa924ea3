"""Bayesian linear regression of the output layer (Eq. 4): sums, factors, means, samples.

`group` holds counts, not labels: [1536, 1] says that the first 1536 outputs share one prior and noise variance (and so
one factor) and the last has its own. See docs/library.md for an example.

Each function runs the operation of csrc/ where it is built for the tensors' device, else the oracle, with the same
signature; `unavailable` says why. No gradients: asking for one is an error.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from psdrl.kernels import choice
from psdrl.kernels.linear_tanh.aten import chosen_here
from psdrl.kernels.posterior import reference, registers
from psdrl.kernels.posterior.native import unavailable
from psdrl.kernels.posterior.registers import inverse_norm

__all__ = [
    "gram_accumulate_",
    "inverse_norm",
    "posterior_factor",
    "posterior_mean",
    "posterior_sample",
    "unavailable",
]


def _implementation(like: Tensor) -> Any:
    return torch.ops.psdrl if unavailable(like.device) is None else reference


def _triangular(name: str, like: Tensor, features: int) -> Any:
    """An operation on triangular systems of so many features; on a CPU by whichever is faster there."""
    functions = _implementation(like)
    function = getattr(functions, name)
    if functions is reference or not registers.serve(like, features):
        return function
    return partial(function, registers=True)


def gram_accumulate_(gram: Tensor, cross: Tensor, features: Tensor, targets: Tensor, weight: float = 1.0) -> None:
    """gram (k, k) += weight Phi^T Phi (lower triangle), cross (k, o) += weight Phi^T T; see `reference`. On a CPU by
    panels of BLAS or in registers, whichever is faster there."""
    functions = _implementation(gram)
    double = features.is_cpu and features.dtype is torch.float64 and features.numel() > 0
    if functions is reference or not (double or chosen_here(features)):
        return functions.gram_accumulate_(gram, cross, features, targets, weight)
    by = {"csrc": torch.ops.psdrl.gram_registers_, "aten": torch.ops.psdrl.gram_accumulate_}

    def candidates() -> choice.Candidates:
        rows = (torch.zeros_like(gram), torch.zeros_like(cross), features, targets)
        return {name: partial(function, *rows) for name, function in by.items()}

    chosen = choice.choose("gram64" if double else "gram", features, cross, candidates)
    by[chosen](gram, cross, features, targets, weight)


def posterior_factor(
    gram: Tensor, prior_variances: Tensor, noise_variances: Tensor, attempts: int = 16
) -> tuple[Tensor, Tensor, Tensor]:
    """Factors (g, k, k), jitter (g,) and info (g,); see `reference`."""
    operation = _triangular("posterior_factor", gram, len(gram))
    return operation(gram, prior_variances, noise_variances, attempts)


def posterior_mean(factors: Tensor, cross: Tensor, group: Sequence[int], noise_variances: Tensor) -> Tensor:
    """Means (o, k); `group`: outputs per factor, adding up to o; see `reference`."""
    return _triangular("posterior_mean", factors, len(cross))(factors, cross, group, noise_variances)


def posterior_sample(
    factors: Tensor,
    mean: Tensor,
    group: Sequence[int],
    eps: Tensor | None = None,
    samples: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draws (S, o, k); `group`: outputs per factor, adding up to o; see `reference`."""
    return _triangular("posterior_sample", factors, mean.shape[1])(factors, mean, group, eps, samples, generator)
