"""Memory and open files of a run with many updates and checkpoints: `python -m tests.soak` (make soak).

Fails unless the last quarter of the run holds no more than the second did, up to 2%: a leak of 30 kB per update, or of
one file per checkpoint, is found in 300 updates.
"""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np

import psdrl
from psdrl.run.callbacks import Callback, Run

UPDATES, TOLERANCE = 300, 1.02


class Watch(Callback):
    """Resident bytes and open files after each update."""

    def __init__(self) -> None:
        self.bytes: list[int] = []
        self.files: list[int] = []

    def on_update(self, run: Run, metrics: dict[str, float]) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.bytes.append(pages * os.sysconf("SC_PAGE_SIZE"))
        self.files.append(len(os.listdir("/proc/self/fd")))


def soak(algo: str, updates: int = UPDATES) -> tuple[Watch, bool]:
    """An agent of this name learns so often; whether memory and files stayed flat."""
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        psdrl.train(
            "deepsea-6", watch, stop=lambda: len(watch.bytes) >= updates, algo=algo, preset="debug", device="cpu",
            steps=10**6, eval_every=500, checkpoint_every=100, logdir=Path(folder) / "run",
        )  # fmt: skip
    quarter = len(watch.bytes) // 4
    second, last = (np.median(watch.bytes[i * quarter : (i + 1) * quarter]) for i in (1, 3))
    files = max(watch.files[3 * quarter :]) <= max(watch.files[quarter : 2 * quarter])
    return watch, bool(last <= TOLERANCE * second and files)


def main() -> int:
    """Figures of all agents; exit code 1 if anything grows."""
    flat = True
    for algo in ("psdrl", "bootstrap", "successor", "dreamer"):
        watch, held = soak(algo)
        marks = [watch.bytes[i * (len(watch.bytes) - 1) // 4] / 1e6 for i in range(5)]
        shown = ", ".join(f"{mark:.1f}" for mark in marks)
        ends = f"{watch.files[len(watch.files) // 4]} to {watch.files[-1]}"
        print(f"{algo}: {len(watch.bytes)} updates, MB at each quarter {shown}; open files {ends}", flush=True)
        flat = flat and held
    print("flat" if flat else "NOT flat")
    return int(not flat)


if __name__ == "__main__":
    sys.exit(main())
