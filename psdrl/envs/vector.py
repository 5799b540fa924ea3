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
    def step(self, actions: NDArray[np.int64]) -> Step:
        """Take one action in each environment."""

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

    def step(self, actions: NDArray[np.int64]) -> Step:
        observation, reward, terminated, truncated, _ = self._envs.step(actions)
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
