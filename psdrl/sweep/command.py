"""`psdrl sweep`: its flags, and from them to the cases."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from psdrl.arguments import TRAIN
from psdrl.config import Config
from psdrl.console import PatientConsole
from psdrl.errors import UserError
from psdrl.flags.parse import command, parse_known
from psdrl.runtime.device import cuda_count
from psdrl.sweep import grid, plan, sweep
from psdrl.sweep.asha import Asha

PROG = "psdrl sweep"


@dataclass(frozen=True)
class Sweep(sweep.Machines):
    """Train every combination of games, agents, seeds and settings: psdrl sweep --games six --seeds 3 --out DIR
    --steps 100000. All other flags are those of psdrl train. The same command goes on where it stopped."""

    games: str = ""
    """Atari games: atari55 (the paper's), six (those it was tuned on), or names such as Pong,Freeway."""
    envs: str = ""
    """Other environments, e.g. deepsea-10,CartPole-v1."""
    algos: str = "psdrl"
    """Agents, e.g. psdrl,bootstrap."""
    seeds: str = "3"
    """3: seeds 0, 1 and 2; 5:8: seeds 5, 6 and 7; 1,4: these."""
    grid: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """KEY=VALUE,VALUE: a setting to vary, e.g. value.discount=0.99,0.999. posterior.prior-latent and -reward (and those
    of posterior.noise) are the two numbers of posterior.prior. Several make all combinations."""
    asha: bool = False
    """End runs of bad settings early, by their evaluations: Ray Tune's ASHA, for each environment."""
    asha_grace: int = 0
    """With --asha: steps before the first decision; 0: a 27th of the run."""
    asha_factor: float = 3.0
    """With --asha: one in so many runs goes on at each rung, and the next one is so many times further."""
    out: Path | None = None
    """Directory of the sweep; psdrl report reads it, also while it runs."""


def run(arguments: list[str]) -> int:
    """`psdrl sweep`."""
    if {"-h", "--help", "--help-all"} & set(arguments):
        command(Sweep, arguments, PROG)
    options, rest = parse_known(Sweep, _one_by_one(arguments), PROG)
    if options.out is None:
        raise UserError("Name the sweep's directory: psdrl sweep ... --out DIR.")
    envs = (*plan.names_of_games(options.games), *plan.names_of_envs(options.envs))
    algos, seeds = tuple(plan.names(options.algos)), tuple(plan.seeds(options.seeds))
    place = sweep.Place(options, os.cpu_count() or 1, cuda_count())
    try:
        gpus = place.gpus_per_run(device_of(tuple(rest)))
        flags = with_device(tuple(rest), gpus)
        cases = plan.plan([plan.Block(envs, algos, seeds, tuple(grid.parse(options.grid)), flags)])
        asha = Asha(cases, options.asha_grace, options.asha_factor) if options.asha else None
        return sweep.run(cases, place, options.out, gpus, PatientConsole(), asha)
    except UserError:
        place.close()
        raise


def _one_by_one(arguments: list[str]) -> list[str]:
    """`--grid A=1,2 B=3,4` as `--grid A=1,2 --grid B=3,4`."""
    found: list[str] = []
    inside = 0
    for word in arguments:
        inside = 1 if word == "--grid" else 0 if word.startswith("--") else inside and inside + 1
        found += ["--grid", word] if inside > 2 else [word]
    return found


def device_of(flags: tuple[str, ...]) -> str:
    """The device that flags of train name."""
    return parse_known(Config, flags, TRAIN)[0].device


def with_device(flags: tuple[str, ...], gpus: float) -> tuple[str, ...]:
    """The flags with the device that follows from the GPUs of a run: presets depend on it, and not on our own."""
    if device_of(flags) != "auto":
        return flags
    return (*plan.without(flags, "--device"), "--device", "cuda" if gpus else "cpu")
