"""metrics.jsonl: one JSON object per line. What a crash left of its last line is dropped."""

import contextlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path

from psdrl.errors import UserError

LINE = 1 << 20  # most bytes of a line


def trim(path: Path, keep: int) -> None:
    """Forget what was logged after the first `keep` bytes, and a line that was cut short; never lengthens the file."""
    with contextlib.suppress(FileNotFoundError), open(path, "r+b") as file:
        size = min(max(keep, 0), os.fstat(file.fileno()).st_size)
        file.seek(max(0, size - LINE))
        tail = file.read(min(size, LINE))
        file.truncate(size - len(tail) + tail.rfind(b"\n") + 1)


def read(path: Path) -> Iterator[dict[str, float]]:
    """The lines of a finished or running run; raises UserError for what is none, the unfinished last one aside."""
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(LINE), b""), 1):
                if not line.endswith(b"\n"):
                    if len(line) == LINE:
                        raise UserError(f"{path} line {number} is too long to be of a run.")
                    return
                yield _checked(path, number, line)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from None


def _checked(path: Path, number: int, line: bytes) -> dict[str, float]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        values = None
    good = isinstance(values, dict) and type(values.get("step")) is int
    if not good or not all(type(value) in (int, float) for value in values.values()):
        raise UserError(f"{path} line {number} is no metrics of a run: remove the line.")
    if not all(abs(value) < 2**63 for value in values.values() if not math.isnan(value) and not math.isinf(value)):
        raise UserError(f"{path} line {number} has a number that no run can have: remove the line.")
    return values
