"""`psdrl report RUNS... --out DIR` and `psdrl report --watch RUNS`."""

import importlib.util
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from psdrl.console import PatientConsole
from psdrl.errors import UserError

PACKAGES = ("matplotlib", "jinja2", "scipy")


@dataclass(frozen=True)
class Report:
    """Tables and figures of runs, beside the paper's numbers: a page, PNG and SVG files, CSV files."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Directories of runs, or directories above them, and files of results/; finished or not."""
    out: Path | None = None
    """Where the report is written. Default: report; with --watch a temporary directory."""
    steps: int | None = None
    """Judge every run as it was after so many environment steps; leave out shorter ones."""
    watch: bool = False
    """Serve the page on this machine alone, and make it again while the runs go on; Ctrl-C ends it."""
    port: int = 0
    """With --watch: the port on 127.0.0.1; 0: any that is free."""
    every: float = 10.0
    """With --watch: seconds between two looks at the runs."""


def run(options: Report) -> int:
    """`psdrl report`."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f'psdrl report needs the package {missing[0]}: pip install "psdrl[report]".')
    if not options.runs:
        raise UserError("Name what to report on, such as psdrl report runs, or psdrl report results.")
    if not options.every > 0:
        raise UserError(f"--every is {options.every} but must be greater than 0.")
    if not 0 <= options.port < 65536:
        raise UserError(f"--port is {options.port} but must lie between 0 and 65535.")
    if options.steps is not None and options.steps < 1:
        raise UserError(f"--steps is {options.steps} but must be at least 1.")
    from psdrl.report import build, watch  # half a second to import, which no other command should take

    console = PatientConsole()
    if options.watch:
        with tempfile.TemporaryDirectory(prefix="psdrl-report-") as folder:
            watch.watch(options.runs, options.out or Path(folder), options.port, options.every, console, options.steps)
        return 0
    made = build.build(options.runs, options.out or Path("report"), steps=options.steps)
    for text in made.notices:
        console.print(f"notice       {text}", highlight=False, soft_wrap=True, markup=False)
    words = f"{made.runs} runs, {made.figures} figures. Read it: {made.page}"
    console.print(words, highlight=False, soft_wrap=True, markup=False)
    return 0
