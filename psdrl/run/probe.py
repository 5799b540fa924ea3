"""`psdrl probe RUN`: what has the agent learned? Asked of a run's last checkpoint and its replay buffer."""

import importlib
import importlib.util
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from numpy.typing import NDArray
from rich.table import Table

from psdrl.agents.interface import Agent
from psdrl.console import PatientConsole
from psdrl.errors import UserError
from psdrl.run.evaluation import PYTHON, load
from psdrl.run.recording import record

STREAM = 20_000  # of the episodes that are recorded: neither training nor evaluation has them
LABELS = 8  # most numbers of the true state that are read out, those that vary most
# Where Atari games keep things, from the annotations of AtariARI (Anand et al., 2019).
RAM = {
    "Pong": {"ball x": 49, "ball y": 54, "player y": 51, "enemy y": 50},
    "Breakout": {"ball x": 99, "ball y": 101, "player x": 72},
    "Boxing": {"player x": 32, "player y": 34, "enemy x": 33, "enemy y": 35},
    "Freeway": {"player y": 14},
    "Qbert": {"player x": 43, "player y": 67},
}


@dataclass(frozen=True)
class Probe:
    """Ask the models of trained agents what they know."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Run directories, as given to --logdir."""
    horizons: tuple[int, ...] = (1, 5)
    """How many steps ahead predictions are followed."""
    episodes: int = 4
    """Episodes to play for read-outs, where the environment tells its true state; 0: none."""
    max_steps: int = 2000
    """Cut such an episode after this many steps."""
    json: Path | None = None
    """Write the answers into this file too."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""


def run(options: Probe) -> int:
    """`psdrl probe`."""
    if not options.runs:
        raise UserError("Name a run's directory, such as psdrl probe runs/CartPole-v1-psdrl-0.")
    if not options.horizons or min(options.horizons) < 1:
        raise UserError("--horizons must be one or more numbers of steps, each at least 1.")
    for name, least in (("episodes", 0), ("max_steps", 1)):
        if getattr(options, name) < least:
            raise UserError(f"--{name.replace('_', '-')} is {getattr(options, name)} but must be at least {least}.")
    console, found = PatientConsole(), []
    for path in options.runs:
        answers = ask(path, options)
        found.append({"run": str(path), **answers})
        for table in tables(path, answers):
            console.print(table)
    if options.json is not None:
        try:
            options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"--json {options.json} cannot be written ({error.strerror}): use another path.") from None
    return 0


def ask(path: Path, options: Probe) -> dict[str, Any]:
    """The answers of one run's agent."""
    agent: Any = load(path, options.device, replay=True)
    name = f"{type(agent).__module__.rpartition('.')[0]}.probe"
    if importlib.util.find_spec(name) is None:
        raise UserError(f"psdrl probe cannot ask {agent.config.algo}: use a run of psdrl or its ablations.")
    if not agent.replay.episodes:
        raise UserError(f"{path} has no whole episode stored yet: train on.")
    module = importlib.import_module(name)
    played = list(recorded(agent, options))
    names = chosen(agent, played)
    episodes = [
        module.Recorded(observations, actions, np.stack([labels[key] for key in names.values()], 1))
        for observations, actions, labels in played
        if names
    ]
    return {
        "env": agent.config.env_name,
        "seed": agent.config.seed,
        "steps": agent.step,
        "transitions": agent.replay.transitions,
        **module.probe(agent, episodes, list(names), options.horizons),
    }


Played = tuple[NDArray, NDArray[np.int64], dict[str, NDArray]]


def recorded(agent: Agent, options: Probe) -> Iterator[Played]:
    """Episodes played by the agent in an environment that tells its true state: observations, actions, labels."""
    config = agent.config
    if not options.episodes or (config.env or "").startswith(PYTHON):
        return
    backend = "gymnasium" if config.game else config.env_backend
    for i in range(options.episodes):
        played = record(agent, STREAM + i, options.max_steps, env_backend=backend)
        if not played.labels[0]:
            return
        columns = {name: np.array([row[name] for row in played.labels]) for name in played.labels[0]}
        yield played.observations, played.actions, columns


def chosen(agent: Agent, played: Sequence[Played]) -> dict[str, str]:
    """The numbers that are read out: those known by name, or else those that vary most; name -> label."""
    if not played:
        return {}
    every = {label: np.concatenate([labels[label] for _, _, labels in played]) for label in played[0][2]}
    distinct = {label: len(np.unique(values)) for label, values in every.items()}
    varied = sorted((label for label in every if distinct[label] > 1), key=lambda label: -distinct[label])
    known = {name: f"ram {place}" for name, place in RAM.get(agent.config.game or "", {}).items()}
    known = {name: label for name, label in known.items() if label in varied}
    return known or {label: label for label in varied[:LABELS]}


def tables(path: Path, answers: dict[str, Any]) -> Iterator[Table]:
    """What a person reads."""
    title = f"{path}: {answers['env']}, seed {answers['seed']}, {answers['steps']:,} steps"
    stored = Table(f"of {answers['transitions']:,} stored transitions", "", title=title)
    for name, answer in answers["stored"].items():
        stored.add_row(name.replace("_", " "), f"{answer:.4g}")
    yield stored
    ahead = Table("steps ahead", "model", "error of z (copying: 1)", "reward correlation")
    for model in ("sampled model", "posterior mean"):
        for row in answers[model]:
            ahead.add_row(str(row["steps"]), model, f"{row['error']:.3g}", f"{row['reward']:.2f}")
    yield ahead
    if "read-outs" in answers:
        horizons = list(answers["read-outs"][0]["ahead"])
        heads = [f"{what} {steps} ahead" for steps in horizons for what in ("off", "copying")]
        read = Table("read from z", "R2", "off by", *heads, caption="in other episodes than it was fitted to")
        for row in answers["read-outs"]:
            cells = [f"{row[what][steps]:.2f}" for steps in horizons for what in ("ahead", "copied")]
            read.add_row(row["name"], f"{row['r2']:.2f}", f"{row['off']:.2f}", *cells)
        yield read
