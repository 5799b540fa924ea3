"""Uncertainty model: Bayesian linear regression from features to [z', r] (Eq. 4), in float64."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from psdrl.agents.psdrl.regression import Statistics
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.errors import Diverged
from psdrl.kernels.posterior import inverse_norm, posterior_mean, posterior_sample

RELEASED_RIDGE, RELEASED_SCALE = 100.0, 1e-3  # of rule `released` [released]

Metrics = dict[str, float | Tensor]


@dataclass
class Group:
    """Outputs that share a prior and a noise variance, and hence a covariance."""

    outputs: slice
    prior: float
    noise: float


def check(info: Tensor) -> None:
    """Raise if a factorisation failed; info as in `posterior_factor`."""
    codes = info.reshape(-1).tolist()
    if -1 in codes:
        raise Diverged("posterior", "the precision matrix is not finite")
    if any(codes):
        raise Diverged("posterior", f"the precision matrix is indefinite (minors {codes})")


class Posterior:
    """Posterior of the output layer's rows w_j, and draws from it.

    `mean` (Z + 1, k) holds mu_j as rows; `factors` (g, k, k) holds per group of outputs with equal variances, for
    rule exact, the lower Cholesky factor of Sigma^-1, and for rule released the matrix that multiplies the noise."""

    def __init__(self, config: PsdrlConfig, empty: Statistics) -> None:
        """`empty`: the statistics of no data, which say what is regressed on what."""
        self.rule, p = config.rule, config.posterior
        features, outputs = empty.cross.shape
        self.groups = [
            Group(slice(0, outputs - 1), p.prior[0], p.noise[0]),
            Group(slice(outputs - 1, outputs), p.prior[-1], p.noise[-1]),
        ]
        equal = (p.prior[0], p.noise[0]) == (p.prior[-1], p.noise[-1])
        if (self.rule == "released" or equal) and empty.shared:
            self.groups = [Group(slice(0, outputs), p.prior[0], p.noise[0])]
        self.sizes = [group.outputs.stop - group.outputs.start for group in self.groups]
        self.mean = empty.cross.new_zeros(outputs, features)
        self.priors = self.mean.new_tensor([group.prior for group in self.groups])
        self.noises = self.mean.new_tensor([group.noise for group in self.groups])
        self.factors = self.mean.new_empty(0, features, features)
        self.resample = p.resample
        self.eps = self.mean.new_empty(0, outputs, features)  # of the last draw, if others may share it
        if self.rule != "none":
            self.fit(empty)

    @torch.no_grad()
    def fit(self, data: Statistics) -> Metrics:
        """Line 9: mu_j and Sigma_j from the data (Eq. 4); returns what is worth logging, still on the device."""
        if self.rule == "released":
            return self._fit_released(data)
        jitter = self._regress(data)
        metrics: Metrics = {"rows": data.rows, "jitter": jitter.max()}
        for g, group in enumerate(self.groups):
            # Mean predictive variance on the data, trace(Sigma G) / N, where G = noise (Sigma^-1 - ridge I).
            ridge, total = 1 / group.prior + jitter[g], inverse_norm(self.factors[g])
            trace = self.noises[g] * (self.mean.shape[1] - ridge * total)
            metrics |= self._named(g, data, self.noises[g] * ridge, trace)
            metrics |= self._sized(g, total, -2 * self.factors[g].diagonal().log().sum())
        return metrics

    def _regress(self, data: Statistics) -> Tensor:
        """Eq. 4; returns the jitter (g,) of the factorisation."""
        self.factors, jitter, info = data.factorised(self.priors, self.noises)
        check(info)
        self.mean.copy_(posterior_mean(self.factors, data.cross, self.sizes, self.noises))
        return jitter

    def _residuals(self, g: int, data: Statistics, ridge: Tensor) -> Tensor:
        """Mean squared residuals of the group's outputs.

        The residual is t.t - 2 mu.c + mu.G mu, of which (G + ridge I) mu = c leaves t.t - mu.c - ridge mu.mu."""
        outputs = self.groups[g].outputs
        mean = self.mean[outputs]
        fit = data.squares[outputs] - (mean * data.cross[:, outputs].T).sum(1) - ridge * mean.square().sum(1)
        return (fit / max(1, data.rows_of(g))).clamp(min=0)

    def _fit_released(self, data: Statistics) -> Metrics:
        """The ridge regression of the released code is Eq. 4 with prior 1 / ridge and noise 1."""
        ridge, scale = RELEASED_RIDGE, RELEASED_SCALE
        one = torch.ones_like(self.noises)
        factors, jitter, info = data.factorised(one / ridge, one)
        check(info)
        self.mean.copy_(posterior_mean(factors, data.cross, self.sizes, one))
        self.factors = torch.stack([scale * torch.cholesky_inverse(factor) for factor in factors])
        metrics: Metrics = {"rows": data.rows, "jitter": jitter.max()}
        for g, covariance in enumerate(self.factors):
            # trace(C G C) with C = scale A^-1 and G = A - ridge I.
            total = covariance.square().sum()
            trace = scale * covariance.trace() - (ridge + jitter[g]) * total
            metrics |= self._named(g, data, ridge + jitter[g], trace)
            # Draws mu + eps C have the covariance C C; C = scale (L L^T)^-1.
            root = math.log(scale) - 2 * factors[g].diagonal().log()
            metrics |= self._sized(g, total, 2 * root.sum())
        return metrics

    def _named(self, g: int, data: Statistics, ridge: Tensor, trace: Tensor) -> Metrics:
        """Predictive standard deviation and root mean squared residual, for latents and reward."""
        last, rows = len(self.mean) - 1, max(1, data.rows_of(g))
        spread = (trace / rows).clamp(min=0).sqrt() if data.rows else 0.0
        residual = self._residuals(g, data, ridge)
        found = {"latent": residual[:last].mean().sqrt(), "reward": residual[-1].sqrt()}
        return {
            name: value
            for part in self._parts(g)
            for name, value in ((f"sd_{part}", spread), (f"residual_{part}", found[part]))
        }

    def _sized(self, g: int, trace: Tensor, logdet: Tensor) -> Metrics:
        """Trace and log-determinant of the covariance (k, k) of an output's weights."""
        return {
            f"{name}_{part}": value for part in self._parts(g) for name, value in (("trace", trace), ("logdet", logdet))
        }

    def _parts(self, g: int) -> list[str]:
        """Whether a group has latent states, the reward, or both."""
        outputs, last = self.groups[g].outputs, len(self.mean) - 1
        return ["latent"] * (outputs.start == 0 and last > 0) + ["reward"] * (outputs.stop == last + 1)

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> Tensor:
        """Line 10: W~ (Z + 1, k); exact: w = mu + L^-T eps, released: w = mu + eps C. With probability 1 - resample
        eps is that of the last draw."""
        if self.resample == 1:
            return self.draws(1, generator)[0]
        new = torch.rand((), generator=generator, device=self.mean.device) < self.resample
        if new or not len(self.eps):
            self.eps = self._noise(1, generator)  # a new tensor: `undoing` keeps the old one
        return self.draws(1, generator, self.eps)[0]

    def _noise(self, samples: int, generator: torch.Generator) -> Tensor:
        return self.mean.new_empty(samples, *self.mean.shape).normal_(generator=generator)

    @torch.no_grad()
    def draws(self, samples: int, generator: torch.Generator, eps: Tensor | None = None) -> Tensor:
        """S models (S, Z + 1, k) from one factor; eps (S, Z + 1, k) is drawn if not given."""
        if self.rule == "mean":
            return self.mean.repeat(samples, 1, 1)
        if self.rule != "released":
            return posterior_sample(self.factors, self.mean, self.sizes, eps, samples, generator)
        eps = self._noise(samples, generator) if eps is None else eps
        noise = [part @ factor for part, factor in zip(eps.split(self.sizes, 1), self.factors, strict=True)]
        return self.mean + torch.cat(noise, 1)

    def state_dict(self) -> dict[str, Any]:
        """Mean, factors and the noise that later draws may share."""
        return {"mean": self.mean, "factors": self.factors, "eps": self.eps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.mean.copy_(state["mean"])
        self.factors = state["factors"].to(self.mean.device)
        self.eps = state["eps"].to(self.mean.device)
