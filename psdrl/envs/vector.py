"""The one interface that training and evaluation see.

Autoreset is next-step, as in EnvPool and gymnasium: the step that ends an episode returns its final observation;
the following `step` ignores the action of that environment and returns the first observation of a new episode with
`started` set. Such a row is no transition: it is neither stored nor counted.

State: `state()` is that of the last `recv` or `reset`, whatever was sent since, and `restore` continues from it in
another process, bit for bit. It is made of nested dicts, JSON values and NumPy arrays: reading one executes no code.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

State = dict[str, Any]  # nested dicts of JSON values and NumPy arrays


@dataclass(frozen=True)
class EnvSpec:
    """What the agent must know of an environment."""

    name: str
    kind: Literal["image", "vector"]
    shape: tuple[int, ...]  # image: (channels, height, width); vector: (size,)
    dtype: str  # NumPy name of the observations' type
    num_actions: int
    backend: str  # what runs it, for the summary
    grid: tuple[int, int, int] | None = None  # vector: height, width and channels of the grid that was flattened


class _Columns(NamedTuple):
    observation: NDArray  # (N, *shape)
    reward: NDArray[np.float32]  # (N,)
    terminated: NDArray[np.bool_]  # (N,) the observation is an absorbing state
    truncated: NDArray[np.bool_]  # (N,) the episode was cut
    started: NDArray[np.bool_]  # (N,) the row only started a new episode
    over: NDArray[np.bool_]  # (N,) the score is complete: not where a lost life ended the episode and the game goes on
    failed: NDArray[np.bool_]  # (N,) started, because the environment failed: its running episode is to be forgotten


class Step(_Columns):
    """Outcome of one step of N environments; by default every end completes a score, and nothing has failed."""

    __slots__ = ()

    def __new__(
        cls,
        observation: NDArray,
        reward: NDArray[np.float32],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        started: NDArray[np.bool_],
        over: NDArray[np.bool_] | None = None,
        failed: NDArray[np.bool_] | None = None,
    ) -> "Step":
        over = terminated | truncated if over is None else over
        failed = np.zeros(len(started), bool) if failed is None else failed
        return super().__new__(cls, observation, reward, terminated, truncated, started, over, failed)


class VectorEnv(ABC):
    """N environments stepped together."""

    spec: EnvSpec
    num_envs: int

    @abstractmethod
    def reset(self) -> NDArray:
        """First observations (N, *shape)."""

    @abstractmethod
    def send(self, actions: NDArray[np.int64]) -> None:
        """Begin one step of each environment; what runs in threads of its own goes on until `recv`."""

    @abstractmethod
    def recv(self) -> Step:
        """The outcome of the step that `send` began."""

    def step(self, actions: NDArray[np.int64]) -> Step:
        """Take one action in each environment."""
        self.send(actions)
        return self.recv()

    def state(self) -> State | None:
        """The environments as of the last `recv` or `reset`; None if they cannot be restored."""
        return None

    def restore(self, state: State) -> NDArray | None:
        """Continue from `state` in environments made anew, with the same settings: the observations of then (N,
        *shape). None if they do not play as they did: the caller resets, and forgets the running episodes."""
        return None

    def faults(self) -> list[str]:
        """A sentence for each failure of an environment since the last call."""
        return []

    def labels(self) -> dict[str, float]:
        """Numbers that tell the true state of the first environment, by name; none where nobody tells."""
        return {}

    @property
    def groups(self) -> "list[VectorEnv]":
        """Parts that can be sent to and received from on their own, in order of their environments."""
        return [self]

    def render(self) -> NDArray[np.uint8]:
        """Colour picture (height, width, 3) of the first environment; only if made with render=True."""
        raise RuntimeError("This environment was made without render=True.")

    @abstractmethod
    def close(self) -> None:
        """Free what the environments hold."""


class GroupedEnv(VectorEnv):
    """Groups of environments behind one object: the environments of the first group, then those of the second, ..."""

    def __init__(self, groups: list[VectorEnv]) -> None:
        self._groups = groups
        self.spec = groups[0].spec
        self.num_envs = sum(group.num_envs for group in groups)

    @property
    def groups(self) -> list[VectorEnv]:
        return self._groups

    def reset(self) -> NDArray:
        return np.concatenate([group.reset() for group in self._groups])

    def send(self, actions: NDArray[np.int64]) -> None:
        ends = np.cumsum([group.num_envs for group in self._groups])
        for group, part in zip(self._groups, np.split(actions, ends[:-1]), strict=True):
            group.send(part)

    def recv(self) -> Step:
        steps = [group.recv() for group in self._groups]
        return Step(*(np.concatenate(parts) for parts in zip(*steps, strict=True)))

    def state(self) -> State | None:
        states = {str(i): group.state() for i, group in enumerate(self._groups)}
        return None if None in states.values() else states

    def restore(self, state: State) -> NDArray | None:
        if set(state) != {str(i) for i in range(len(self._groups))}:
            return None
        parts = [group.restore(state[str(i)]) for i, group in enumerate(self._groups)]
        restored = [part for part in parts if part is not None]
        return np.concatenate(restored) if len(restored) == len(parts) else None

    def faults(self) -> list[str]:
        return [fault for group in self._groups for fault in group.faults()]

    def render(self) -> NDArray[np.uint8]:
        return self._groups[0].render()

    def close(self) -> None:
        for group in self._groups:
            group.close()
