"""What a run writes into its directory: metrics.jsonl and TensorBoard files."""

import json
import os
from pathlib import Path
from typing import Any, BinaryIO

from psdrl.errors import UserError
from psdrl.run.callbacks.interface import Callback, Run, Scalars
from psdrl.run.store import metrics


def directory(run: Run, callback: Callback) -> Path:
    """Where the run is written."""
    if run.logdir is None:
        raise UserError(f"{type(callback).__name__} writes into the run's directory: set logdir.")
    return run.logdir


class Metrics(Scalars):
    """metrics.jsonl: one JSON object per line, `step` first. A resumed run forgets what was logged after its
    checkpoint: it will happen again."""

    def __init__(self) -> None:
        self._kept = 0
        self._file: BinaryIO | None = None

    def on_start(self, run: Run) -> None:
        path = directory(run, self) / "metrics.jsonl"
        metrics.trim(path, self._kept)
        self._file = open(path, "ab")  # noqa: SIM115

    def scalars(self, step: int, values: dict[str, float]) -> None:
        assert self._file is not None
        self._file.write(json.dumps({"step": step, **values}).encode() + b"\n")
        self._file.flush()

    def on_end(self, run: Run, error: BaseException | None) -> None:
        assert self._file is not None
        self._kept = self._file.tell()
        self._file.close()

    def state(self) -> dict[str, Any]:
        """Bytes on the disk: a checkpoint says how long the file is."""
        if self._file is not None and not self._file.closed:
            os.fsync(self._file.fileno())
            self._kept = self._file.tell()
        return {"bytes": self._kept}

    def resume(self, state: dict[str, Any]) -> None:
        self._kept = int(state["bytes"])


class TensorBoard(Scalars):
    """TensorBoard event files. A resumed run hides what was logged after the step of its checkpoint."""

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError("TensorBoard is not installed: pip install tensorboard.") from None
        self._writer = SummaryWriter
        self._board: Any = None
        self._step = 0

    def on_start(self, run: Run) -> None:
        where = directory(run, self)
        again = self._step > 0 or any(where.glob("events.out.tfevents.*"))  # a life before this one may have gone on
        self._board = self._writer(str(where), purge_step=self._step + 1 if again else None)

    def scalars(self, step: int, values: dict[str, float]) -> None:
        self._step = step
        for name, value in values.items():
            self._board.add_scalar(name, value, step)

    def on_checkpoint(self, run: Run, path: Path) -> None:
        self._board.flush()

    def on_end(self, run: Run, error: BaseException | None) -> None:
        self._board.close()

    def state(self) -> dict[str, Any]:
        """The last step written."""
        return {"step": self._step}

    def resume(self, state: dict[str, Any]) -> None:
        self._step = int(state["step"])
