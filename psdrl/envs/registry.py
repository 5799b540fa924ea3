"""Families of environments: what their names look like, who makes them, which preset suits them."""

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from psdrl.config import Config
from psdrl.envs import atari, minatar
from psdrl.envs.deepsea import DeepSea, deepsea_size
from psdrl.envs.gym import GymVector
from psdrl.envs.registered import find, make_registered
from psdrl.envs.vector import EnvSpec, VectorEnv
from psdrl.errors import UserError, nearest

Env = gymnasium.Env[Any, Any]
Kind = Literal["image", "vector", "deepsea", "minatar"]  # what presets are chosen by


class Family(NamedTuple):
    """Environments that are made alike."""

    name: str
    usage: str  # how a user asks for one
    owns: Callable[[Config], bool]
    make: Callable[[Config, list[int], bool], VectorEnv]  # from settings, seeds, and whether it will be rendered
    kind: Callable[[Config], Kind]
    preset: str  # what --preset auto takes, in words
    names: Callable[[], list[str]]
    needs: str | None = None  # the package without which there are none


def family(config: Config) -> Family:
    """The family of the environment that the settings name."""
    return next(family for family in FAMILIES if family.owns(config))


def kind(config: Config) -> Kind:
    """What kind of problem the settings name; a name that cannot be made counts as a vector, and fails later."""
    return family(config).kind(config)


def listing() -> list[tuple[str, str, str, list[str]]]:
    """All families: name, how to ask for one, preset, and the environments there are, with what is missing."""
    return [
        (family.name, family.usage, family.preset, family.names() if installed(family) else []) for family in FAMILIES
    ]


def installed(family: Family) -> bool:
    """Whether the family's package is there."""
    return family.needs is None or importlib.util.find_spec(family.needs) is not None


def _make_atari(config: Config, seeds: list[int], render: bool) -> VectorEnv:
    if config.env_process:
        raise UserError("--env-process is for --env: Atari games run in threads of EnvPool or ale-py.")
    return atari.make_atari(str(config.game), len(seeds), seeds, config.atari, config.env_backend, render)


def _make_deepsea(config: Config, seeds: list[int], render: bool) -> VectorEnv:
    name = str(config.env)
    size = deepsea_size(name)
    if not size:
        raise UserError(f"{name!r} is no DeepSea problem: write deepsea-N or deepsea-N-image with N at least 1.")
    mode = "rgb_array" if render else None
    return vector(name, partial(DeepSea, size, image=name.endswith("-image"), render_mode=mode), seeds, config)


def _make_minatar(config: Config, seeds: list[int], render: bool) -> VectorEnv:
    name = str(config.env)
    game = name.removeprefix("minatar/")
    if game not in minatar.GAMES:
        hint = nearest(game, minatar.GAMES) or f": choose one of {', '.join(minatar.GAMES)}."
        raise UserError(f"Unknown MinAtar game {game!r}{hint}")
    if importlib.util.find_spec("minatar") is None:
        raise UserError(f"{name} needs the package minatar: pip install minatar.")
    mode = "rgb_array" if render else None
    return vector(name, partial(minatar.make_minatar, game, config.minatar, mode), seeds, config)


def _make_registered(config: Config, seeds: list[int], render: bool) -> VectorEnv:
    name = str(config.env)
    entry = find(name)
    if render and not isinstance(entry, str):
        _check_renders(name, entry)
    return vector(name, partial(make_registered, name, "rgb_array" if render else None, entry), seeds, config)


def _check_renders(name: str, entry: gymnasium.envs.registration.EnvSpec) -> None:
    load = gymnasium.envs.registration.load_env_creator
    creator = entry.entry_point if callable(entry.entry_point) else load(str(entry.entry_point))
    modes = getattr(creator, "metadata", {}).get("render_modes", ["rgb_array"])
    if "rgb_array" not in modes:
        raise UserError(f"{name} cannot be rendered: its render_modes are {modes}, and a video needs rgb_array.")


def vector(name: str, make: Callable[[], Env], seeds: list[int], config: Config | None) -> VectorEnv:
    """Environments of one make, in this process or each in its own."""
    first = make()
    spec = spec_of(name, first)
    restarts = config.env_restarts if config else 0
    if config is None or not config.env_process:
        return GymVector(spec, [make] * len(seeds), seeds, first, restarts)
    from psdrl.envs.process import ProcessVector

    first.close()
    return ProcessVector(spec, make, seeds, restarts, config.env_timeout)


def spec_of(name: str, env: Env) -> EnvSpec:
    """What the agent must know of an environment that gives pictures or vectors."""
    space, actions = env.observation_space, env.action_space
    assert isinstance(space, spaces.Box)
    assert isinstance(actions, spaces.Discrete)
    if space.dtype == np.uint8 and len(space.shape) == 3:
        return EnvSpec(name, "image", space.shape, "uint8", int(actions.n), "gymnasium")
    dtype = "uint8" if space.dtype == np.uint8 else "float32"
    return EnvSpec(name, "vector", space.shape, dtype, int(actions.n), "gymnasium", _grid(env.unwrapped, space.shape))


def _grid(env: object, shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """What the environment says of its flat observation; many have a `grid` of their own that means something else."""
    grid = getattr(env, "grid", None)
    if not isinstance(grid, tuple) or not all(isinstance(n, int) for n in grid) or len(grid) != 3:
        return None
    return grid if (int(np.prod(grid)),) == shape else None


def _peek(name: str) -> Kind:
    """Make one and look at its observations."""
    try:
        env = make_registered(name, None)
    except Exception:  # said with its reason when it is made for good
        return "vector"
    shown = spec_of(name, env).kind
    env.close()
    return shown


FAMILIES = (
    Family(
        "Atari",
        "--game GAME",
        lambda config: bool(config.game),
        _make_atari,
        lambda config: "image",
        "cpu, or paper on a CUDA device",
        lambda: list(atari.GAMES),
    ),
    Family(
        "DeepSea",
        "--env deepsea-N or --env deepsea-N-image",
        lambda config: str(config.env).startswith("deepsea"),
        _make_deepsea,
        lambda config: "deepsea",
        "deepsea",
        lambda: ["deepsea-10", "deepsea-20", "deepsea-10-image"],
    ),
    Family(
        "MinAtar",
        "--env minatar/GAME",
        lambda config: str(config.env).startswith("minatar/"),
        _make_minatar,
        lambda config: "minatar",
        "minatar",
        lambda: [f"minatar/{game}" for game in minatar.GAMES],
        needs="minatar",
    ),
    Family(
        "gymnasium",
        "--env NAME, or --env MODULE:NAME for one of your own",
        lambda config: True,
        _make_registered,
        lambda config: _peek(str(config.env)),
        "control; for pictures cpu, or paper on a CUDA device",
        lambda: sorted(name for name in gymnasium.registry if not name.startswith(("ALE/", "GymV"))),
    ),
)
