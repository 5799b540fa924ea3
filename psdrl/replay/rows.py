"""What a checkpoint sees of a replay buffer: rings of numbered rows, and a few counters.

The rows of a ring are numbered from 0 in the order in which they were written, and keep their numbers: a checkpoint
needs only those that are new since the one before. This room knows nothing of files.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

Rows = dict[str, Tensor]  # the columns of consecutive rows, on the host


class Span(NamedTuple):
    """The rows of a ring that are still needed: from `first` to before `end`; before `settled` they never change."""

    first: int
    settled: int
    end: int


class Rings(ABC):
    """A replay buffer as rings of rows; `counters` say where its rows lie, so that a restored buffer has the same
    layout: the rounding of later updates depends on it."""

    ring_slots: int  # most rows that a ring can need

    @abstractmethod
    def spans(self) -> list[Span]:
        """The rows needed of each ring."""

    @abstractmethod
    def rows(self, ring: int, first: int, last: int) -> Rows:
        """A copy of the rows from `first` to before `last`, which must be needed ones; none of them: empty columns."""

    @abstractmethod
    def load_rows(self, ring: int, first: int, rows: Rows) -> None:
        """Put back what `rows` gave, after `load_counters`."""

    @abstractmethod
    def counters(self) -> dict[str, Any]:
        """All but the rows, as JSON values."""

    @abstractmethod
    def load_counters(self, counters: dict[str, Any]) -> None:
        """Restore what `counters` gave; raises ValueError for what no buffer of this size could have."""

    def state_dict(self) -> dict[str, Any]:
        """The whole buffer at once, for small ones; checkpoints take it row by row."""
        spans = self.spans()
        rows = [self.rows(ring, span.first, span.end) for ring, span in enumerate(spans)]
        return {"counters": self.counters(), "rows": rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.load_counters(state["counters"])
        for ring, (span, rows) in enumerate(zip(self.spans(), state["rows"], strict=True)):
            self.load_rows(ring, span.first, rows)


def taken(column: Tensor, first: int, last: int) -> Tensor:
    """A copy on the host of rows `first` to before `last` of a ring that starts over at its end."""
    start, count = first % len(column), last - first
    if start + count <= len(column):
        return column[start : start + count].to("cpu", copy=True)
    return torch.cat([column[start:].cpu(), column[: start + count - len(column)].cpu()])


def put(column: Tensor, first: int, rows: Tensor) -> None:
    """The inverse of `taken`; raises ValueError for rows of another kind."""
    if rows.dtype != column.dtype or rows.shape[1:] != column.shape[1:] or len(rows) > len(column):
        raise ValueError(f"rows of {rows.dtype} {tuple(rows.shape)} do not fit {column.dtype} {tuple(column.shape)}")
    start = first % len(column)
    before_the_end = min(len(rows), len(column) - start)
    column[start : start + before_the_end].copy_(rows[:before_the_end])
    column[: len(rows) - before_the_end].copy_(rows[before_the_end:])


def columns(rows: Rows, names: tuple[str, ...]) -> int:
    """How many rows these are; raises ValueError unless they are columns of these names and of one length."""
    lengths = {len(column) if column.ndim else -1 for column in rows.values()}
    if set(rows) != set(names) or len(lengths) != 1:
        raise ValueError(f"rows have columns {', '.join(sorted(rows))} of lengths {sorted(lengths)}")
    return lengths.pop()


def whole(value: Any, low: int, high: int, name: str) -> int:
    """An integer of this range; raises ValueError for anything else."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} is {str(value)[:40]}, not a whole number from {low} to {high}")
    return value


def wholes(values: Any, count: int | None, low: int, high: int, name: str) -> list[int]:
    """A list of so many integers of this range; raises ValueError for anything else."""
    if not isinstance(values, list) or (count is not None and len(values) != count):
        raise ValueError(f"{name} has {len(values) if isinstance(values, list) else 'no'} values, not {count}")
    return [whole(value, low, high, name) for value in values]
