"""gymnasium environments behind the vector interface."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from psdrl.envs.lane import Env, Lane, Row
from psdrl.envs.vector import EnvSpec, State, Step, VectorEnv


class GymVector(VectorEnv):
    """gymnasium environments, stepped one after another in this process. `first` is one of them, made already: who
    knows the spec has made one."""

    def __init__(
        self,
        spec: EnvSpec,
        makes: list[Callable[[], Env]],
        seeds: list[int],
        first: Env | None = None,
        restarts: int = 0,
    ) -> None:
        self.spec, self.num_envs = spec, len(makes)
        self.lanes = [
            Lane(make, spec, seed, restarts, None if i else first)
            for i, (make, seed) in enumerate(zip(makes, seeds, strict=True))
        ]

    def reset(self) -> NDArray:
        return np.stack([lane.reset() for lane in self.lanes])

    def send(self, actions: NDArray[np.int64]) -> None:
        for lane, action in zip(self.lanes, actions, strict=True):
            lane.send(action)

    def recv(self) -> Step:
        return stacked([lane.recv() for lane in self.lanes])

    @property
    def lives(self) -> NDArray[np.int64]:
        """Lives left (N,) in an Atari game."""
        return np.array([lane.lives() for lane in self.lanes])

    def state(self) -> State | None:
        return {str(i): lane.state() for i, lane in enumerate(self.lanes)}

    def restore(self, state: State) -> NDArray | None:
        if set(state) != {str(i) for i in range(self.num_envs)}:
            return None
        restored = [lane.restore(state[str(i)]) for i, lane in enumerate(self.lanes)]
        known = [observation for observation in restored if observation is not None]
        return np.stack(known) if len(known) == self.num_envs else None

    def faults(self) -> list[str]:
        found = [fault for lane in self.lanes for fault in lane.faults]
        for lane in self.lanes:
            lane.faults.clear()
        return found

    def labels(self) -> dict[str, float]:
        return self.lanes[0].labels()

    def render(self) -> NDArray[np.uint8]:
        frame = self.lanes[0].render()
        if frame is None:
            raise RuntimeError("This environment was made without render=True.")
        return np.asarray(frame, np.uint8)

    def close(self) -> None:
        for lane in self.lanes:
            lane.close()


def stacked(rows: list[Row]) -> Step:
    """Rows of N environments as one step."""
    observation, reward, terminated, truncated, started, failed = zip(*rows, strict=True)
    ended, begun = (np.array(terminated), np.array(truncated)), np.array(started)
    return Step(np.stack(observation), np.array(reward, np.float32), *ended, begun, failed=np.array(failed))
