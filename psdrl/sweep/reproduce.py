"""`psdrl reproduce NAME`: forecast, sweep, report of an experiment of the paper or of ours."""

import importlib.util
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from psdrl.console import PatientConsole
from psdrl.errors import UserError
from psdrl.flags.parse import command, parse_known
from psdrl.report.command import PACKAGES
from psdrl.runtime.device import cuda_count
from psdrl.sweep import costs, plan, sweep
from psdrl.sweep.command import device_of, with_device
from psdrl.sweep.experiments import NAMES, Experiment, Scale, experiment, small_note

PROG = "psdrl reproduce"


@dataclass(frozen=True)
class Reproduce(sweep.Machines):
    """Run an experiment of the paper by its name: table-1, figure-ablation-posterior, figure-ablation-value,
    table-runtime or grid-search; deepsea is ours. First the forecast of its cost, then the runs, then the report. All
    other flags are those of psdrl train; the same command goes on where it stopped."""

    name: Annotated[str, tyro.conf.Positional] = ""
    """The experiment."""
    scale: Scale = "paper"
    """paper: as in the paper; small: six games, one seed, few steps, with the presets for CPUs."""
    forecast: Literal["auto", "here", "a100", "h100"] = "auto"
    """What the forecast is for: auto: an A100 if runs are given GPUs, else this machine's CPU."""
    dry_run: bool = False
    """Only the forecast."""
    out: Path | None = None
    """Directory of runs and report. Default: reproduce/NAME, or reproduce/NAME-small."""


def run(arguments: list[str]) -> int:
    """`psdrl reproduce`."""
    if {"-h", "--help", "--help-all"} & set(arguments):
        command(Reproduce, arguments, PROG)
    options, rest = parse_known(Reproduce, arguments, PROG)
    if not options.name:
        raise UserError(f"Name an experiment: psdrl reproduce NAME, one of {', '.join(NAMES)}.")
    what = experiment(options.name, options.scale)
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f'psdrl reproduce needs the package {missing[0]} for its report: pip install "psdrl[report]".')
    small = "-small" if options.scale == "small" else ""
    out = options.out or Path("reproduce") / f"{options.name}{small}"
    return _run(what, options, tuple(rest), out, PatientConsole())


def _run(what: Experiment, options: Reproduce, flags: tuple[str, ...], out: Path, console: Console) -> int:
    given = [(*block.flags, *flags) for block in what.blocks]
    place = None if options.dry_run else sweep.Place(options, os.cpu_count() or 1, cuda_count())
    try:
        if place is None:
            gpus = float(what.large) if options.gpus_per_run is None else options.gpus_per_run
        else:
            gpus = place.gpus_per_run(device_of(given[0]))
            if what.large and not gpus and device_of(given[0]) != "cpu":  # before minutes of timing this machine
                raise UserError(
                    f"{what.name} is made for GPUs, and none was found: use --scale small, a cluster (docs/cluster.md) "
                    "or --device cpu if you have the time; --dry-run forecasts the cost on GPUs."
                )
        chosen = [with_device(words, gpus) for words in given]
        if what.alone and 0 < gpus < 1:
            raise UserError(f"{what.name} measures time, and runs that share a GPU slow each other: --gpus-per-run 1.")
        with console.status("Planning the runs and what they will cost; with many agents this takes a minute."):
            cases = plan.plan(replace(block, flags=words) for block, words in zip(what.blocks, chosen, strict=True))
            notes = _forecast(what, options, cases, gpus, console)
        if place is None:
            return 0
        code = sweep.run(cases, place, out, gpus, console)
    except UserError:
        if place is not None:
            place.close()
        raise
    if code != 130:
        _report(out, notes, console)
    return code


def _forecast(what: Experiment, options: Reproduce, cases: list[plan.Case], gpus: float, console: Console) -> list[str]:
    """Say what will be run and what it will cost; returns the sentences that belong on the page."""
    device = options.forecast if options.forecast != "auto" else "a100" if gpus else "here"
    prediction = costs.predict(cases, device)
    unit = "GPU hours" if gpus else "core hours"
    total = f"{costs.hours(prediction, gpus):,.4g} {unit} ({prediction})"
    small = [small_note(what.name, cases)] if options.scale == "small" else []
    notes = [*small, *what.notes, f"{what.name}: {what.what} {len(cases)} runs, forecast {total}."]
    for note in notes:
        console.print(f"[bold]note[/]         {note}", highlight=False, soft_wrap=True)
    costs.show(console, cases, prediction, gpus)
    return notes


def _report(out: Path, notes: list[str], console: Console) -> None:
    from psdrl.report import build  # half a second to import, which no other command should take

    made = build.build([out], out / "report", notes=notes)
    console.print(f"Read it: {made.page}", highlight=False, soft_wrap=True, markup=False)
