"""From a configuration to environments."""

import contextlib
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import cv2
import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from psdrl.config import Config
from psdrl.envs.atari import check_game, make_atari
from psdrl.envs.deepsea import DeepSea, deepsea_size
from psdrl.envs.gym import GymVector
from psdrl.envs.minatar import GAMES as MINATAR_GAMES
from psdrl.envs.minatar import MinAtar
from psdrl.envs.vector import EnvSpec, GroupedEnv, VectorEnv
from psdrl.errors import UserError, nearest

SIZE = 64  # of images from gymnasium


def env_seeds(seed: int, stream: int, count: int) -> list[int]:
    """Independent 31-bit seeds, one per environment; `stream` tells training from evaluation."""
    return [int(s) >> 1 for s in np.random.SeedSequence([seed, stream]).generate_state(count)]


def make_env(config: Config, num_envs: int | None = None, stream: int = 0, render: bool = False) -> VectorEnv:
    """The environments of a run; stream 0 trains, stream 1 evaluates during training, others are free.

    With `num_envs` these many, else those of the configuration, in its groups.
    """
    count = num_envs or config.num_envs
    size = count if num_envs else count // config.env_groups
    seeds = env_seeds(config.seed, stream, count)
    groups = [_make_group(config, seeds[first : first + size], render) for first in range(0, count, size)]
    return GroupedEnv(groups) if len(groups) > 1 else groups[0]


def _make_group(config: Config, seeds: list[int], render: bool) -> VectorEnv:
    num_envs = len(seeds)
    if config.game:
        return make_atari(config.game, num_envs, seeds, config.atari, config.env_backend, render)
    name = config.env or ""
    mode = "rgb_array" if render else None
    make: Callable[[], gymnasium.Env[Any, Any]]
    if size := deepsea_size(name):
        make = partial(DeepSea, size, image=name.endswith("-image"), render_mode=mode)
    elif name.startswith("deepsea"):
        raise UserError(f"{name!r} is no DeepSea problem: write deepsea-N or deepsea-N-image with N at least 1.")
    elif name.startswith("minatar/"):
        game = name.removeprefix("minatar/")
        if game not in MINATAR_GAMES:
            hint = nearest(game, MINATAR_GAMES) or f": choose one of {', '.join(MINATAR_GAMES)}."
            raise UserError(f"Unknown MinAtar game {game!r}{hint}")
        protocol = config.minatar

        def make() -> gymnasium.Env[Any, Any]:
            env = MinAtar(game, protocol.sticky, protocol.ramping, protocol.stack, mode)
            return gymnasium.wrappers.TimeLimit(env, protocol.max_steps)
    else:
        make = partial(_make_registered, name, mode)
    one = make()
    return GymVector(_spec(name, one), [make] * num_envs, seeds, one)


def _make_registered(name: str, mode: str | None) -> gymnasium.Env[Any, Any]:
    """Any gymnasium environment: images become 64x64 grey, everything else a flat vector."""
    if name.startswith("ALE/"):  # whether or not ale-py is registered: Atari has a protocol of its own
        raise UserError(f"Unknown environment {name!r}{_hint(name)}")
    try:
        options: dict[str, Any] = {"render_mode": mode} if mode else {}  # some constructors do not know it
        env = gymnasium.make(name, **options)
    except gymnasium.error.UnregisteredEnv:
        raise UserError(f"Unknown environment {name!r}{_hint(name)}") from None
    except (gymnasium.error.Error, ImportError) as error:  # malformed, outdated, or a package is missing
        raise UserError(f"Environment {name!r} cannot be made: {str(error).splitlines()[0]}") from None
    if not isinstance(env.action_space, spaces.Discrete):
        raise UserError(f"{name} has actions {env.action_space}, but PSDRL needs a discrete action space.")
    if env.action_space.start != 0:
        start, count = int(env.action_space.start), int(env.action_space.n)
        env = gymnasium.wrappers.TransformAction(env, lambda a: a + start, spaces.Discrete(count))
    space = env.observation_space
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) > 1:
        if len(space.shape) > 3 or (len(space.shape) == 3 and space.shape[2] not in (1, 3)):
            raise UserError(f"{name} has observations {space}: images need 1 or 3 channels, last.")
        return GreyImage(env)
    flat: gymnasium.Env[Any, Any] | None = None
    with contextlib.suppress(NotImplementedError):
        flat = gymnasium.wrappers.FlattenObservation(env)
    if flat is None or not isinstance(flat.observation_space, spaces.Box):
        raise UserError(f"{name} has observations {space}, which cannot be flattened into a vector.")
    return flat


class GreyImage(gymnasium.ObservationWrapper[NDArray, Any, NDArray]):
    """Images of any size, grey or in colour, as 64x64 grey."""

    def __init__(self, env: gymnasium.Env[NDArray, Any]) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(0, 255, (SIZE, SIZE), np.uint8)

    def observation(self, observation: NDArray) -> NDArray:
        if observation.ndim == 3:
            last = observation.shape[2]
            observation = cv2.cvtColor(observation, cv2.COLOR_RGB2GRAY) if last == 3 else observation[:, :, 0]
        return cv2.resize(observation, (SIZE, SIZE), interpolation=cv2.INTER_AREA)


def _hint(name: str) -> str:
    try:
        return f": it is an Atari game, use --game {check_game(re.sub(r'^ALE/|-v[0-9]+$', '', name))}."
    except UserError:
        builtin = ["deepsea-10", "deepsea-10-image", *(f"minatar/{game}" for game in MINATAR_GAMES)]
        return nearest(name, [*gymnasium.registry, *builtin]) or ": see gymnasium.pprint_registry()."


def _spec(name: str, env: gymnasium.Env[Any, Any]) -> EnvSpec:
    space = env.observation_space
    actions = env.action_space
    assert isinstance(space, spaces.Box)
    assert isinstance(actions, spaces.Discrete)
    image = space.dtype == np.uint8 and space.shape in ((1, SIZE, SIZE), (SIZE, SIZE))
    if image:
        return EnvSpec(name, "image", (1, SIZE, SIZE), "uint8", int(actions.n), "gymnasium")
    dtype = "uint8" if space.dtype == np.uint8 else "float32"
    size = int(np.prod(space.shape))
    return EnvSpec(name, "vector", (size,), dtype, int(actions.n), "gymnasium", _grid(env.unwrapped, size))


def _grid(env: object, size: int) -> tuple[int, int, int] | None:
    """What the environment says of its flat observation; many have a `grid` of their own that means something else."""
    grid = getattr(env, "grid", None)
    if not isinstance(grid, tuple) or not all(isinstance(n, int) for n in grid) or len(grid) != 3:
        return None
    return grid if math.prod(grid) == size else None
