"""What a user sees of a run: progress bar, metrics.jsonl, TensorBoard."""

import json
import os
import time
from collections import deque
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from psdrl.run.store import metrics


class Log:
    """The interface of the training loop; this base writes nothing."""

    logdir: Path | None = None

    def phase(self, name: str) -> None:
        """What the run is doing now."""

    def progress(self, step: int) -> None:
        """How far the run is."""

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Metrics at this step."""

    def flush(self) -> None:
        """Put everything on disk."""

    def position(self) -> int:
        """Bytes of metrics.jsonl so far."""
        return 0


class NoLog(Log):
    """For use from Python without a directory: silent."""


class RunLog(Log):
    """Writes metrics.jsonl and TensorBoard files into `logdir` and shows progress on the console."""

    def __init__(
        self, logdir: Path, total: int, start: int = 0, keep_bytes: int = 0, console: Console | None = None
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.logdir = logdir
        self.console = console or Console()
        # A resumed run forgets what was logged after its checkpoint: it will happen again.
        metrics.trim(logdir / "metrics.jsonl", keep_bytes)
        self._file = open(logdir / "metrics.jsonl", "a", encoding="utf-8")  # noqa: SIM115
        self._board = SummaryWriter(str(logdir), purge_step=start + 1 if start else None)
        self._returns: deque[float] = deque(maxlen=20)
        self._eval = "-"
        self._length = 0.0
        self._total, self._start, self._step = total, start, start
        self._began = self._shown = time.monotonic()
        self._bar = Progress(
            TextColumn("[bold]{task.description:<11}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[scores]}"),
            TimeElapsedColumn(),
            TextColumn("eta"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task("acting", total=total, completed=start, scores="")

    def __enter__(self) -> "RunLog":
        self._bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()
        self._file.close()
        self._board.close()

    def phase(self, name: str) -> None:
        self._bar.update(self._task, description=name)

    def progress(self, step: int) -> None:
        self._step = step
        self._bar.update(self._task, completed=step)
        if not self.console.is_terminal and time.monotonic() - self._shown > 30:
            self._line()

    def _scores(self) -> str:
        recent = f"{sum(self._returns) / len(self._returns):.2f}" if self._returns else "-"
        return f"return {recent} eval {self._eval}"

    def _line(self) -> None:
        """A plain line now and then where there is no terminal to draw on."""
        self._shown = time.monotonic()
        rate = (self._step - self._start) / max(1e-9, self._shown - self._began)
        eta = (self._total - self._step) / max(1e-9, rate) / 60
        self.console.print(
            f"step {self._step}/{self._total}  {self._scores()}  {rate:.1f} steps/s  eta {eta:.0f} min",
            highlight=False,
            soft_wrap=True,
        )

    def scalars(self, step: int, values: dict[str, float]) -> None:
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        for name, value in values.items():
            self._board.add_scalar(name, value, step)
        if "train/return" in values:
            self._returns.append(values["train/return"])
        if "eval/return" in values:
            self._eval = f"{values['eval/return']:.2f}"
        if values.get("time/compile", 0.0) >= 1:
            self.console.print(
                f"compiled for {values['time/compile']:.0f} s in this update; the code is cached for the next run",
                highlight=False,
            )
        length = values.get("train/sequence_length")
        if length is not None and length != self._length:
            self._length = length
            self.console.print(f"sequence length L = {length:.0f} from step {step} on", highlight=False)
        self._bar.update(self._task, scores=self._scores())

    def flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())  # a checkpoint says how long the file is
        self._board.flush()

    def position(self) -> int:
        return os.fstat(self._file.fileno()).st_size
