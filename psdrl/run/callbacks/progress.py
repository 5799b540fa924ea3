"""What a user sees of a run: a progress bar, or a line now and then where there is no terminal."""

import time
from collections import deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from rich.table import Table

from psdrl.envs.vector import Step
from psdrl.run.callbacks.interface import Callback, Episode, Run

REDRAW = 0.1  # seconds; rich draws ten times a second
LINE = 30.0  # seconds between two lines where there is no terminal


class FittingBar(Bar):
    """Drops columns that the terminal has no room for, the least useful first; steps and ETA stay."""

    def __init__(self, console: Console) -> None:
        self._where = console  # the base draws before it has a console
        self.every: tuple[ProgressColumn, ...] = (
            TextColumn("[bold]{task.description:<11}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[scores]}"),
            TimeElapsedColumn(),
            TextColumn("eta"),
            TimeRemainingColumn(),
        )
        phase, bar, _, scores, elapsed, _, _ = self.every
        self.droppable = (bar, elapsed, phase, scores)
        super().__init__(*self.every, console=console, disable=not console.is_terminal)

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        """The columns that fit."""
        tasks = list(tasks)
        kept = list(self.every)
        for column in self.droppable:
            if sum(self._width(column, tasks) for column in kept) + len(kept) - 1 <= self._where.width:
                break
            kept.remove(column)
        self.columns = tuple(kept)
        return super().make_tasks_table(tasks)

    def _width(self, column: ProgressColumn, tasks: list[Task]) -> int:
        shown = (Measurement.get(self._where, self._where.options, column(task)) for task in tasks)
        return max((measurement.maximum for measurement in shown), default=0)


class Progress(Callback):
    """Progress bar with recent returns; tells of compilation and of a new sequence length."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._returns: deque[float] = deque(maxlen=20)
        self._eval = "-"
        self._length = 0.0

    def on_start(self, run: Run) -> None:
        self._total, self._start, self._step = run.config.steps, run.step, run.step
        self._began = self._shown = time.monotonic()
        self._bar = FittingBar(self.console)
        self._task = self._bar.add_task("acting", total=self._total, completed=self._start, scores="")
        self._bar.start()

    def on_end(self, run: Run, error: BaseException | None) -> None:
        self._bar.update(self._task, completed=run.step)
        self._bar.stop()

    def on_phase(self, run: Run, name: str) -> None:
        self._bar.update(self._task, description=name)

    def on_step(self, run: Run, first: int, actions: NDArray[np.int64], step: Step) -> None:
        now = time.monotonic()
        if now - self._shown > (REDRAW if self.console.is_terminal else LINE):
            self._shown, self._step = now, run.step
            if self.console.is_terminal:
                self._bar.update(self._task, completed=run.step)
            else:
                self._line()

    def _scores(self) -> str:
        recent = f"{sum(self._returns) / len(self._returns):.2f}" if self._returns else "-"
        return f"return {recent} eval {self._eval}"

    def _line(self) -> None:
        rate = (self._step - self._start) / max(1e-9, self._shown - self._began)
        eta = (self._total - self._step) / max(1e-9, rate) / 60
        self.console.print(
            f"step {self._step}/{self._total}  {self._scores()}  {rate:.1f} steps/s  eta {eta:.0f} min",
            highlight=False,
            soft_wrap=True,
        )

    def on_episode(self, run: Run, episode: Episode) -> None:
        self._returns.append(episode.score)
        self._bar.update(self._task, scores=self._scores())

    def on_evaluation(self, run: Run, returns: list[float]) -> None:
        self._eval = f"{np.mean(returns):.2f}"
        self._bar.update(self._task, scores=self._scores())

    def on_update(self, run: Run, metrics: dict[str, float]) -> None:
        if metrics.get("time/compile", 0.0) >= 1:
            self.console.print(
                f"compiled for {metrics['time/compile']:.0f} s in this update; the code is cached for the next run",
                highlight=False,
            )
        length = metrics.get("train/sequence_length")
        if length is not None and length != self._length:
            self._length = length
            self.console.print(f"sequence length L = {length:.0f} from step {run.step} on", highlight=False)
