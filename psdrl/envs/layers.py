"""What Atari has beyond the paper's protocol, the same for every backend: sticky actions, frame stacks, lost lives.

Each is a layer around a vector of environments, with a state of its own beside theirs."""

from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from psdrl.envs.vector import State, Step, VectorEnv


class Layer(VectorEnv):
    """Passes everything on."""

    def __init__(self, env: VectorEnv) -> None:
        self.env, self.spec, self.num_envs = env, env.spec, env.num_envs

    def reset(self) -> NDArray:
        return self.env.reset()

    def send(self, actions: NDArray[np.int64]) -> None:
        self.env.send(actions)

    def recv(self) -> Step:
        return self.env.recv()

    def own_state(self) -> State:
        """The layer's part of the state, as of the last `recv`."""
        return {}

    def load(self, state: State, observation: NDArray) -> NDArray:
        """Restore the layer's part; the layer's observation of the environments' one."""
        return observation

    def state(self) -> State | None:
        below = self.env.state()
        return None if below is None else {"env": below, "layer": self.own_state()}

    def restore(self, state: State) -> NDArray | None:
        observation = self.env.restore(state["env"])
        return None if observation is None else self.load(state["layer"], observation)

    def faults(self) -> list[str]:
        return self.env.faults()

    def labels(self) -> dict[str, float]:
        return self.env.labels()

    def render(self) -> NDArray[np.uint8]:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


class Sticky(Layer):
    """With this probability a decision is ignored and the last one's action is repeated, for all its frames.

    Drawn here and once per decision: EnvPool and ale-py draw once per frame, from generators that nobody can read or
    set, so a run with those could be neither replayed nor resumed. An episode starts with the last action a no-op."""

    def __init__(self, env: VectorEnv, probability: float, seeds: list[int]) -> None:
        super().__init__(env)
        self._probability, self._seeds = probability, seeds
        self._start(0)

    def _start(self, draws: int) -> None:
        """Generators that have made this many draws."""
        bits = [np.random.PCG64(np.random.SeedSequence([seed, 0x571C])).advance(draws) for seed in self._seeds]
        self._generators = [np.random.Generator(bit) for bit in bits]
        self._draws = draws  # as of the last recv
        self._last = np.zeros(self.num_envs, np.int64)

    def reset(self) -> NDArray:
        self._start(0)
        return super().reset()

    def send(self, actions: NDArray[np.int64]) -> None:
        stuck = np.array([generator.random() for generator in self._generators]) < self._probability
        self._sent = np.where(stuck, self._last, actions)
        super().send(self._sent)

    def recv(self) -> Step:
        step = super().recv()
        self._draws += 1
        self._last = np.where(step.started, 0, self._sent)
        return step

    def own_state(self) -> State:
        return {"draws": self._draws, "last": self._last.copy()}

    def load(self, state: State, observation: NDArray) -> NDArray:
        self._start(state["draws"])
        self._last = np.array(state["last"])
        return observation


class Stack(Layer):
    """The last `count` frames as the channels of an observation, oldest first; an episode starts with its first frame
    repeated."""

    def __init__(self, env: VectorEnv, count: int) -> None:
        super().__init__(env)
        channels, *size = env.spec.shape
        self._count = count
        self.spec = replace(env.spec, shape=(channels * count, *size))

    def reset(self) -> NDArray:
        self._frames = self._filled(super().reset())
        return self._frames

    def _filled(self, frames: NDArray) -> NDArray:
        return np.tile(frames, (1, self._count, 1, 1))

    def recv(self) -> Step:
        step = super().recv()
        frames = np.concatenate([self._frames[:, step.observation.shape[1] :], step.observation], 1)
        frames[step.started] = self._filled(step.observation[step.started])
        self._frames = frames
        return step._replace(observation=frames)

    def own_state(self) -> State:
        return {"frames": self._frames.copy()}

    def load(self, state: State, observation: NDArray) -> NDArray:
        self._frames = np.array(state["frames"])
        return self._frames


class Lives(Protocol):
    """Environments that tell how many lives (N,) are left, as of the last recv or reset."""

    @property
    def lives(self) -> NDArray[np.int64]: ...


class LifeLoss(Layer):
    """A lost life ends the episode, for learning; the game goes on, and so does its score (`over` stays off).

    The next step plays a no-op in that environment and starts an episode, as the step after a game's end does. Should
    the game end or pay within that no-op, the row is no transition, but its reward and `over` count for the score."""

    def __init__(self, env: VectorEnv, source: Lives) -> None:
        super().__init__(env)
        self._source = source
        self._lives, self._lost = np.zeros(self.num_envs, np.int64), np.zeros(self.num_envs, bool)

    def reset(self) -> NDArray:
        observation = super().reset()
        self._lives, self._lost = self._source.lives, np.zeros(self.num_envs, bool)
        return observation

    def send(self, actions: NDArray[np.int64]) -> None:
        super().send(np.where(self._lost, 0, actions))

    def recv(self) -> Step:
        step, lives = super().recv(), self._source.lives
        started = step.started | self._lost
        # Qbert shows 0 lives for some frames before its game is over: that end alone counts.
        self._lost = ~started & ~step.over & (lives < self._lives) & (lives > 0)
        self._lives = lives
        return step._replace(
            terminated=(step.terminated | self._lost) & ~started, truncated=step.truncated & ~started, started=started
        )

    def own_state(self) -> State:
        return {"lives": self._lives.copy(), "lost": self._lost.copy()}

    def load(self, state: State, observation: NDArray) -> NDArray:
        self._lives, self._lost = np.array(state["lives"]), np.array(state["lost"])
        return observation
