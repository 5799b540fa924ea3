"""The oracle: Eq. 4 in float64, each line one formula; also the fallback where the extension is missing.

k features, o outputs, g groups of outputs that share a prior and a noise variance, n rows, S samples. `group` holds
the count of outputs per group, such as [1536, 1]; groups are contiguous and in the order of the factors. Of a symmetric
matrix only the lower triangle counts.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.no_grad()
def gram_accumulate_(gram: Tensor, cross: Tensor, features: Tensor, targets: Tensor, weight: float = 1.0) -> None:
    """gram (k, k) += weight Phi^T Phi and cross (k, o) += weight Phi^T T, for features (n, k) and targets (n, o)."""
    phi, t = features.double(), targets.double()
    gram += weight * (phi.T @ phi)
    cross += weight * (phi.T @ t)


@torch.no_grad()
def posterior_factor(
    gram: Tensor, prior_variances: Tensor, noise_variances: Tensor, attempts: int = 16
) -> tuple[Tensor, Tensor, Tensor]:
    """Lower Cholesky factors (g, k, k) of Sigma^-1 = I / prior + gram / noise + jitter I; jitter (g,); info (g,) int32.

    The jitter is 0, or the first of 1e-12 of the mean diagonal times 1, 10, 100, ... that succeeds. info is 0, or -1
    for input that is not finite, or the order of the leading minor that all attempts left indefinite; the factor is
    then NaN.
    """
    lower, k = gram.tril(), len(gram)
    identity = torch.eye(k, dtype=gram.dtype, device=gram.device)
    factors = gram.new_full((len(prior_variances), k, k), torch.nan)
    jitter, info = gram.new_zeros(len(factors)), torch.zeros(len(factors), dtype=torch.int32, device=gram.device)
    for g, (prior, noise) in enumerate(zip(prior_variances, noise_variances, strict=True)):
        precision = identity / prior + lower / noise
        if not precision.isfinite().all():
            info[g] = -1
            continue
        for attempt in range(max(1, attempts)):
            if attempt > 0:
                jitter[g] = 10 * jitter[g] if attempt > 1 else 1e-12 * precision.diagonal().mean().abs()
            factor, info[g] = torch.linalg.cholesky_ex(precision + jitter[g] * identity)
            if info[g] == 0:
                factors[g] = factor
                break
    return factors, jitter, info


@torch.no_grad()
def posterior_mean(factors: Tensor, cross: Tensor, group: Sequence[int], noise_variances: Tensor) -> Tensor:
    """Rows mu_j = Sigma Phi^T t_j / noise (o, k), for cross (k, o) and noise_variances (g,)."""
    columns = cross.split(list(group), 1)
    means = [
        torch.cholesky_solve(c / noise, factor)
        for c, noise, factor in zip(columns, noise_variances, factors, strict=True)
    ]
    return torch.cat(means, 1).T.contiguous()


@torch.no_grad()
def posterior_sample(
    factors: Tensor,
    mean: Tensor,
    group: Sequence[int],
    eps: Tensor | None = None,
    samples: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """S draws w_j = mu_j + L^-T eps_j (S, o, k), for mean (o, k) and eps (S, o, k), drawn if not given."""
    if eps is None:
        eps = mean.new_empty(samples, *mean.shape).normal_(generator=generator)
    parts = [
        torch.linalg.solve_triangular(factor.T, noise.mT, upper=True).mT
        for factor, noise in zip(factors, eps.split(list(group), 1), strict=True)
    ]
    return mean + torch.cat(parts, 1)


@torch.no_grad()
def inverse_norm(factor: Tensor) -> Tensor:
    """|L^-1|^2 = trace (L L^T)^-1 for a lower factor (k, k)."""
    identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    return torch.linalg.solve_triangular(factor, identity, upper=False).square().sum()
