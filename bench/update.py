"""Whole updates by phase, here and in another checkout, in turn: `python -m bench.update --baseline ../old`.

Each checkout has a process of its own, with a buffer of random transitions, and its own C++ extension, which must be
built there (`python setup.py build_ext --inplace`). One update here, one there, and so on; the best of each counts.
Seconds are the process's CPU time with one thread, so that other processes disturb less, and wall time otherwise.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Options:
    """Time whole updates."""

    preset: str = "cpu"
    """Sizes of the networks and batches."""
    actions: int = 6
    """Number of actions."""
    transitions: int = 30_000
    """Random transitions in the buffer."""
    threads: int = 1
    """Threads of each process."""
    repeat: int = 4
    """Updates of each, after one that warms up."""
    baseline: Path | None = None
    """Another checkout of this project, with its extension built."""


# What presets have gained since the baseline, taken away here when there is one: both do the same work.
SINCE: dict[str, Any] = {"value": {"hindsight": False, "trace": 0.0}}


def serve(preset: str, actions: int, transitions: int, settings: dict[str, Any]) -> None:
    """One update for each line of standard input; its phases' seconds as JSON. Knows only what all versions have."""
    import torch

    from bench.workload import make_agent

    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    time.perf_counter = clock  # which the phases' marks read
    agent = make_agent(preset, actions, transitions, **settings)
    print(json.dumps({"ready": torch.get_num_threads()}), flush=True)
    for _ in sys.stdin:
        start = clock()
        metrics = agent.update()
        whole = clock() - start
        phases = {name[5:]: seconds for name, seconds in metrics.items() if name.startswith("time/")}
        print(json.dumps(phases | {"whole": whole}), flush=True)


class Worker:
    """A process that updates an agent of the checkout at `path`."""

    def __init__(self, path: Path, options: Options) -> None:
        settings = SINCE if options.baseline and path == HERE else {}
        arguments = (options.preset, options.actions, options.transitions, settings)
        code = f"import runpy; runpy.run_path({str(Path(__file__).resolve())!r})['serve']{arguments!r}"
        environment = os.environ | {"OMP_NUM_THREADS": str(options.threads), "PYTHONPATH": str(path)}
        environment.pop("THP_MEM_ALLOC_ENABLE", None)  # this process has it from psdrl; a version that wants it sets it
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=path,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.line()

    def line(self) -> dict[str, Any]:
        """What the process prints next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the update has failed")
        return json.loads(line)

    def update(self) -> dict[str, float]:
        """Seconds of one update by phase."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.line()

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    """Print a table: the best times of both, and how often this one fits into the other."""
    from psdrl.kernels.choice import machine  # not where `serve` runs: older versions have none

    options = tyro.cli(Options, prog="bench.update")
    paths = {"here": HERE} | ({"baseline": options.baseline.resolve()} if options.baseline else {})
    workers = {name: Worker(path, options) for name, path in paths.items()}
    best: dict[str, dict[str, float]] = {name: {} for name in paths}
    for turn in range(options.repeat + 1):
        for name, worker in workers.items():
            found = worker.update()
            if turn:  # the first one warms up
                best[name] = {phase: min(s, best[name].get(phase, s)) for phase, s in found.items()}
    for worker in workers.values():
        worker.close()
    clock = "CPU" if options.threads == 1 else "wall"
    title = f"preset {options.preset}, {options.transitions} transitions, {options.threads} threads, {clock} seconds"
    table = Table("phase", *paths, "baseline / here", title=f"{title}, {machine()}")
    for phase, seconds in best["here"].items():
        other = best.get("baseline", {}).get(phase)
        cells = [f"{seconds:.3f}", *([f"{other:.3f}", f"{other / seconds:.2f}x"] if other else [])]
        table.add_row(phase, *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
