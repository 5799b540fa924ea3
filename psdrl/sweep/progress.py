"""A whole sweep on one screen, or in a line now and then where there is no terminal."""

import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from psdrl.cost.forecast import duration
from psdrl.sweep.schedule import Task

LINE = 30.0  # seconds between two lines where there is no terminal
HEAD = 6  # lines of the screen that are not runs


class Eta:
    """Seconds until the end: the forecast of what is left, times what runs have taken so far for each second of their
    forecast, divided among the runs under way. Start-up, evaluation and a busy machine are in that factor."""

    def __init__(self, tasks: list[Task]) -> None:
        self.tasks = tasks
        self.predicted: dict[str, float] = {}  # seconds by the job's name; empty until the cost model has answered

    def factor(self) -> float | None:
        """Measured over predicted seconds; None: nothing is measured or nothing predicted."""
        took = expected = 0.0
        for task in self.tasks:
            made = task.made + (max(0, task.look.step - max(0, task.first)) if task.state == "running" else 0)
            if made and task.steps:
                took += task.elapsed
                expected += self.predicted.get(task.job.name, 0.0) * made / task.steps
        return took / expected if took > 0 and expected > 0 else None

    def seconds(self) -> float | None:
        """Until all runs have ended."""
        left = {task: self._left(task) for task in self.tasks if task.open}
        at_once = sum(task.state == "running" for task in self.tasks)
        if not self.predicted or not at_once:
            return None
        return (self.factor() or 1.0) * max(sum(left.values()) / at_once, max(left.values()))

    def _left(self, task: Task) -> float:
        done = task.step / task.steps if task.steps else 0.0
        return self.predicted.get(task.job.name, 0.0) * max(0.0, 1 - done)

    def __str__(self) -> str:
        left, factor = self.seconds(), self.factor()
        if left is None:
            return "-"
        source = "forecast" if factor is None else f"forecast x {factor:.2g}, as measured"
        return f"{duration(left)} ({source})"


class Screen:
    """Shows the state of all tasks; `with` it, call it now and then."""

    def __init__(self, tasks: list[Task], console: Console, eta: Eta) -> None:
        self.tasks, self.console, self.eta = tasks, console, eta
        self._live = Live(console=console, get_renderable=self.render, refresh_per_second=4, transient=True)
        self._said = time.monotonic()

    def __enter__(self) -> "Screen":
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def __call__(self) -> None:
        """Show what is new."""
        if not self.console.is_terminal and time.monotonic() - self._said >= LINE:
            self._said = time.monotonic()
            self._print(f"{self.summary()}; eta {self.eta}")

    def ended(self, task: Task) -> None:
        """Say what has become of a task."""
        took = duration(task.seconds)
        again = f", {task.attempts} attempts ({'; '.join(task.reasons)})" if task.attempts > 1 else ""
        if task.state == "failed":
            self._print(f"failed       {task.job.name}: {task.reasons[-1]} ({task.attempts} attempts)")
        elif task.state == "stopped":
            self._print(f"stopped      {task.job.name} at step {task.look.step}: {task.reasons[-1]}")
        else:
            self._print(f"finished     {task.job.name}, {took}{again}")

    def _print(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def count(self, state: str) -> int:
        """Tasks in this state."""
        return sum(task.state == state for task in self.tasks)

    def summary(self) -> str:
        """One line."""
        parts = [f"{self.count('finished')} of {len(self.tasks)} finished", f"{self.count('running')} running"]
        parts += [f"{n} {state}" for state in ("queued", "waiting", "stopped", "failed") if (n := self.count(state))]
        return ", ".join(parts)

    def render(self) -> Group:
        """Bar, sums, and the runs under way as far as the screen has room, the most advanced first."""
        steps = sum(task.steps for task in self.tasks) or 1
        made = sum(task.step for task in self.tasks)
        table = Table(box=None, pad_edge=False, header_style="bold")
        columns: dict[str, Callable[[Task], str]] = {
            "run": lambda task: escape(task.job.name),
            "step": lambda task: f"{task.step:,}/{task.steps:,}",
            "%": lambda task: f"{100 * task.step / max(1, task.steps):.0f}",
            "evaluation": lambda task: f"{task.evaluations[-1][1]:.2f}" if task.evaluations else "-",
            "time": lambda task: duration(task.elapsed),
            "attempt": lambda task: str(task.attempts),
            "host": lambda task: escape(task.look.host),
        }
        for name in columns:
            table.add_column(name, justify="left" if name in ("run", "host") else "right", no_wrap=True)
        running = sorted((t for t in self.tasks if t.state == "running"), key=lambda t: -t.step / max(1, t.steps))
        room = max(1, self.console.height - HEAD)
        for task in running[:room]:
            table.add_row(*(cell(task) for cell in columns.values()))
        more = [Text(f"and {len(running) - room} more")] if len(running) > room else []
        bar = Table.grid()  # a bar alone would not end its line
        bar.add_row(ProgressBar(total=steps, completed=made, width=min(60, self.console.width)))
        return Group(Text(f"{self.summary()}; eta {self.eta}", style="bold"), bar, table, *more)
