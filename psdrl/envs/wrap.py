"""A user's own gymnasium objects as environments of a run."""

from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from psdrl.config import Config
from psdrl.envs.make import adapted, env_seeds, spec_of
from psdrl.envs.vector import GymVector, VectorEnv
from psdrl.errors import UserError

Env = gymnasium.Env[Any, Any]


def wrap(
    env: Env | gymnasium.vector.VectorEnv | Callable[[], Env], config: Config, num_envs: int | None = None
) -> VectorEnv:
    """An environment, a vector of them, or a function that makes one, behind the interface of runs.

    With `num_envs` these many of the function's, else as many as the configuration says."""
    name = config.env_name
    if isinstance(env, gymnasium.vector.VectorEnv):
        if env.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP or not isinstance(env, SyncVectorEnv):
            raise UserError(f"{name} must be a SyncVectorEnv with autoreset at the next step.")
        return GymVector(spec_of(name, env), env, env_seeds(config.seed, 0, env.num_envs))
    count = num_envs or config.num_envs
    if isinstance(env, gymnasium.Env):
        if count != 1:
            raise UserError(f"One environment object cannot play {count} environments: pass a function that makes one.")
        one = env
        makes: list[Callable[[], Env]] = [lambda: adapted(one, name)]
    else:
        make = env
        makes = [lambda: adapted(make(), name)] * count
    envs = SyncVectorEnv(makes)
    return GymVector(spec_of(name, envs), envs, env_seeds(config.seed, 0, count))
