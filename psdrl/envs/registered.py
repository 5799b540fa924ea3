"""Environments that gymnasium knows by name, those of a user's own modules among them."""

import importlib
import os
import re
import sys
from typing import Any

import gymnasium

from psdrl.envs.atari import GAMES
from psdrl.envs.minatar import GAMES as MINATAR_GAMES
from psdrl.envs.observations import prepared
from psdrl.errors import UserError, nearest

Entry = gymnasium.envs.registration.EnvSpec | str
# As gymnasium and ale-py have named Atari games over the years.
_ATARI = re.compile(r"(?:ALE/)?([A-Za-z]+?)(?:-ram)?(?:NoFrameskip|Deterministic)?(?:-v\d+)?")


def atari_game(name: str) -> str | None:
    """The game of ALE/Pong-v5, PongNoFrameskip-v4 and the like; None for other names and for a user's own Pong-v0."""
    match = _ATARI.fullmatch(name)
    known = {game.lower(): game for game in GAMES}
    if match is None or match[1].lower() not in known:
        return None
    entry = gymnasium.registry.get(name)
    ours = entry is not None and not str(entry.entry_point).startswith(("ale_py", "shimmy"))
    return None if ours else known[match[1].lower()]


def find(name: str) -> Entry:
    """gymnasium's entry of this name, or the name itself if gymnasium is to find the version; MODULE:NAME imports the
    module first, from the working directory too."""
    if game := atari_game(name):  # whether or not ale-py is registered: Atari has a protocol of its own
        raise UserError(f"Unknown environment {name!r}: it is an Atari game, use --game {game}.")
    module, _, bare = name.rpartition(":")
    if module:
        if os.getcwd() not in sys.path and "" not in sys.path:
            sys.path.insert(0, os.getcwd())  # as `python -m` has it; console scripts do not
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UserError(f"Environment {name!r} cannot be made: {_first_line(error)}") from error
    return gymnasium.registry.get(bare, bare)


def make_registered(name: str, mode: str | None, entry: Entry | None = None) -> gymnasium.Env[Any, Any]:
    """The environment of this name, or of this entry of gymnasium's registry; see `psdrl.envs.observations`."""
    entry = entry or find(name)
    options: dict[str, Any] = {"render_mode": mode} if mode else {}  # some constructors do not know it
    try:
        env = gymnasium.make(entry, disable_env_checker=True, **options)  # `Checked` takes its place
    except gymnasium.error.UnregisteredEnv:
        raise UserError(f"Unknown environment {name!r}{_hint(name)}") from None
    except (gymnasium.error.Error, ImportError) as error:  # malformed, outdated, or a package is missing
        raise UserError(f"Environment {name!r} cannot be made: {_first_line(error)}") from None
    except Exception as error:  # of a user's own constructor
        if mode and "render_mode" in str(error):
            raise UserError(f"{name} cannot be rendered: its constructor takes no render_mode.") from None
        reason = f"{type(error).__name__}: {_first_line(error)}"
        raise UserError(f"Environment {name!r} cannot be made: its constructor raised {reason}.") from error
    return prepared(env, name)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _hint(name: str) -> str:
    builtin = ["deepsea-10", "deepsea-10-image", *(f"minatar/{game}" for game in MINATAR_GAMES)]
    return nearest(name, [*gymnasium.registry, *builtin]) or ": see psdrl envs, or gymnasium.pprint_registry()."
