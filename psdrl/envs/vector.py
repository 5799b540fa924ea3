"""The one interface that training and evaluation see.

Autoreset is next-step, as in EnvPool and gymnasium: the step that ends an episode returns its final observation;
the following `step` ignores the action of that environment and returns the first observation of a new episode with
`started` set. Such a row is no transition: it is neither stored nor counted.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray


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


class Step(NamedTuple):
    """Outcome of one step of N environments."""

    observation: NDArray  # (N, *shape)
    reward: NDArray[np.float32]  # (N,)
    terminated: NDArray[np.bool_]  # (N,) the observation is an absorbing state
    truncated: NDArray[np.bool_]  # (N,) the episode was cut
    started: NDArray[np.bool_]  # (N,) the row only started a new episode


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


class GymVector(VectorEnv):
    """gymnasium environments, stepped one after another in this process."""

    def __init__(self, spec: EnvSpec, envs: gymnasium.vector.SyncVectorEnv, seeds: list[int]) -> None:
        self.spec, self.num_envs = spec, envs.num_envs
        self._envs, self._seeds = envs, seeds
        self._done = np.zeros(self.num_envs, bool)

    def reset(self) -> NDArray:
        self._done[:] = False
        observation, _ = self._envs.reset(seed=self._seeds)  # type: ignore[arg-type]
        return self._shaped(observation)

    def _shaped(self, observation: NDArray) -> NDArray:
        return np.asarray(observation, self.spec.dtype).reshape(self.num_envs, *self.spec.shape)

    def send(self, actions: NDArray[np.int64]) -> None:
        self._actions = actions

    def recv(self) -> Step:
        observation, reward, terminated, truncated, _ = self._envs.step(self._actions)
        started = self._done
        self._done = terminated | truncated
        return Step(
            self._shaped(observation),
            np.asarray(reward, np.float32),
            terminated,
            truncated,
            started,
        )

    def render(self) -> NDArray[np.uint8]:
        frames = self._envs.render()
        if frames is None or frames[0] is None:
            raise RuntimeError("This environment was made without render=True.")
        return np.asarray(frames[0], np.uint8)

    def close(self) -> None:
        self._envs.close()


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

    def render(self) -> NDArray[np.uint8]:
        return self._groups[0].render()

    def close(self) -> None:
        for group in self._groups:
            group.close()
