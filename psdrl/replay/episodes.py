"""Replay buffer: whole episodes, first in, first out; each observation is stored once.

An episode of n transitions takes n + 1 consecutive slots of a ring: slot i holds observation s_i and, but for the
last, the action, reward and termination that followed it. s_{i+1} is the next slot, so nothing is stored twice.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psdrl.runtime.device import is_gpu, pinned_empty, uploaded


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


@dataclass
class _Open:
    """An episode that has not ended; it is copied into the ring when it does."""

    observations: list[NDArray] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)


class Replay:
    """At most `capacity` transitions and 9/8 as many slots: a hard bound on memory, besides the running episodes.

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
        self.num_slots = capacity + max(1, capacity // 8)
        slots, kind = (self.num_slots, *shape), getattr(torch, dtype)
        self.on_device = on_device(where, math.prod(slots) * kind.itemsize, self.device)
        empty = torch.empty(slots, dtype=kind, device=device) if self.on_device else pinned_empty(slots, kind)
        self.observations = empty.zero_()
        self.actions = torch.zeros(self.num_slots, dtype=torch.int64, device=device)
        self.rewards = torch.zeros(self.num_slots, device=device)
        self.terminated = torch.zeros(self.num_slots, device=device)
        self.episodes: deque[Episode] = deque()
        self.transitions = 0
        self._head = 0  # next free slot
        self._open = [_Open() for _ in range(num_envs)]

    def frames(self, slots: Tensor) -> Tensor:
        """Observations (..., *shape) of slots (...), on the device."""
        if self.on_device:
            return self.observations[slots]
        # Fresh staging each time: PyTorch's pinned allocator keeps it from reuse until the copy has happened.
        staging = pinned_empty((slots.numel(), *self.observations.shape[1:]), self.observations.dtype)
        torch.index_select(self.observations, 0, slots.flatten().cpu(), out=staging)
        return staging.to(self.device, non_blocking=True).view(*slots.shape, *staging.shape[1:])

    def start(self, env: int, observation: NDArray) -> None:
        """A new episode of environment `env` begins; an unfinished one is forgotten."""
        self._open[env] = _Open([np.array(observation, self._dtype)])

    def add(
        self, env: int, action: int, reward: float, observation: NDArray, terminated: bool, truncated: bool
    ) -> None:
        """One transition of environment `env`; its episode is stored when it ends. Truncation is not termination."""
        running = self._open[env]
        running.observations.append(np.array(observation, self._dtype))
        running.actions.append(action)
        running.rewards.append(reward)
        if terminated or truncated:
            self._store(running, terminated)
            self._open[env] = _Open()

    def _store(self, episode: _Open, terminated: bool) -> None:
        length = min(len(episode.actions), self.capacity, self.num_slots - 1)  # a longer one keeps its end
        while self.episodes and (
            self.transitions + length > self.capacity or self._used() + length + 1 > self.num_slots
        ):
            self.transitions -= self.episodes.popleft().length
        slots = (self._head + torch.arange(length + 1)) % self.num_slots
        frames = torch.from_numpy(np.stack(episode.observations[-length - 1 :]))
        self.observations[slots] = frames.to(self.observations.device)
        self.actions[slots[:-1]] = torch.tensor(episode.actions[-length:], device=self.device)
        self.rewards[slots[:-1]] = torch.tensor(episode.rewards[-length:], device=self.device, dtype=torch.float32)
        self.terminated[slots] = 0.0
        self.terminated[slots[-2]] = float(terminated)
        self.episodes.append(Episode(self._head, length))
        self.transitions += length
        self._head = (self._head + length + 1) % self.num_slots

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

    def state_dict(self) -> dict[str, Any]:
        """Stored episodes, oldest first; running episodes are not part of it."""
        slots = self.stored_slots()
        fields = ("observations", "actions", "rewards", "terminated")
        tensors: dict[str, Tensor] = {name: getattr(self, name) for name in fields}
        return {name: tensor[slots.to(tensor.device)].cpu() for name, tensor in tensors.items()} | {
            "lengths": [episode.length for episode in self.episodes]
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave; running episodes are forgotten."""
        count = len(state["actions"])
        for name in ("observations", "actions", "rewards", "terminated"):
            getattr(self, name)[:count].copy_(state[name])
        self.episodes.clear()
        start = 0
        for length in state["lengths"]:
            self.episodes.append(Episode(start, length))
            start += length + 1
        self._head = start % self.num_slots
        self.transitions = sum(state["lengths"])
        self._open = [_Open() for _ in self._open]

    def transition_slots(self) -> Tensor:
        """The used slots that hold a transition, oldest episode first: all but the last of each episode."""
        ends = torch.tensor([episode.length + 1 for episode in self.episodes]).cumsum(0) - 1
        kept = torch.ones(self._used(), dtype=torch.bool)
        kept[ends] = False
        return self.stored_slots()[kept.to(self.device)]

    def stored_slots(self) -> Tensor:
        """All used slots, oldest episode first: length + 1 per episode."""
        start = self.episodes[0].start if self.episodes else 0
        return (start + torch.arange(self._used(), device=self.device)) % self.num_slots
