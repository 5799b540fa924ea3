"""What a sweep costs beyond its runs: `python -m bench.sweep`, on an idle machine.

The same runs, one after another: by hand (`python -m psdrl.train`), by `psdrl sweep --address none`, and on a Ray of
one machine. A sweep's start-up ends when its first run's process starts; overhead is what its time is beyond start-up
and the runs by hand, which start torch anew for each run as a sweep does."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FLAGS = ("--preset", "debug", "--device", "cpu", "--eval-every", "2000", "--checkpoint-every", "5000")


def environment() -> dict[str, str]:
    """One thread, and this source tree."""
    return os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}


def by_hand(folder: Path, seeds: int, steps: int) -> float:
    """Seconds of the runs alone."""
    began = time.perf_counter()
    for seed in range(seeds):
        words = ["--env", "deepsea-8", "--seed", str(seed), "--steps", str(steps), "--logdir", str(folder / str(seed))]
        command = [sys.executable, "-m", "psdrl.train", *words, *FLAGS]
        subprocess.run(command, env=environment(), check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def by_sweep(out: Path, seeds: int, steps: int, address: str) -> tuple[float, float]:
    """Seconds of start-up, and of all after it."""
    words = ["--envs", "deepsea-8", "--seeds", str(seeds), "--steps", str(steps), "--out", str(out)]
    command = [sys.executable, "-m", "psdrl", "sweep", "--address", address, "--jobs", "1", *words, *FLAGS]
    began = time.perf_counter()
    with subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL) as sweep:
        while not any(out.rglob("output.txt")):
            time.sleep(0.01)
        started = time.perf_counter()
        if sweep.wait():
            raise RuntimeError(f"psdrl sweep --address {address} failed")
    return started - began, time.perf_counter() - started


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone = by_hand(folder / "alone", options.seeds, options.steps)
        print("| runs | start-up, s | all after it, s | overhead |\n| --- | ---: | ---: | ---: |")
        print(f"| by hand | | {alone:.1f} | |")
        for address in ("none", "local"):
            start_up, rest = by_sweep(folder / address, options.seeds, options.steps, address)
            print(
                f"| --address {address} | {start_up:.1f} | {rest:.1f} | {100 * (rest / alone - 1):.1f} % |", flush=True
            )


if __name__ == "__main__":
    main()
