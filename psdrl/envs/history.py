"""What pools that run in C++ have no state for: how often each environment was reset, and its actions since.

Without sticky actions inside the emulator, these and the seed determine an Atari game."""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from psdrl.envs.vector import EnvSpec, State, Step


class History:
    """Resets and the running episode's actions of N environments, as of the last outcome received."""

    def __init__(self, num_envs: int) -> None:
        self.resets = np.zeros(num_envs, np.int64)
        self.actions: list[list[int]] = [[] for _ in range(num_envs)]
        self.observation: NDArray | None = None
        self._checksums = [0] * num_envs

    def begin(self, observation: NDArray, again: bool = True) -> None:
        """All environments were reset; not `again`: from their seeds."""
        self.resets = self.resets + 1 if again else np.ones_like(self.resets)
        for i, frame in enumerate(observation):
            self._start(i, frame)
        self.observation = observation

    def add(self, actions: NDArray, step: Step) -> None:
        """One step of all environments."""
        self.resets += step.started
        for i, frame in enumerate(step.observation):
            if step.started[i]:
                self._start(i, frame)
            else:
                self.extend(i, int(actions[i]), frame, float(step.reward[i]))
        self.observation = step.observation

    def extend(self, env: int, action: int, frame: NDArray, reward: float) -> None:
        """One transition of one environment."""
        self.actions[env].append(action)
        self._checksums[env] = zlib.crc32(frame.data, zlib.crc32(struct.pack("f", reward), self._checksums[env]))

    def _start(self, env: int, frame: NDArray) -> None:
        self.actions[env], self._checksums[env] = [], zlib.crc32(frame.data)

    def start(self, env: int, resets: int, frame: NDArray) -> None:
        """One environment was reset for the `resets`-th time."""
        self.resets[env] = resets
        self._start(env, frame)

    def state(self) -> State:
        """All of it; the observation is in the checksums."""
        return {
            "resets": self.resets.copy(),
            "lengths": np.array([len(actions) for actions in self.actions]),
            "actions": np.array([action for actions in self.actions for action in actions], np.int32),
            "checksums": list(self._checksums),
        }

    def same(self, state: State) -> bool:
        """Whether all environments were played as `state` says and showed what they showed then."""
        own = self.state()
        return own["checksums"] == list(state["checksums"]) and np.array_equal(own["resets"], state["resets"])

    @staticmethod
    def episodes(state: State) -> list[NDArray[np.int32]]:
        """The actions of each environment's running episode."""
        return np.split(state["actions"], np.cumsum(state["lengths"])[:-1])


def fits(state: State, spec: EnvSpec, num_envs: int) -> bool:
    """Whether this is a state of so many environments of this game: EnvPool crashes on actions that a game has not."""
    lengths, actions = np.asarray(state["lengths"]), np.asarray(state["actions"])
    return (
        state["game"] == spec.name
        and len(lengths) == len(state["resets"]) == num_envs
        and bool((lengths >= 0).all() and (np.asarray(state["resets"]) >= 1).all())
        and int(lengths.sum()) == len(actions)
        and bool(((actions >= 0) & (actions < spec.num_actions)).all())
    )
