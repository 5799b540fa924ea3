"""Uncertainty model: Bayesian linear regression from features to [z', r] (Eq. 4), in float64."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from psdrl.config import Config
from psdrl.distinct import firsts
from psdrl.errors import UserError
from psdrl.execution import EAGER, Execution
from psdrl.kernels.linear_tanh import linear_tanh
from psdrl.kernels.posterior import chol_update_, gram_accumulate_, posterior_factor, posterior_mean, posterior_sample
from psdrl.learning import scan
from psdrl.models import ForwardModel, LocalFeatures, Models, SampledModel, one_hot
from psdrl.places import Places
from psdrl.replay import Replay

PANEL = 256  # columns of an inverse solved at a time: the rows above them are zero and are left out


class Statistics:
    """All that Eq. 4 needs of the replay buffer: sums over its N transitions, in float64.

    cross (k, Z + 1) is Phi^T T, squares (Z + 1,) the squared targets, for the residuals, rows is N."""

    def __init__(self, gram: Tensor, cross: Tensor, squares: Tensor, rows: int) -> None:
        self._gram, self._mirrored = gram, True  # only the lower triangle is summed up
        self.cross, self.squares, self.rows = cross, squares, rows

    @classmethod
    def empty(cls, features: int, outputs: int, device: torch.device) -> "Statistics":
        """No data: the posterior is the prior."""
        gram = torch.zeros(features, features, dtype=torch.float64, device=device)
        return cls(gram, gram.new_zeros(features, outputs), gram.new_zeros(outputs), 0)

    @property
    def gram(self) -> Tensor:
        """(k, k) Phi^T Phi."""
        if not self._mirrored:
            self._gram = self._gram.tril() + self._gram.tril(-1).T
            self._mirrored = True
        return self._gram

    @property
    def lower(self) -> Tensor:
        """(k, k), of which only the lower triangle is that of Phi^T Phi."""
        return self._gram

    @torch.no_grad()
    def add(self, features: Tensor, targets: Tensor, weight: float = 1.0, times: Tensor | None = None) -> None:
        """Add rows of features (n, k) and targets (n, Z + 1); weight -1 takes them away again, `times` (n,) says how
        often each occurs."""
        if times is not None:
            root = times.double().sqrt()[:, None]
            features, targets = features * root, targets * root
        gram_accumulate_(self._gram, self.cross, features.to(targets), targets, weight)
        self._mirrored = False
        self.squares += weight * targets.double().square().sum(0)
        self.rows += round(weight) * (len(features) if times is None else int(times.sum()))


class LocalStatistics:
    """The same for a grid of places: sums over N P places and their C outputs, and over N maxima and the reward.

    Features that are the same everywhere enter the places' sums through the others' totals: half of the work."""

    def __init__(self, places: Places, features: int, everywhere: int, device: torch.device) -> None:
        near, outputs = features - everywhere, places.channels
        self._places, self.rows = places, 0
        self.near = Statistics.empty(near, outputs, device)
        self.reward = Statistics.empty(features, 1, device)
        # Of the features that are the same everywhere: with those of the places, with themselves, with the targets.
        self._mixed, self._square, self._cross = (
            self.near.cross.new_zeros(everywhere, n) for n in (near, everywhere, outputs)
        )

    @property
    def lower(self) -> Tensor:
        """(k, k), of which only the lower triangle is the places' Phi^T Phi."""
        near, mixed = self.near.lower, self._mixed
        return torch.cat([torch.cat([near, mixed.T], 1), torch.cat([mixed, self._square], 1)])

    @property
    def cross(self) -> Tensor:
        """(k, C + 1) Phi^T T of the places and of the reward."""
        return torch.cat([torch.cat([self.near.cross, self._cross]), self.reward.cross], 1)

    @property
    def squares(self) -> Tensor:
        """(C + 1,)."""
        return torch.cat([self.near.squares, self.reward.squares])

    @torch.no_grad()
    def add(self, features: LocalFeatures, targets: Tensor, weight: float = 1.0, times: Tensor | None = None) -> None:
        """Add the features of n transitions and their targets [z', r] (n, Z + 1), as `Statistics.add` does."""
        near, own = features.near(), self._places.own(targets[:, :-1])
        each_place = None if times is None else times.repeat_interleave(self._places.count)
        self.near.add(near.flatten(0, 1), own.flatten(0, 1), weight, each_place)
        everywhere = weight * features.everywhere.double().T
        if times is not None:
            everywhere = everywhere * times
        self._mixed += everywhere @ near.sum(1, dtype=torch.float64)
        self._square += self._places.count * everywhere @ features.everywhere.double()
        self._cross += everywhere @ own.sum(1, dtype=torch.float64)
        self.reward.add(features.maxima(), targets[:, -1:].contiguous(), weight, times)
        self.rows = self.reward.rows


AnyStatistics = Statistics | LocalStatistics


def empty_statistics(forward_model: ForwardModel, device: torch.device) -> AnyStatistics:
    """No data, for this model's features and outputs."""
    outputs, features = forward_model.output.weight.shape
    if forward_model.places:
        everywhere = forward_model.gru.hidden_size + forward_model.num_actions if forward_model.skip else 0
        return LocalStatistics(forward_model.places, features, everywhere, device)
    return Statistics.empty(features, outputs, device)


class Stretch(NamedTuple):
    """Consecutive time steps of the stored episodes that last so long: rows of a packed sequence."""

    slots: Tensor  # (n,) where s_t is stored
    inputs: Tensor  # (n, Z + A) [z_t, onehot(a_t)]
    hidden: Tensor  # (n, H) h_t
    next_hidden: Tensor  # (n, H) h_{t+1}


@torch.no_grad()
def walk(models: Models, replay: Replay, latents: Tensor, chunk_rows: int) -> Iterator[Stretch]:
    """All stored episodes from their start, h_0 = 0, in stretches of at most `chunk_rows` rows (at least one step).

    Episodes are packed by length (longest first), so nothing is padded; each stretch is a packed GRU scan.
    """
    forward_model = models.forward_model
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
        z = latents[rows]
        inputs = torch.cat([z, one_hot(replay.actions[rows], forward_model.num_actions, z)], 1)
        states = scan(forward_model, inputs, hidden[: sizes[0]], torch.from_numpy(sizes))
        by_step = states.split(sizes.tolist())
        following = (h[:size] for h, size in zip(by_step, sizes[1:], strict=False))
        yield Stretch(rows, inputs, torch.cat([hidden[: sizes[0]], *following]), states)
        hidden = by_step[-1]
        time += steps


@torch.no_grad()
def buffer_statistics(
    models: Models, replay: Replay, latents: Tensor, chunk_rows: int, execution: Execution = EAGER
) -> AnyStatistics:
    """Features and targets of all stored transitions, streamed: Phi is never materialised."""
    statistics = empty_statistics(models.forward_model, replay.device)
    chunk_rows = max(1, chunk_rows // models.forward_model.rows_per_state)
    if models.forward_model.memoryless:
        rows = distinct_transitions(models, replay, latents, chunk_rows)
    else:
        rows = all_transitions(models, replay, latents, chunk_rows)
    for x, targets, times in rows:
        with execution.autocast():
            phi = models.forward_model.feature_layers(x, linear_tanh)
        statistics.add(phi, targets, times=times)  # type: ignore[arg-type]
    return statistics


def targets_at(replay: Replay, latents: Tensor, slots: Tensor) -> Tensor:
    """[z', r] (n, Z + 1) of the transitions at slots (n,)."""
    following = latents[(slots + 1) % replay.num_slots]
    return torch.cat([following, replay.rewards[slots, None].to(following)], 1)


class Transitions(NamedTuple):
    """Rows of the regression."""

    inputs: Tensor  # (n, H + Z + A) [h', z, onehot(a)]
    targets: Tensor  # (n, Z + 1) [z', r]
    times: Tensor | None = None  # (n,) how often each occurs, if not once


def all_transitions(models: Models, replay: Replay, latents: Tensor, chunk_rows: int) -> Iterator[Transitions]:
    """All stored transitions with the h' of their episodes."""
    for slots, inputs, _, next_hidden in walk(models, replay, latents, chunk_rows):
        yield Transitions(torch.cat([next_hidden, inputs], 1), targets_at(replay, latents, slots))


def distinct_transitions(models: Models, replay: Replay, latents: Tensor, chunk_rows: int) -> Iterator[Transitions]:
    """The stored transitions that differ, without memory: of 15,000 in 500 episodes of DeepSea-30 at most 930."""
    stored, slots = replay.stored_slots(), replay.transition_slots()
    state = stored.new_zeros(replay.num_slots)  # its number: equal states have the same
    state[stored] = firsts(latents, stored)
    following = state[(slots + 1) % replay.num_slots]
    rows = torch.stack([state[slots], replay.actions[slots], following], 1).double()
    rows = torch.cat([rows, replay.rewards[slots, None].double()], 1)
    same = firsts(rows, torch.arange(len(rows), device=rows.device))
    for kept, times in zip(*(x.split(chunk_rows) for x in same.unique(return_counts=True)), strict=True):
        z = latents[slots[kept]]
        hidden = z.new_zeros(len(z), models.forward_model.gru.hidden_size)
        actions = one_hot(replay.actions[slots[kept]], models.forward_model.num_actions, z)
        yield Transitions(torch.cat([hidden, z, actions], 1), targets_at(replay, latents, slots[kept]), times)


def hidden_states(models: Models, replay: Replay, latents: Tensor, chunk_rows: int) -> Tensor:
    """h_t (slots, H) of all stored states but the last of each episode, as playing leads to them."""
    weight = models.forward_model.output.weight
    table = weight.new_zeros(replay.num_slots, models.forward_model.gru.hidden_size)
    if models.forward_model.memoryless:
        return table
    for stretch in walk(models, replay, latents, chunk_rows):
        table[stretch.slots] = stretch.hidden
    return table


Metrics = dict[str, float | Tensor]


@dataclass
class Group:
    """Outputs that share a prior and a noise variance, and hence a covariance."""

    outputs: slice
    prior: float
    noise: float  # the smallest, if it is estimated from data


def check(info: Tensor) -> None:
    """Raise if a factorisation failed; info as in `posterior_factor`."""
    codes = info.reshape(-1).tolist()
    if -1 in codes:
        raise UserError("Training diverged: the posterior's precision matrix is not finite; lower the learning rates.")
    if any(codes):
        raise UserError(f"The posterior's precision matrix is indefinite (minors {codes}): scale the features down.")


def cholesky(precision: Tensor) -> tuple[Tensor, float]:
    """Lower Cholesky factor and the jitter it needed: 0, or 1e-12 of the mean diagonal times 1, 10, 100, ..."""
    one = torch.ones(1, dtype=torch.float64, device=precision.device)
    factors, jitter, info = posterior_factor(precision, one * torch.inf, one)  # no prior, noise 1
    check(info)
    return factors[0], float(jitter)


def inverse_norm(factor: Tensor) -> Tensor:
    """|L^-1|^2 = trace (L L^T)^-1 for a lower factor (k, k), panel by panel: a third of the work of a full solve."""
    identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    panels = [
        torch.linalg.solve_triangular(factor[j:, j:], identity[j:, j : j + PANEL], upper=False).square().sum()
        for j in range(0, len(factor), PANEL)
    ]
    return torch.stack(panels).sum()


def factorised(data: AnyStatistics, priors: Tensor, noises: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`posterior_factor` of each group (g,): of one Gram matrix, or of that of the places and that of their maxima."""
    if isinstance(data, Statistics):
        return posterior_factor(data.lower, priors, noises)
    grams = (data.lower, data.reward.lower)
    parts = [posterior_factor(gram, priors[g : g + 1], noises[g : g + 1]) for g, gram in enumerate(grams)]
    factors, jitter, info = (torch.cat(part) for part in zip(*parts, strict=True))
    return factors, jitter, info


class Posterior:
    """Posterior of the output layer's rows w_j, and draws from it.

    `mean` (Z + 1, k) holds mu_j as rows; `factors` (g, k, k) holds per group of outputs with equal variances, for
    rule exact, the lower Cholesky factor of Sigma^-1, and for rule released the matrix that multiplies the noise."""

    def __init__(self, config: Config, features: int, outputs: int, device: torch.device) -> None:
        self.rule, self.config = config.rule, config.posterior
        p = config.posterior
        self.groups = [
            Group(slice(0, outputs - 1), p.prior_latent, p.noise_latent),
            Group(slice(outputs - 1, outputs), p.prior_reward, p.noise_reward),
        ]
        equal = (p.prior_latent, p.noise_latent) == (p.prior_reward, p.noise_reward) and not p.noise_from_data
        if (self.rule == "released" or equal) and not config.forward.local:  # places and their maximum never share
            self.groups = [Group(slice(0, outputs), p.prior_latent, p.noise_latent)]
        self.sizes = [group.outputs.stop - group.outputs.start for group in self.groups]
        self.mean = torch.zeros(outputs, features, dtype=torch.float64, device=device)
        self.priors = self.mean.new_tensor([group.prior for group in self.groups])
        self.floors = self.mean.new_tensor([group.noise for group in self.groups])
        self.noises = self.floors.clone()
        self.factors = self.mean.new_empty(0, features, features)
        if self.rule != "none":
            self.fit(Statistics.empty(features, outputs, device))

    @torch.no_grad()
    def fit(self, data: AnyStatistics) -> Metrics:
        """Line 9: mu_j and Sigma_j from the data (Eq. 4); returns what is worth logging, still on the device."""
        if self.rule == "released":
            return self._fit_released(data)
        jitter = self._regress(data)
        if self.config.noise_from_data and data.rows:
            self._estimate_noise(data, jitter)
            jitter = self._regress(data)
        metrics: Metrics = {"rows": data.rows, "jitter": jitter.max()}
        for g, group in enumerate(self.groups):
            # Mean predictive variance on the data, trace(Sigma G) / N, where G = noise (Sigma^-1 - ridge I).
            ridge = 1 / group.prior + jitter[g]
            trace = self.noises[g] * (self.mean.shape[1] - ridge * inverse_norm(self.factors[g]))
            metrics |= self._named(g, data, self.noises[g] * ridge, trace)
        return metrics

    def _regress(self, data: AnyStatistics) -> Tensor:
        """Eq. 4 with the present noise variances; returns the jitter (g,) of the factorisation."""
        self.factors, jitter, info = factorised(data, self.priors, self.noises)
        check(info)
        self.mean.copy_(posterior_mean(self.factors, data.cross, self.sizes, self.noises))
        return jitter

    def _estimate_noise(self, data: AnyStatistics, jitter: Tensor) -> None:
        """Noise variances from the residuals, per group, no smaller than configured."""
        ridges = self.noises * (1 / self.priors + jitter)
        residuals = [self._residuals(g, data, ridge).mean() for g, ridge in enumerate(ridges)]
        self.noises = torch.maximum(self.floors, torch.stack(residuals))

    def _rows(self, g: int, data: AnyStatistics) -> int:
        """Rows that the group's regression has."""
        return data.near.rows if isinstance(data, LocalStatistics) and g == 0 else data.rows

    def _residuals(self, g: int, data: AnyStatistics, ridge: Tensor) -> Tensor:
        """Mean squared residuals of the group's outputs.

        The residual is t.t - 2 mu.c + mu.G mu, of which (G + ridge I) mu = c leaves t.t - mu.c - ridge mu.mu."""
        outputs = self.groups[g].outputs
        mean = self.mean[outputs]
        fit = data.squares[outputs] - (mean * data.cross[:, outputs].T).sum(1) - ridge * mean.square().sum(1)
        return (fit / max(1, self._rows(g, data))).clamp(min=0)

    def _fit_released(self, data: AnyStatistics) -> Metrics:
        """The ridge regression of the released code is Eq. 4 with prior 1 / ridge and noise 1."""
        ridge, scale = self.config.released_ridge, self.config.released_scale
        one = torch.ones_like(self.noises)
        factors, jitter, info = factorised(data, one / ridge, one)
        check(info)
        self.mean.copy_(posterior_mean(factors, data.cross, self.sizes, one))
        self.factors = torch.stack([scale * torch.cholesky_inverse(factor) for factor in factors])
        metrics: Metrics = {"rows": data.rows, "jitter": jitter.max()}
        for g, covariance in enumerate(self.factors):
            # trace(C G C) with C = scale A^-1 and G = A - ridge I.
            trace = scale * covariance.trace() - (ridge + jitter[g]) * covariance.square().sum()
            metrics |= self._named(g, data, ridge + jitter[g], trace)
        return metrics

    def _named(self, g: int, data: AnyStatistics, ridge: Tensor, trace: Tensor) -> Metrics:
        """Predictive standard deviation and root mean squared residual, for latents and reward."""
        last, rows = len(self.mean) - 1, max(1, self._rows(g, data))
        spread = (trace / rows).clamp(min=0).sqrt() if data.rows else 0.0
        outputs, residual = self.groups[g].outputs, self._residuals(g, data, ridge)
        metrics: Metrics = {}
        if outputs.start == 0 and last > 0:
            metrics |= {"sd_latent": spread, "residual_latent": residual[:last].mean().sqrt()}
        if outputs.stop == last + 1:
            metrics |= {"sd_reward": spread, "residual_reward": residual[-1].sqrt()}
        return metrics

    @torch.no_grad()
    def absorb(self, features: Tensor, targets: Tensor) -> None:
        """Condition on new rows of features (n, k) and targets (n, Z + 1) without the old ones.

        Valid while the feature map is unchanged, as between two updates, not for a grid of places. Sigma^-1
        gains Phi^T Phi / noise, a rank-n update of its factor; the mean moves by Sigma' Phi^T (T - Phi mu) /
        noise, solved against n right sides only.
        """
        phi = features.to(self.mean)
        innovation = targets.to(self.mean) - phi @ self.mean.T
        if self.rule == "released":
            self._absorb_released(phi, innovation)
        elif self.rule != "none":
            for g, group in enumerate(self.groups):
                check(chol_update_(self.factors[g], phi, 1 / float(self.noises[g])))
                gain = posterior_mean(self.factors[g : g + 1], phi.T, [len(phi)], self.noises[g : g + 1])  # (n, k)
                self.mean[group.outputs] += innovation[:, group.outputs].T @ gain

    def _absorb_released(self, phi: Tensor, innovation: Tensor) -> None:
        """A^-1 = C / scale shrinks by U^T (I + Phi U^T)^-1 U with U = Phi A^-1 (n, k), Woodbury's identity."""
        scale = self.config.released_scale
        inverse = phi @ self.factors[0] / scale
        capacitance = torch.eye(len(phi), dtype=phi.dtype, device=phi.device) + inverse @ phi.T
        gain = torch.cholesky_solve(inverse, cholesky(capacitance)[0])
        self.factors[0] -= scale * inverse.T @ gain
        self.mean += innovation.T @ gain

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> Tensor:
        """Line 10: W~ (Z + 1, k); exact: w = mu + L^-T eps, released: w = mu + eps C."""
        return self.draws(1, generator)[0]

    @torch.no_grad()
    def draws(self, samples: int, generator: torch.Generator) -> Tensor:
        """S models (S, Z + 1, k) from one factor."""
        if self.rule == "mean":
            return self.mean.repeat(samples, 1, 1)
        if self.rule != "released":
            return posterior_sample(self.factors, self.mean, self.sizes, None, samples, generator)
        eps = self.mean.new_empty(samples, *self.mean.shape).normal_(generator=generator)
        noise = [part @ factor for part, factor in zip(eps.split(self.sizes, 1), self.factors, strict=True)]
        return self.mean + torch.cat(noise, 1)

    def state_dict(self) -> dict[str, Any]:
        """Mean, factors and noise variances."""
        return {"mean": self.mean, "factors": self.factors, "noises": self.noises}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.mean.copy_(state["mean"])
        self.factors = state["factors"].to(self.mean.device)
        self.noises.copy_(state["noises"])


def as_model(models: Models, weight: Tensor | None) -> SampledModel:
    """Line 11: the output layer to plan with: a draw, or the trained layer if there is none."""
    output = models.forward_model.output
    if weight is None:
        return SampledModel(output.weight.detach(), output.bias.detach())
    weight = weight.to(output.weight.dtype)
    return SampledModel(weight, weight.new_zeros(len(weight)))
