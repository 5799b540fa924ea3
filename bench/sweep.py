"""What a sweep costs beyond its runs: `python -m bench.sweep`, on an idle machine.

The same runs by hand (`python -m psdrl.train`, which starts torch anew for each run as a sweep does), by `psdrl sweep
--address none` and on a Ray of one machine, as many at a time. They take turns, in another order each round; a round's
overhead is against its own runs by hand, and what is told is the median over rounds with the smallest and the largest.

Start-up ends when the first run's process starts. Overhead is all after it, the end of Ray included."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import NamedTuple

FLAGS = ("--preset", "debug", "--device", "cpu", "--eval-every", "2000", "--checkpoint-every", "5000")
WAYS = ("by hand", "none", "local")  # the last two: --address


class Times(NamedTuple):
    """Seconds of one way in one round."""

    start_up: float
    runs: float  # from the start of the first to the end of the last
    end: float

    @property
    def rest(self) -> float:
        """All but the start-up."""
        return self.runs + self.end


def environment() -> dict[str, str]:
    """One thread, and this source tree."""
    return os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}


def by_hand(out: Path, options: argparse.Namespace) -> Times:
    """The runs alone."""

    def run(seed: int) -> None:
        words = [
            "--env",
            "deepsea-8",
            "--seed",
            str(seed),
            "--steps",
            str(options.steps),
            "--logdir",
            str(out / str(seed)),
        ]
        command = [sys.executable, "-m", "psdrl.train", *words, *FLAGS]
        subprocess.run(command, env=environment(), check=True, stdout=subprocess.DEVNULL)

    began = time.time()
    with ThreadPoolExecutor(options.jobs) as threads:
        list(threads.map(run, range(options.seeds)))
    return Times(0.0, time.time() - began, 0.0)


def by_sweep(out: Path, options: argparse.Namespace, address: str) -> Times:
    """The same runs as a sweep."""
    words = ["--envs", "deepsea-8", "--seeds", str(options.seeds), "--steps", str(options.steps), "--out", str(out)]
    words += ["--address", address, "--jobs", str(options.jobs)]
    began = time.time()
    with subprocess.Popen(
        [sys.executable, "-m", "psdrl", "sweep", *words, *FLAGS], env=environment(), stdout=subprocess.DEVNULL
    ) as sweep:
        while sweep.poll() is None and not any(out.rglob("output.txt")):
            time.sleep(0.01)
        first = time.time()
        if sweep.wait():
            raise RuntimeError(f"psdrl sweep --address {address} failed")
    last = max(path.stat().st_mtime for path in out.rglob("status.json"))  # written when a run has ended
    return Times(first - began, last - first, time.time() - last)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if os.getloadavg()[0] > 0.5:
        print(
            f"The machine is not idle (load {os.getloadavg()[0]:.1f}): the numbers will not be right.", file=sys.stderr
        )
    took: dict[str, list[Times]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as name:
        for number in range(options.rounds):
            first = number % len(WAYS)
            for way in (*WAYS[first:], *WAYS[:first]):
                out = Path(name) / f"{number}-{way}"
                took[way].append(by_hand(out, options) if way == "by hand" else by_sweep(out, options, way))
                print(f"round {number + 1}, {way}: {took[way][-1].rest:.1f} s", file=sys.stderr, flush=True)
    print(f"{options.seeds} runs of {options.steps:,} steps, {options.jobs} at a time; {options.rounds} rounds.\n")
    print(
        "| runs | start-up, s | runs, s | end, s | overhead (smallest, largest) |\n| --- | ---: | ---: | ---: | ---: |"
    )
    for way in WAYS:
        start_up, runs, end = (median(values) for values in zip(*took[way], strict=True))
        over = sorted(100 * (it.rest / alone.rest - 1) for it, alone in zip(took[way], took["by hand"], strict=True))
        said = f"{median(over):.1f} % ({over[0]:.1f}, {over[-1]:.1f})" if way != "by hand" else ""
        label = way if way == "by hand" else f"--address {way}"
        print(f"| {label} | {start_up:.1f} | {runs:.1f} | {end:.1f} | {said} |")


if __name__ == "__main__":
    main()
