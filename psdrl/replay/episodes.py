"""Replay buffer: whole episodes, first in, first out; each observation is stored once.

An episode of n transitions takes n + 1 consecutive slots of a ring: slot i holds observation s_i and, but for the
last, the action, reward and termination that followed it. s_{i+1} is the next slot, so nothing is stored twice.
"""

import math
from collections import deque
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psdrl.replay.rows import Rings, Rows, Span, columns, put, taken, whole, wholes
from psdrl.runtime.device import is_gpu, pinned_empty, uploaded

FIELDS = ("observations", "actions", "rewards", "terminated")
RUNNING = ("observations", "actions", "rewards")  # of a running episode


Slots = Tensor | slice  # slots; consecutive ones as a slice, which copies nothing


def parts(rows: Slots, size: int) -> Iterator[Slots]:
    """The same in parts of at most `size`."""
    if isinstance(rows, slice):
        yield from (slice(i, min(i + size, rows.stop)) for i in range(rows.start, rows.stop, size))
    else:
        yield from rows.split(size)


class Batch(NamedTuple):
    """B sequences of L consecutive transitions, none of which crosses an episode's end."""

    slots: Tensor  # (B, L + 1) where the observations s_0 ... s_L are stored
    actions: Tensor  # (B, L) int64
    rewards: Tensor  # (B, L) float32, as transformed
    terminated: Tensor  # (B, L) float32: delta of Eq. 3, whether s_{t+1} is absorbing


class Episode(NamedTuple):
    """Where a stored episode lies: `length` transitions from slot `start` on, modulo the ring."""

    start: int
    length: int


def free_memory(device: torch.device) -> int:
    """Free bytes of a CUDA device."""
    return torch.cuda.mem_get_info(device)[0]


def on_device(where: Literal["auto", "device", "host"], size: int, device: torch.device) -> bool:
    """Whether `size` bytes of frames are to lie on the device, by `replay.device`; a CPU's memory is the host's."""
    if not is_gpu(device) or where != "auto":
        return not is_gpu(device) or where == "device"
    return size < free_memory(device) / 4


class _Open:
    """An episode that has not ended; it is copied into the ring when it does. Of a long one, its end is kept."""

    def __init__(self, capacity: int) -> None:
        self.observations: deque[NDArray] = deque(maxlen=capacity + 1)
        self.actions: deque[int] = deque(maxlen=capacity)
        self.rewards: deque[float] = deque(maxlen=capacity)


class Replay(Rings):
    """At most `capacity` transitions and 9/8 as many slots: a hard bound on memory, besides the running episodes, of
    which at most `capacity` transitions each are kept.

    Observations are read with `frames`; they lie on the device, or in host memory (`where`).
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        shape: tuple[int, ...],
        dtype: str,
        device: torch.device | str = "cpu",
        where: Literal["auto", "device", "host"] = "auto",
    ) -> None:
        self.capacity, self._dtype, self.device = capacity, np.dtype(dtype), torch.device(device)
        # Each episode needs one slot more than it has transitions; with episodes under 8 steps the slots bind first.
        self.num_slots = self.ring_slots = capacity + max(1, capacity // 8)
        slots, kind = (self.num_slots, *shape), getattr(torch, dtype)
        self.on_device = on_device(where, math.prod(slots) * kind.itemsize, self.device)
        empty = torch.empty(slots, dtype=kind, device=device) if self.on_device else pinned_empty(slots, kind)
        self.observations = empty.zero_()
        self.actions = torch.zeros(self.num_slots, dtype=torch.int64, device=device)
        self.rewards = torch.zeros(self.num_slots, device=device)
        self.terminated = torch.zeros(self.num_slots, device=device)
        self.episodes: deque[Episode] = deque()
        self.transitions = 0
        self._written = 0  # slots written so far; the next one is written % num_slots
        self._open = [_Open(capacity) for _ in range(num_envs)]
        self._seen = [0] * num_envs  # observations of each environment so far

    def frames(self, slots: Slots) -> Tensor:
        """Observations (..., *shape) of slots (...), on the device; those of a slice are not to be written to."""
        if self.on_device or isinstance(slots, slice):
            return self.observations[slots]
        # Fresh staging each time: PyTorch's pinned allocator keeps it from reuse until the copy has happened.
        staging = pinned_empty((slots.numel(), *self.observations.shape[1:]), self.observations.dtype)
        torch.index_select(self.observations, 0, slots.flatten().cpu(), out=staging)
        return staging.to(self.device, non_blocking=True).view(*slots.shape, *staging.shape[1:])

    def start(self, env: int, observation: NDArray) -> None:
        """A new episode of environment `env` begins; an unfinished one is forgotten."""
        self._open[env] = _Open(self.capacity)
        self._open[env].observations.append(np.array(observation, self._dtype))
        self._seen[env] += 1

    def add(
        self, env: int, action: int, reward: float, observation: NDArray, terminated: bool, truncated: bool
    ) -> None:
        """One transition of environment `env`; its episode is stored when it ends. Truncation is not termination."""
        running = self._open[env]
        running.observations.append(np.array(observation, self._dtype))
        running.actions.append(action)
        running.rewards.append(reward)
        self._seen[env] += 1
        if terminated or truncated:
            self._store(running, terminated)
            self._open[env] = _Open(self.capacity)

    def _store(self, episode: _Open, terminated: bool) -> None:
        length = len(episode.actions)
        while self.episodes and (
            self.transitions + length > self.capacity or self._used() + length + 1 > self.num_slots
        ):
            self.transitions -= self.episodes.popleft().length
        slots = (self._written + torch.arange(length + 1)) % self.num_slots
        frames = torch.from_numpy(np.stack(episode.observations))
        self.observations[slots] = frames.to(self.observations.device)
        self.actions[slots[:-1]] = torch.tensor(list(episode.actions), device=self.device)
        self.rewards[slots[:-1]] = torch.tensor(list(episode.rewards), device=self.device, dtype=torch.float32)
        self.terminated[slots] = 0.0
        self.terminated[slots[-2]] = float(terminated)
        self.episodes.append(Episode(self._written % self.num_slots, length))
        self.transitions += length
        self._written += length + 1

    def _used(self) -> int:
        return self.transitions + len(self.episodes)

    def sequence_length(self, length: int) -> int:
        """L, or the length of the shortest episode if no episode has L steps."""
        lengths = [episode.length for episode in self.episodes]
        return length if max(lengths) >= length else min(lengths)

    def sample(self, batch: int, length: int, rng: np.random.Generator, even_ends: bool = False) -> Batch:
        """B sequences: an episode uniformly among those of at least L steps, a start uniformly within it; with
        `even_ends` from L - 1 steps before it to its last step, and then moved inside."""
        length = self.sequence_length(length)
        episodes = np.array([episode for episode in self.episodes if episode.length >= length])
        chosen = episodes[rng.integers(len(episodes), size=batch)]
        latest = chosen[:, 1] - length
        begin = rng.integers(1 - length, chosen[:, 1]).clip(0, latest) if even_ends else rng.integers(latest + 1)
        starts = chosen[:, 0] + begin
        slots = uploaded(torch.from_numpy((starts[:, None] + np.arange(length + 1)) % self.num_slots), self.device)
        now = slots[:, :-1]
        return Batch(slots, self.actions[now], self.rewards[now], self.terminated[now])

    def spans(self) -> list[Span]:
        """Ring 0: the stored episodes, which never change; one ring more per environment: its running episode, whose
        last row waits for its action."""
        stored = Span(self._written - self._used(), self._written, self._written)
        running = (
            Span(seen - len(episode.observations), seen - bool(episode.observations), seen)
            for seen, episode in zip(self._seen, self._open, strict=True)
        )
        return [stored, *running]

    def rows(self, ring: int, first: int, last: int) -> Rows:
        """A copy of stored slots, or of a running episode; there a last row has no action yet: 0."""
        if ring == 0:
            return {name: taken(getattr(self, name), first, last) for name in FIELDS}
        episode, before = self._open[ring - 1], self._seen[ring - 1]
        part = slice(first - before + len(episode.observations), last - before + len(episode.observations))
        frames = [np.empty((0, *self.observations.shape[1:]), self._dtype), *(x[None] for x in episode.observations)]
        kinds = (torch.int64, torch.float64)
        small = ([*episode.actions, 0][part], [*episode.rewards, 0.0][part])
        return {
            "observations": torch.from_numpy(np.concatenate([frames[0], *frames[1:][part]])),
            **{name: torch.tensor(x, dtype=kind) for name, x, kind in zip(RUNNING[1:], small, kinds, strict=True)},
        }

    def load_rows(self, ring: int, first: int, rows: Rows) -> None:
        """Put rows back; those of a running episode come in order, without gaps."""
        if ring == 0:
            columns(rows, FIELDS)
            for name in FIELDS:
                put(getattr(self, name), first, rows[name])
            return
        episode, span = self._open[ring - 1], self.spans()[ring]
        count = columns(rows, RUNNING)
        wanted = (self.observations.dtype, torch.int64, torch.float64)
        if (
            tuple(rows[name].dtype for name in RUNNING) != wanted
            or rows["observations"].shape[1:] != (self.observations.shape[1:])
        ):
            raise ValueError("the rows of a running episode are of another kind")
        for i in range(count):
            place = first + i - span.first
            episode.observations[place] = rows["observations"][i].numpy().copy()
            if first + i < span.end - 1:
                episode.actions[place] = int(rows["actions"][i])
                episode.rewards[place] = float(rows["rewards"][i])

    def counters(self) -> dict[str, Any]:
        """Where stored and running episodes lie."""
        return {
            "written": self._written,
            "lengths": [episode.length for episode in self.episodes],
            "seen": list(self._seen),
            "running": [len(episode.observations) for episode in self._open],
        }

    def load_counters(self, counters: dict[str, Any]) -> None:
        """Restore where episodes lie; rows keep what they had until `load_rows`."""
        num_envs, most = len(self._open), 2**62
        lengths = wholes(counters["lengths"], None, 1, self.capacity, "an episode's length")
        transitions, used = sum(lengths), sum(lengths) + len(lengths)
        written = whole(counters["written"], used, most, "the number of slots written")
        if transitions > self.capacity or used > self.num_slots:
            raise ValueError(f"the replay buffer has {transitions} transitions, this run at most {self.capacity}")
        seen = wholes(counters["seen"], num_envs, 0, most, "observations of the environments")
        running = wholes(counters["running"], num_envs, 0, self.capacity + 1, "the length of a running episode")
        if any(map(int.__gt__, running, seen)):
            raise ValueError("a running episode has more observations than its environment gave")
        self._written, self._seen, self.transitions = written, seen, transitions
        self.episodes.clear()
        start = written - used
        for length in lengths:
            self.episodes.append(Episode(start % self.num_slots, length))
            start += length + 1
        self._open = [_Open(self.capacity) for _ in running]
        nothing = np.zeros(self.observations.shape[1:], self._dtype)
        for episode, count in zip(self._open, running, strict=True):
            episode.observations.extend([nothing] * count)
            episode.actions.extend([0] * (count - 1))
            episode.rewards.extend([0.0] * (count - 1))

    def transition_slots(self) -> Tensor:
        """The used slots that hold a transition, oldest episode first: all but the last of each episode."""
        ends = torch.tensor([episode.length + 1 for episode in self.episodes]).cumsum(0) - 1
        kept = torch.ones(self._used(), dtype=torch.bool)
        kept[ends] = False
        return self.stored_slots()[kept.to(self.device)]

    def stored_rows(self) -> Slots:
        """`stored_slots`, on a CPU as a slice until they go over the ring's end."""
        start, used = self.episodes[0].start if self.episodes else 0, self._used()
        if is_gpu(self.device) or start + used > self.num_slots:
            return self.stored_slots()
        return slice(start, start + used)

    def stored_slots(self) -> Tensor:
        """All used slots, oldest episode first: length + 1 per episode."""
        start = self.episodes[0].start if self.episodes else 0
        return (start + torch.arange(self._used(), device=self.device)) % self.num_slots
