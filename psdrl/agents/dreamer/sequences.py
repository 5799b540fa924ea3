"""Sequences of stored episodes, as the world model reads them; moments of what was observed."""

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psdrl.replay.episodes import Replay
from psdrl.runtime.device import uploaded


class Sequences(NamedTuple):
    """B sequences of L observations o_t, time first, each with what led to it."""

    frames: Tensor  # (L, B, *shape) o_t
    actions: Tensor  # (L, B) int64: a_{t-1}; anything where `first`
    rewards: Tensor  # (L, B) the reward on entering o_t, as transformed; 0 where an episode begins
    terminated: Tensor  # (L, B) float32: whether o_t is absorbing
    first: Tensor  # (L, B) float32: whether the state starts anew before o_t; always at t = 0


def enough(replay: Replay, length: int, kind: Literal["within", "across"]) -> bool:
    """Whether a sequence of L observations can be drawn."""
    if kind == "across":
        return replay.transitions + len(replay.episodes) >= length
    return any(episode.length + 1 >= length for episode in replay.episodes)


def drawn_slots(
    replay: Replay, batch: int, length: int, kind: Literal["within", "across"], rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Slots (B, L) of consecutive observations, and where episodes begin (B, L).

    within: an episode uniformly among those of L observations or more, then a start uniformly, where the last possible
    one counts L times more. across: an observation uniformly, or the last L of the buffer, whatever ends in them."""
    sizes = np.array([episode.length + 1 for episode in replay.episodes])
    begins = np.cumsum(sizes) - sizes  # of the episodes, counted from the oldest observation
    if kind == "within":
        long = np.flatnonzero(sizes >= length)
        chosen = long[rng.integers(len(long), size=batch)]
        latest = sizes[chosen] - length
        start = begins[chosen] + np.minimum(rng.integers(latest + length + 1), latest)
    else:
        total = int(sizes.sum())
        start = np.minimum(rng.integers(total, size=batch), total - length)
    places = start[:, None] + np.arange(length)
    following = np.minimum(begins.searchsorted(places), len(begins) - 1)
    return (replay.episodes[0].start + places) % replay.num_slots, begins[following] == places


def draw_sequences(
    replay: Replay, batch: int, length: int, kind: Literal["within", "across"], rng: np.random.Generator
) -> Sequences:
    """B sequences of L observations, on the buffer's device."""
    chosen, beginning = drawn_slots(replay, batch, length, kind, rng)
    slots = uploaded(torch.from_numpy(np.ascontiguousarray(chosen.T)), replay.device)
    begins = uploaded(torch.from_numpy(np.ascontiguousarray(beginning.T.astype(np.float32))), replay.device)
    before = (slots - 1) % replay.num_slots  # its action, reward and end belong to this observation, within an episode
    first = begins.clone()
    first[0] = 1.0
    return Sequences(
        replay.frames(slots),
        replay.actions[before],
        replay.rewards[before] * (1 - begins),
        replay.terminated[before] * (1 - begins),
        first,
    )


class Moments:
    """Mean and variance of all vectors that were seen, in float64."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = 0
        self.mean, self.squares = np.zeros(shape), np.zeros(shape)  # squares: summed, of distances from the mean

    def see(self, observations: NDArray) -> None:
        """Take vectors (n, *shape) in, by the update of Chan et al."""
        rows = observations.astype(np.float64)
        count, mean = len(rows), rows.mean(0)
        shift, total = mean - self.mean, self.count + count
        self.squares += np.square(rows - mean).sum(0) + np.square(shift) * self.count * count / total
        self.mean += shift * count / total
        self.count = total

    def deviation(self) -> NDArray[np.float64]:
        """Standard deviations; 1 for what has hardly changed yet."""
        found = np.sqrt(self.squares / max(1, self.count))
        return np.where(found > 1e-4, found, 1.0)

    def state_dict(self) -> dict[str, Any]:
        """Count, mean and squares."""
        return {"count": self.count, "mean": torch.from_numpy(self.mean), "squares": torch.from_numpy(self.squares)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.count = state["count"]
        self.mean, self.squares = (state[name].cpu().numpy().copy() for name in ("mean", "squares"))
