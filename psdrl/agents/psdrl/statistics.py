"""What Eq. 4 needs of the replay buffer: features and targets of all stored transitions, summed up in float64."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from psdrl.agents.psdrl.deduplicate import firsts
from psdrl.agents.psdrl.grid import Places
from psdrl.agents.psdrl.learning import scan
from psdrl.agents.psdrl.models import ForwardModel, LocalFeatures, Models, one_hot
from psdrl.kernels.linear_tanh import linear_tanh
from psdrl.kernels.posterior import gram_accumulate_
from psdrl.replay.episodes import Replay
from psdrl.runtime.execution import EAGER, Execution


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
def buffer_statistics(models: Models, replay: Replay, latents: Tensor, execution: Execution = EAGER) -> AnyStatistics:
    """Features and targets of all stored transitions, streamed: Phi is never materialised."""
    statistics = empty_statistics(models.forward_model, replay.device)
    chunk_rows = max(1, execution.chunk_rows // models.forward_model.rows_per_state)
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


def hidden_states(models: Models, replay: Replay, latents: Tensor, execution: Execution = EAGER) -> Tensor:
    """h_t (slots, H) of all stored states but the last of each episode, as playing leads to them."""
    weight = models.forward_model.output.weight
    table = weight.new_zeros(replay.num_slots, models.forward_model.gru.hidden_size)
    if models.forward_model.memoryless:
        return table
    for stretch in walk(models, replay, latents, execution.chunk_rows):
        table[stretch.slots] = stretch.hidden
    return table
