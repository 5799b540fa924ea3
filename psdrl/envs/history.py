"""What pools that run in C++ have no state for: how often each environment was reset, and its actions since.

Without sticky actions inside the emulator, these and the seed determine most Atari games. In some the console's memory
outlives a reset, so that a game depends on all that was played before it: for these every action since the seed is
kept, a byte each."""

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
        self._all: bytearray | None = None  # every row of actions since the seed; None: not known

    def begin(self, observation: NDArray, again: bool = True) -> None:
        """All environments were reset; not `again`: from their seeds."""
        self._all = None if again and self.resets.any() else bytearray()
        self.resets = self.resets + 1 if again else np.ones_like(self.resets)
        for i, frame in enumerate(observation):
            self._start(i, frame)
        self.observation = observation

    def add(self, actions: NDArray, step: Step, memory: NDArray | None = None) -> None:
        """One step of all environments; `memory` (N, bytes) of the console, where it can be seen."""
        self.resets += step.started
        if self._all is not None:
            self._all += actions.astype(np.uint8).tobytes()
        for i, frame in enumerate(step.observation):
            if step.started[i]:
                self._start(i, frame)
            else:
                self.extend(i, int(actions[i]), frame, float(step.reward[i]), None if memory is None else memory[i])
        self.observation = step.observation

    def extend(self, env: int, action: int, frame: NDArray, reward: float, memory: NDArray | None = None) -> None:
        """One transition of one environment."""
        self.actions[env].append(action)
        if memory is not None:
            self._checksums[env] = zlib.crc32(np.ascontiguousarray(memory).data, self._checksums[env])
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
            "all": None if self._all is None else np.frombuffer(bytes(self._all), np.uint8),
        }

    def remember(self, state: State) -> None:
        """All actions since the seed are those of `state`, however the environments got here."""
        self._all = None if state["all"] is None else bytearray(state["all"].tobytes())

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
    everything = np.empty(0, np.uint8) if state["all"] is None else state["all"]
    return (
        state["game"] == spec.name
        and len(lengths) == len(state["resets"]) == num_envs
        and bool((lengths >= 0).all() and (np.asarray(state["resets"]) >= 1).all())
        and int(lengths.sum()) == len(actions)
        and bool(((actions >= 0) & (actions < spec.num_actions)).all())
        and len(everything) % num_envs == 0
        and bool((everything < spec.num_actions).all())
    )


def rows(state: State, num_envs: int) -> list[NDArray[np.int64]] | None:
    """All actions since the seed, one row (N,) per step."""
    return None if state["all"] is None else list(state["all"].astype(np.int64).reshape(-1, num_envs))
