"""Replay of single transitions for model-free agents: each frame is stored once, stacks are made when sampling.

Every environment has a ring of slots. A slot holds a frame and, unless an episode ends there, the action, reward,
termination and mask that followed it; the next frame is in the next slot. An episode of n transitions takes n + 1
slots: the final observation is stored too, so a truncated episode bootstraps from what was really seen last.
"""

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psdrl.replay.episodes import on_device
from psdrl.replay.rows import Rings, Rows, Span, columns, put, taken, wholes
from psdrl.runtime.device import pinned_empty, uploaded

Where = Literal["auto", "device", "host", "pinned"]
_FIELDS = ("actions", "rewards", "terminated", "masks", "followed", "before")


class Transitions(NamedTuple):
    """B transitions; the stacks of s and s' share all frames but one each."""

    frames: Tensor  # (B, stack + 1, *shape): the stack of s, oldest first, and then the frame of s'
    actions: Tensor  # (B,) int64
    rewards: Tensor  # (B,) float32
    terminated: Tensor  # (B,) float32: whether s' is absorbing; truncation does not count
    masks: Tensor  # (B, heads) float32: which heads may learn from it


class FrameReplay(Rings):
    """At most `capacity` transitions, shared equally by the environments; the oldest leave first, one by one.

    0.5% more slots hold the episodes' last frames: 1e6 transitions of 84 x 84 take 7.09 GB. Where episodes are shorter
    than 200 steps the slots bind first, and fewer transitions are kept. The arrays are zeros, which the operating
    system provides page by page as they are written; pinned ones are taken at once.

    where: the frames lie on the device, in host memory or in pinned host memory; auto: on the device if they take less
    than a quarter of its free memory. Everything else stays on the host, where transitions are written one by one.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        shape: tuple[int, ...],
        dtype: str,
        stack: int = 1,
        heads: int = 0,
        device: torch.device | str = "cpu",
        where: Where = "auto",
    ) -> None:
        self.capacity, self.num_envs, self.stack, self.heads = capacity, num_envs, stack, heads
        self.device, self._dtype = torch.device(device), np.dtype(dtype)
        self.share = math.ceil(capacity / num_envs)  # transitions of one environment
        # The frames before the oldest transition must outlive theirs, and the newest frame has no transition yet.
        self.ring = self.ring_slots = self.share + self.share // 200 + stack
        slots, kind = num_envs * self.ring, getattr(torch, dtype)
        size = slots * math.prod(shape) * kind.itemsize
        self.on_device = on_device("host" if where == "pinned" else where, size, self.device)
        if where == "pinned" and not self.on_device:
            self.frames = pinned_empty((slots, *shape), kind).zero_()
        elif self.on_device and self.device.type != "cpu":
            self.frames = torch.zeros((slots, *shape), dtype=kind, device=self.device)
        else:  # torch.zeros would write all of it now
            self.frames = torch.from_numpy(np.zeros((slots, *shape), self._dtype))
        self.actions = np.zeros(slots, np.int64)
        self.rewards = np.zeros(slots, np.float32)
        self.terminated = np.zeros(slots, bool)
        self.masks = np.zeros((slots, -(-heads // 8)), np.uint8)  # a bit per head
        self.followed = np.zeros(slots, bool)  # whether the slot has a transition
        self.before = np.zeros(slots, np.uint8)  # earlier frames of its episode, at most stack - 1: what a stack shows
        self.written = np.zeros(num_envs, np.int64)  # slots written so far; the next one is written % ring
        self.live = np.zeros(num_envs, np.int64)  # newest slots that are sampled from
        self.count = np.zeros(num_envs, np.int64)  # transitions among them
        self.begun = np.zeros(num_envs, np.int64)  # number of the running episode's first slot
        self.discarded: list[list[tuple[int, int]]] = [[] for _ in range(num_envs)]  # slots, from and to before

    @property
    def transitions(self) -> int:
        """Transitions that can be sampled."""
        return int(self.count.sum())

    def start(self, env: int, observation: NDArray) -> None:
        """A new episode of environment `env`; one that runs ends here, as if truncated, with what it has."""
        self.begun[env] = self.written[env]
        self._push(env, observation, 0)

    def discard(self, env: int) -> None:
        """Forget the running episode of environment `env`, which has failed. Its slots stay, as rows of a checkpoint
        never change; nothing is sampled from them."""
        first, last = int(self.begun[env]), int(self.written[env])
        oldest = last - int(self.live[env])
        self.discarded[env] = [gone for gone in self.discarded[env] if gone[1] > oldest] + [(first, last)]
        self._apply_discarded(env)

    def _apply_discarded(self, env: int) -> None:
        newest = np.arange(self.written[env] - self.live[env], self.written[env])
        for first, last in self.discarded[env]:
            self.followed[self._slot(env, newest[(newest >= first) & (newest < last)])] = False
        self.count[env] = self.followed[self._slot(env, newest)].sum()

    def add(
        self,
        env: int,
        action: int,
        reward: float,
        observation: NDArray,
        terminated: bool,
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """One transition of environment `env`, which can be sampled at once; without a mask all heads learn from it."""
        slot = self._slot(env, self.written[env] - 1)
        self.actions[slot], self.rewards[slot], self.terminated[slot] = action, reward, terminated
        self.masks[slot] = np.packbits(np.ones(self.heads, bool) if mask is None else mask)
        self.followed[slot] = True
        self.count[env] += 1
        self._push(env, observation, min(int(self.before[slot]) + 1, self.stack - 1))

    def _push(self, env: int, observation: NDArray, before: int) -> None:
        """Forget what the frame displaces, and store it."""
        while self.count[env] > self.share or self.live[env] > self.ring - self.stack:
            self.count[env] -= self.followed[self._slot(env, self.written[env] - self.live[env])]
            self.live[env] -= 1
        slot = self._slot(env, self.written[env])
        frame = torch.from_numpy(np.ascontiguousarray(observation, self._dtype))
        self.frames[slot] = uploaded(frame, self.frames.device)
        self.followed[slot], self.before[slot] = False, before
        self.written[env] += 1
        self.live[env] += 1

    def _slot(self, env: Any, place: Any) -> Any:
        """Index of an environment's slot that was written as number `place`."""
        return env * self.ring + place % self.ring

    def sample(self, batch: int, rng: np.random.Generator) -> Transitions:
        """B transitions, uniformly with replacement."""
        ends = self.live.cumsum()
        drawn = np.empty(0, np.int64)
        while len(drawn) < batch:  # final frames are drawn in vain: at most every second slot is one
            place = rng.integers(ends[-1], size=batch - len(drawn))
            env = ends.searchsorted(place, "right")
            slots = self._slot(env, self.written[env] - ends[env] + place)
            drawn = np.append(drawn, slots[self.followed[slots]])
        return self._read(drawn)

    def _read(self, slots: NDArray[np.int64]) -> Transitions:
        """The transitions at these slots (B,)."""
        env, place = slots // self.ring, slots % self.ring
        back = np.arange(self.stack - 1, -2, -1)  # stack - 1, ..., 0, -1: how far back each frame lies
        window = self._slot(env[:, None], place[:, None] - back)
        missing = uploaded(torch.from_numpy(back > self.before[slots][:, None]), self.device)
        frames = self._gather(torch.from_numpy(window))
        missing = missing.view(*missing.shape, *[1] * (frames.ndim - 2))
        masks = np.unpackbits(self.masks[slots], axis=1, count=self.heads)
        small = (self.actions[slots], self.rewards[slots], self.terminated[slots].astype(np.float32))
        columns = (uploaded(torch.from_numpy(x), self.device) for x in (*small, masks.astype(np.float32)))
        return Transitions(frames.masked_fill(missing, 0), *columns)

    def _gather(self, slots: Tensor) -> Tensor:
        """Frames (..., *shape) of slots (...), on the device."""
        if self.on_device:
            return self.frames[uploaded(slots, self.device)]
        # Fresh staging each time: PyTorch's pinned allocator keeps it from reuse until the copy has happened.
        staging = pinned_empty((slots.numel(), *self.frames.shape[1:]), self.frames.dtype)
        torch.index_select(self.frames, 0, slots.flatten(), out=staging)
        return staging.to(self.device, non_blocking=True).view(*slots.shape, *self.frames.shape[1:])

    def spans(self) -> list[Span]:
        """A ring per environment: what can be sampled and the frames before it; the newest waits for its action."""
        first = np.maximum(0, self.written - self.live - (self.stack - 1)).tolist()
        ends = self.written.tolist()
        return [Span(begin, max(begin, end - 1), end) for begin, end in zip(first, ends, strict=True)]

    def _columns(self, env: int) -> Rows:
        """The ring of an environment, not copied."""
        part = slice(env * self.ring, (env + 1) * self.ring)
        return {"frames": self.frames[part], **{name: torch.from_numpy(getattr(self, name)[part]) for name in _FIELDS}}

    def rows(self, ring: int, first: int, last: int) -> Rows:
        """A copy of an environment's slots."""
        return {name: taken(column, first, last) for name, column in self._columns(ring).items()}

    def load_rows(self, ring: int, first: int, rows: Rows) -> None:
        """Put an environment's slots back."""
        columns(rows, ("frames", *_FIELDS))
        if (rows["before"].long() >= self.stack).any():
            raise ValueError(f"a slot of the replay buffer belongs to a stack of more than {self.stack} frames")
        for name, column in self._columns(ring).items():
            put(column, first, rows[name])
        self._apply_discarded(ring)

    def counters(self) -> dict[str, Any]:
        """How far each environment's ring is."""
        gone = [[list(slots) for slots in env] for env in self.discarded]
        return {
            "written": self.written.tolist(),
            "live": self.live.tolist(),
            "begun": self.begun.tolist(),
            "discarded": gone,
        }

    def load_counters(self, counters: dict[str, Any]) -> None:
        """Restore how far the rings are; running episodes go on with the next `add`."""
        if len(counters["written"]) != self.num_envs:
            there = len(counters["written"])
            raise ValueError(f"the replay buffer has {there} environments, this run {self.num_envs}")
        written = wholes(counters["written"], self.num_envs, 0, 2**62, "the number of slots written")
        live = wholes(counters["live"], self.num_envs, 0, self.ring - self.stack + 1, "the number of slots in use")
        if any(map(int.__gt__, live, written)):
            raise ValueError("an environment has more slots in use than were written")
        begun = wholes(counters["begun"], self.num_envs, 0, 2**62, "the start of a running episode")
        pairs = [[wholes(slots, 2, 0, 2**62, "discarded slots") for slots in env] for env in counters["discarded"]]
        if len(pairs) != self.num_envs:
            raise ValueError(f"slots of {len(pairs)} environments are discarded, this run has {self.num_envs}")
        self.discarded = [[(first, last) for first, last in env] for env in pairs]
        self.begun = np.array(begun, np.int64)
        self.written, self.live = np.array(written, np.int64), np.array(live, np.int64)
        self.count[:] = 0
