"""What there is to choose from: `psdrl presets` and `psdrl envs`."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any

import gymnasium
import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from psdrl.agents import registry
from psdrl.config import flag, lookup
from psdrl.envs import listing
from psdrl.envs.atari import GAMES
from psdrl.errors import UserError, nearest

FEW = 6  # names that a line has room for
EXAMPLES = ("Pong", "deepsea-10", "minatar/breakout", "CartPole-v1", "mymodule:MyEnv-v0")


def environment(word: str) -> dict[str, str]:
    """The setting that a bare word on the command line stands for: an Atari game, or anything else that can be made."""
    games = {game.lower(): game for game in GAMES}
    if word.lower() in games:
        return {"game": games[word.lower()]}
    if word in gymnasium.registry or word.startswith("deepsea") or "/" in word or ":" in word:
        return {"env": word}
    hint = nearest(word, [name for *_, names in listing() for name in names]) or ": psdrl envs lists what there is."
    raise UserError(f"Unknown environment {word!r}{hint}")


@dataclass(frozen=True)
class Presets:
    """What presets change of the paper's settings."""

    name: Annotated[str | None, tyro.conf.Positional] = None
    """A preset, to see each of its settings that is not the paper's."""
    algo: str = "psdrl"
    """The agent."""
    env: str | None = None
    """The environment: some presets depend on it, e.g. on DeepSea's size."""


def show_presets(options: Presets, console: Console) -> None:
    """`psdrl presets`."""
    by_name = registry.entry(options.algo).presets.by_name
    if options.name is None:
        table = _table("preset", "not the paper's", "what it is for")
        for name, make in by_name.items():
            reason = (inspect.getdoc(make) or "").partition(". ")[0].partition(": ")[0]
            table.add_row(name, f"{len(list(departures(name, options)))} settings", escape(" ".join(reason.split())))
        console.print(table, highlight=False)
        _say(console, f"psdrl presets {next(reversed(by_name))} --algo {options.algo} shows each of them.")
        return
    table = _table("setting", "paper", options.name)
    for name, paper, value in departures(options.name, options):
        table.add_row(flag(name), _shown(paper), _shown(value))
    console.print(table, highlight=False)
    _say(console, f"Why: {' '.join((inspect.getdoc(by_name[options.name]) or '').split())}")


def departures(preset: str, options: Presets) -> Iterator[tuple[str, Any, Any]]:
    """Setting, the paper's value and the preset's, where they differ."""
    chosen = environment(options.env) if options.env else {}
    start, paper = (registry.preset({"algo": options.algo, "preset": p} | chosen)[0] for p in (preset, "paper"))
    for name in _names(start):
        if name != "preset" and lookup(start, name) != lookup(paper, name):
            yield name, lookup(paper, name), lookup(start, name)


def _names(settings: Any, prefix: str = "") -> Iterator[str]:
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            yield from _names(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


@dataclass(frozen=True)
class Envs:
    """Environments that can be trained on."""

    part: Annotated[str | None, tyro.conf.Positional] = None
    """Show the names that contain this, e.g. invaders."""


def show_envs(options: Envs, console: Console) -> None:
    """`psdrl envs`."""
    families = listing()
    if options.part is not None:
        part = options.part.lower()
        found = [name for *_, names in families for name in names if part in name.lower()]
        if not found:
            raise UserError(f"No environment's name contains {options.part!r}: psdrl envs lists the families.")
        for name in found:
            _say(console, f"psdrl train {name}")
        return
    table = _table("family", "ask for one by", "preset", "there are")
    for name, usage, suits, names in families:
        count = f"{len(names)}: psdrl envs PART shows them" if len(names) > FEW else ", ".join(names) or "not installed"
        table.add_row(name, escape(usage), suits, count)
    console.print(table, highlight=False)
    _say(console, "For example: " + ", ".join(f"psdrl train {name}" for name in EXAMPLES))


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, pad_edge=False, header_style="bold")


def _shown(value: Any) -> str:
    return escape(" ".join(map(str, value)) if isinstance(value, tuple) else str(value))


def _say(console: Console, text: str) -> None:
    console.print(escape(text), highlight=False, soft_wrap=True)
