"""What a run leaves to look at: curve.png, the return of every episode."""

import json
from pathlib import Path

import numpy as np
from rich.console import Console

from psdrl.run.callbacks.interface import Callback, Run

RECENT = 20  # episodes in the running mean; a run with fewer has no curve


class Curve(Callback):
    """Draws curve.png from metrics.jsonl when the run ends, also when it was interrupted; says so on the console."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(quiet=True)

    def on_end(self, run: Run, error: BaseException | None) -> None:
        if error is not None or run.logdir is None:
            return
        steps, returns = episodes(run.logdir / "metrics.jsonl")
        if len(returns) < RECENT:
            return
        path = run.logdir / "curve.png"
        try:
            draw(path, steps, returns, f"{run.agent.spec.name}, {run.config.algo}")
        except ImportError:
            self.console.print("No picture of the returns: pip install matplotlib.", highlight=False)
            return
        self.console.print(f"Returns of all episodes: {path}", highlight=False, soft_wrap=True)


def episodes(path: Path) -> tuple[list[int], list[float]]:
    """Steps at which episodes ended, and their returns."""
    with open(path, encoding="utf-8") as lines:
        found = [(line["step"], line["train/return"]) for line in map(json.loads, lines) if "train/return" in line]
    return [step for step, _ in found], [score for _, score in found]


def draw(path: Path, steps: list[int], returns: list[float], title: str) -> None:
    """A dot per episode, and the mean of the last ones as a line."""
    from matplotlib.figure import Figure  # a second to import, hence only now

    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(steps, returns, ".", color="#56B4E9", ms=3, label="an episode")
    mean = np.convolve(returns, np.full(RECENT, 1 / RECENT), "valid")
    axes.plot(steps[RECENT - 1 :], mean, color="#0072B2", lw=1.5, label=f"mean of the last {RECENT}")
    axes.set(title=title, xlabel="environment steps", ylabel="return")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc="best")
    figure.savefig(path, dpi=110)
