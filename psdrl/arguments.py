"""What the words after `psdrl train` mean: agent, preset and settings of one run."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from psdrl import catalogue
from psdrl.agents import registry
from psdrl.config import Config
from psdrl.errors import UserError
from psdrl.flags.parse import parse, parse_known
from psdrl.run.checkpoint import read_config

TRAIN = "psdrl train"


@dataclass(frozen=True)
class Selection:
    """The flags that choose agent and preset; they are read first, because these set the other flags' defaults."""

    game: str | None = None
    env: str | None = None
    preset: str = "auto"
    algo: str = "psdrl"
    device: str = "auto"
    logdir: Path | None = None
    resume: str = "auto"

    @property
    def choice(self) -> dict[str, Any]:
        """What a preset depends on."""
        return {name: getattr(self, name) for name in registry.SELECTION}


def parse_train(arguments: list[str]) -> tuple[Any, str]:
    """Configuration from flags, in the agent's own class, and why its preset was chosen."""
    start, why = starting(arguments)
    config = parse(type(start), arguments, TRAIN, start)[0]
    return (config if config.preset != "auto" else replace(config, preset=start.preset)), why


def starting(arguments: list[str]) -> tuple[Any, str]:
    """What the flags change: the preset of the environment, or a run that is named by its directory alone."""
    selection, _ = parse_known(Selection, arguments, TRAIN)
    stored = _stored(selection)
    kind = type(stored) if stored else registry.entry(selection.algo).settings
    _, words = parse(kind, arguments, TRAIN)
    if words:
        selection = replace(selection, **_environment(words, selection))
    elif stored:
        return replace(stored, logdir=selection.logdir, resume="auto", profile=None), "as this run began"
    start, why = registry.preset(selection.choice)
    return replace(start, game=selection.game, env=selection.env), why


def _stored(selection: Selection) -> Config | None:
    """The settings of a run that is named by its directory alone."""
    if selection.game or selection.env or selection.logdir is None:
        return None
    if (selection.logdir / "config.json").exists() or selection.resume == "must":
        return read_config(selection.logdir)
    return None


def _environment(words: list[str], selection: Selection) -> dict[str, Any]:
    """The environment that is named without a flag."""
    if len(words) > 1:
        raise UserError(f"Name one environment: {' and '.join(words[:2])} are two.")
    if selection.game is not None or selection.env is not None:
        other = f"--game {selection.game}" if selection.game is not None else f"--env {selection.env}"
        raise UserError(f"Name one environment: {words[0]} and {other} are two.")
    return catalogue.environment(words[0])
