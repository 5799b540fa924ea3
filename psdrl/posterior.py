"""Uncertainty model: Bayesian linear regression from features to [z', r] (Eq. 4), in float64."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from psdrl.config import Config
from psdrl.errors import UserError
from psdrl.learning import Latents, scan
from psdrl.models import Models, SampledModel, one_hot
from psdrl.replay import Replay


@dataclass
class Statistics:
    """All that Eq. 4 needs of the replay buffer: sums over its N transitions, in float64."""

    gram: Tensor  # (k, k) Phi^T Phi
    cross: Tensor  # (k, Z + 1) Phi^T T
    squares: Tensor  # (Z + 1,) squared targets, for the residuals
    rows: int  # N

    @classmethod
    def empty(cls, features: int, outputs: int, device: torch.device) -> "Statistics":
        """No data: the posterior is the prior."""
        gram = torch.zeros(features, features, dtype=torch.float64, device=device)
        return cls(gram, gram.new_zeros(features, outputs), gram.new_zeros(outputs), 0)

    def add(self, features: Tensor, targets: Tensor) -> None:
        """Add rows of features (n, k) and targets (n, Z + 1)."""
        features, targets = features.double(), targets.double()
        self.gram += features.T @ features
        self.cross += features.T @ targets
        self.squares += targets.square().sum(0)
        self.rows += len(features)


@torch.no_grad()
def buffer_statistics(models: Models, replay: Replay, latents: Latents, chunk_rows: int) -> Statistics:
    """Features and targets of all stored transitions, streamed: Phi is never materialised.

    Episodes are packed by length (longest first), so nothing is padded; time goes on in stretches of at most
    `chunk_rows` rows (at least one step), each a packed GRU scan followed by the feature network in bulk.
    """
    forward_model = models.forward_model
    outputs, features = forward_model.output.weight.shape
    statistics = Statistics.empty(features, outputs, replay.device)
    episodes = sorted(replay.episodes, key=lambda episode: -episode.length)
    starts = torch.tensor([episode.start for episode in episodes])
    lengths = np.array([episode.length for episode in episodes])
    active = len(episodes) - np.searchsorted(lengths[::-1], np.arange(lengths[0]), side="right")  # per time step
    hidden = forward_model.output.weight.new_zeros(len(episodes), forward_model.gru.hidden_size)
    time = 0
    while time < len(active):
        steps = max(1, int(np.searchsorted(np.cumsum(active[time:]), chunk_rows, side="right")))
        sizes = active[time : time + steps]
        rows = torch.cat([starts[:size] + t for t, size in enumerate(sizes, time)]) % replay.num_slots
        rows = rows.to(replay.device)
        z, actions = latents[rows], replay.actions[rows]
        inputs = torch.cat([z, one_hot(actions, forward_model.num_actions, z)], 1)
        states = scan(forward_model, inputs, hidden[: sizes[0]], torch.from_numpy(sizes))
        targets = torch.cat([latents[(rows + 1) % replay.num_slots], replay.rewards[rows, None].to(z)], 1)
        statistics.add(forward_model.feature_layers(torch.cat([states, inputs], 1)), targets)
        hidden = states[-sizes[-1] :]
        time += steps
    return statistics


@dataclass
class Group:
    """Outputs that share a prior and a noise variance, and hence a covariance."""

    outputs: slice
    prior: float
    noise: float


def cholesky(precision: Tensor) -> tuple[Tensor, float]:
    """Lower Cholesky factor and the jitter it needed: 0, or 1e-12 of the mean diagonal times 1, 10, 100, ..."""
    factor, info = torch.linalg.cholesky_ex(precision)
    jitter = 0.0
    scale = float(precision.diagonal().mean())
    if not torch.isfinite(precision).all():
        raise UserError("Training diverged: the posterior's precision matrix is not finite; lower the learning rates.")
    while int(info) > 0:
        jitter = max(10 * jitter, 1e-12 * scale)
        factor, info = torch.linalg.cholesky_ex(precision + jitter * torch.eye(len(precision)).to(precision))
    return factor, jitter


class Posterior:
    """Posterior of the output layer's rows w_j, and draws from it.

    Per group of outputs with equal variances, `mean` holds mu_j as rows and `factors` holds, for rule exact, the
    lower Cholesky factor of Sigma^-1, and for rule released the symmetric matrix that multiplies the noise."""

    def __init__(self, config: Config, features: int, outputs: int, device: torch.device) -> None:
        self.rule, self.config = config.rule, config.posterior
        p = config.posterior
        self.groups = [
            Group(slice(0, outputs - 1), p.prior_latent, p.noise_latent),
            Group(slice(outputs - 1, outputs), p.prior_reward, p.noise_reward),
        ]
        if self.rule == "released" or (p.prior_latent, p.noise_latent) == (p.prior_reward, p.noise_reward):
            self.groups = [Group(slice(0, outputs), p.prior_latent, p.noise_latent)]
        self.mean = torch.zeros(outputs, features, dtype=torch.float64, device=device)
        self.factors: list[Tensor] = []
        if self.rule != "none":
            self.fit(Statistics.empty(features, outputs, device))

    def fit(self, data: Statistics) -> dict[str, float]:
        """Line 9: mu_j and Sigma_j from the data (Eq. 4); returns what is worth logging."""
        if self.rule == "released":
            return self._fit_released(data)
        identity = torch.eye(len(data.gram), dtype=torch.float64, device=data.gram.device)
        self.factors, metrics = [], {"rows": float(data.rows), "jitter": 0.0}
        for group in self.groups:
            precision = identity / group.prior + data.gram / group.noise
            factor, jitter = cholesky(precision)
            cross = data.cross[:, group.outputs] / group.noise
            self.mean[group.outputs] = torch.cholesky_solve(cross, factor).T
            self.factors.append(factor)
            # Mean predictive variance on the data: trace(Sigma G) / N.
            root = torch.linalg.solve_triangular(factor, identity, upper=False)
            spread = (root.T @ root * data.gram).sum() / max(1, data.rows)
            metrics |= self._named(group, data, float(spread.clamp(min=0).sqrt()))
            metrics["jitter"] = max(metrics["jitter"], jitter)
        return metrics

    def _fit_released(self, data: Statistics) -> dict[str, float]:
        ridge = self.config.released_ridge * torch.eye(len(data.gram), dtype=torch.float64, device=data.gram.device)
        factor, jitter = cholesky(data.gram + ridge)
        self.mean[:] = torch.cholesky_solve(data.cross, factor).T
        covariance = self.config.released_scale * torch.cholesky_inverse(factor)
        self.factors = [covariance]
        spread = (covariance @ covariance * data.gram).sum() / max(1, data.rows)
        metrics = {"rows": float(data.rows), "jitter": jitter}
        return metrics | self._named(self.groups[0], data, float(spread.clamp(min=0).sqrt()))

    def _named(self, group: Group, data: Statistics, spread: float) -> dict[str, float]:
        """Predictive standard deviation and root mean squared residual, for latents and reward."""
        last = len(self.mean) - 1
        fit = (self.mean @ data.gram * self.mean).sum(1) - 2 * (self.mean * data.cross.T).sum(1) + data.squares
        residual = (fit / max(1, data.rows)).clamp(min=0)
        metrics: dict[str, float] = {}
        if group.outputs.start == 0 and last > 0:
            metrics |= {"sd_latent": spread, "residual_latent": float(residual[:last].mean().sqrt())}
        if group.outputs.stop == last + 1:
            metrics |= {"sd_reward": spread, "residual_reward": float(residual[last].sqrt())}
        return metrics

    def draw(self, generator: torch.Generator) -> Tensor:
        """Line 10: W~ (Z + 1, k); exact: w = mu + L^-T eps, released: w = mu + eps C."""
        noise = torch.empty_like(self.mean).normal_(generator=generator)
        weight = self.mean.clone()
        for group, factor in zip(self.groups, self.factors, strict=True):
            eps = noise[group.outputs]
            if self.rule == "released":
                weight[group.outputs] += eps @ factor
            else:
                weight[group.outputs] += torch.linalg.solve_triangular(factor.T, eps.T, upper=True).T
        return weight

    def state_dict(self) -> dict[str, Any]:
        """Mean and factors."""
        return {"mean": self.mean, "factors": self.factors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.mean.copy_(state["mean"])
        self.factors = [factor.to(self.mean.device) for factor in state["factors"]]


def as_model(models: Models, weight: Tensor | None) -> SampledModel:
    """Line 11: the output layer to plan with: a draw, or the trained layer if there is none."""
    output = models.forward_model.output
    if weight is None:
        return SampledModel(output.weight.detach(), output.bias.detach())
    weight = weight.to(output.weight.dtype)
    return SampledModel(weight, weight.new_zeros(len(weight)))
