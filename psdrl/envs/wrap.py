"""A user's own gymnasium objects behind our vector interface."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from psdrl.config import Config
from psdrl.envs.gym import GymVector
from psdrl.envs.make import env_seeds
from psdrl.envs.observations import Unfit, check_observation, check_reward, conversion, prepared
from psdrl.envs.registry import spec_of, vector
from psdrl.envs.vector import EnvSpec, GroupedEnv, Step, VectorEnv
from psdrl.errors import UserError

Env = gymnasium.Env[Any, Any]


def wrap(
    env: "Env | gymnasium.vector.VectorEnv[Any, Any, Any] | Callable[[], Env] | VectorEnv",
    config: Config | None = None,
    num_envs: int | None = None,
    stream: int = 0,
) -> VectorEnv:
    """Our vector of what a user has: an `Env`, a `VectorEnv` of gymnasium's, or a function that makes an `Env`.

    Of a function `num_envs` environments are made, else those of `config`, in its groups, with restarts and processes
    as it says. Objects are taken as they are: they must be as many as `num_envs`, if that is given.
    """
    if isinstance(env, VectorEnv):
        return env
    count = num_envs or (config.num_envs if config else None)
    if isinstance(env, gymnasium.Env):
        _check_count(1, count)
        ready = prepared(env, name := _name(env))
        seeds = env_seeds(config.seed if config else 0, stream, 1)
        return GymVector(spec_of(name, ready), [lambda: ready], seeds, ready, config.env_restarts if config else 0)
    if isinstance(env, gymnasium.vector.VectorEnv):
        _check_count(env.num_envs, count)
        seeds = env_seeds(config.seed if config else 0, stream, env.num_envs)
        return _vector(env, seeds)
    if callable(env):
        return _made(env, config, count or 1, num_envs is None, stream)
    raise UserError(
        f"{type(env).__name__} is no environment: give a gymnasium.Env, a gymnasium.vector.VectorEnv, or a function "
        "that makes a gymnasium.Env."
    )


def _check_count(there: int, asked: int | None) -> None:
    if asked not in (None, there):
        raise UserError(
            f"num_envs is {asked}, but the object given is {there}: give a function that makes one environment."
        )


def _name(env: Env) -> str:
    return env.spec.id if env.spec else type(env.unwrapped).__name__


def _made(factory: Callable[[], Env], config: Config | None, count: int, grouped: bool, stream: int) -> VectorEnv:
    """Environments that a function makes."""
    name = ""

    def make() -> Env:
        env = factory()
        if not isinstance(env, gymnasium.Env):
            raise UserError(f"The function given made a {type(env).__name__}, but must make a gymnasium.Env.")
        return prepared(env, name or _name(env))

    probe = factory()
    if isinstance(probe, gymnasium.Env):
        name = _name(probe)
        probe.close()
    seeds = env_seeds(config.seed if config else 0, stream, count)
    size = count // config.env_groups if config and grouped else count
    groups = [vector(name, make, seeds[first : first + size], config) for first in range(0, count, size)]
    return GroupedEnv(groups) if len(groups) > 1 else groups[0]


def _vector(envs: gymnasium.vector.VectorEnv[Any, Any, Any], seeds: list[int]) -> VectorEnv:
    if type(envs) is gymnasium.vector.SyncVectorEnv:  # in this process: its environments are stepped one by one
        ready = [prepared(env, _name(env)) for env in envs.envs]
        spec = spec_of(_name(envs.envs[0]), ready[0])
        return GymVector(spec, [lambda env=env: env for env in ready], seeds, ready[0])  # type: ignore[misc]
    mode = envs.metadata.get("autoreset_mode")
    if mode is not None and AutoresetMode(mode) != AutoresetMode.NEXT_STEP:
        raise UserError(
            f"{type(envs).__name__} resets in mode {AutoresetMode(mode).value}, but a step that ends an episode must "
            "return its last observation: make it with autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP."
        )
    return VectorAdapter(envs, seeds)


class VectorAdapter(VectorEnv):
    """A vector environment of gymnasium's that resets in the step after an end. It cannot be restored: what it runs,
    and where, only it knows."""

    def __init__(self, envs: gymnasium.vector.VectorEnv[Any, Any, Any], seeds: list[int]) -> None:
        actions, name = envs.single_action_space, envs.spec.id if envs.spec else type(envs.unwrapped).__name__
        if not isinstance(actions, spaces.Discrete):
            raise UserError(f"{name} has actions {actions}, but PSDRL needs a discrete action space.")
        self._envs, self._seeds, self.num_envs = envs, seeds, envs.num_envs
        self._space, self._first_action = envs.single_observation_space, int(actions.start)
        shown, self._convert = conversion(self._space, name)
        image = shown.dtype == np.uint8 and len(shown.shape) == 3
        dtype = "uint8" if shown.dtype == np.uint8 else "float32"
        kind = "image" if image else "vector"
        self.spec = EnvSpec(name, kind, shown.shape, dtype, int(actions.n), type(envs).__name__)  # type: ignore[arg-type]
        self._done = np.zeros(self.num_envs, bool)
        self._steps = 0

    def reset(self) -> NDArray:
        self._done, self._steps = np.zeros(self.num_envs, bool), 0
        return self._converted(self._envs.reset(seed=self._seeds)[0])  # type: ignore[arg-type]

    def _converted(self, observations: Any) -> NDArray:
        rows = list(gymnasium.vector.utils.iterate(self._envs.observation_space, observations))
        try:
            for row in rows:
                check_observation(self._space, row)
        except Unfit as error:
            raise UserError(f"{self.spec.name} {error} at step {self._steps}.") from None
        return np.stack([np.asarray(self._convert(row), self.spec.dtype) for row in rows])

    def send(self, actions: NDArray[np.int64]) -> None:
        self._actions = actions + self._first_action

    def recv(self) -> Step:
        self._steps += 1
        observations, reward, terminated, truncated, _ = self._envs.step(self._actions)
        try:
            for value in np.asarray(reward):
                check_reward(value)
        except Unfit as error:
            raise UserError(f"{self.spec.name} {error} at step {self._steps}.") from None
        started, self._done = self._done, np.asarray(terminated | truncated)
        columns = (np.asarray(reward, np.float32), np.asarray(terminated), np.asarray(truncated), started)
        return Step(self._converted(observations), *columns)

    def close(self) -> None:
        self._envs.close()
