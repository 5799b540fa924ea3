"""Saving a run while it goes on: copied at once, written by a thread, complete or not at all.

A checkpoint is a folder beside the old ones, renamed when it is on the disk and has been read back; only then are old
ones removed. Replay rows lie in segments that the checkpoints of a run share: a save writes those that are new.
"""

import re
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from psdrl.agents.interface import Agent
from psdrl.replay.rows import Rings, Span
from psdrl.run.store import manifest, segments
from psdrl.run.store.files import Damaged, Disk
from psdrl.run.store.manifest import FILES, REPLAY, SEGMENT, Manifest, Segment
from psdrl.run.store.segments import Part
from psdrl.run.store.tree import not_finite, split, to_json, to_safetensors

NAME = re.compile(r"checkpoint-(\d{1,18})(?:-(\d{1,9}))?")
BACKGROUND = 512 << 20  # bytes of new rows that are copied for the thread; more are written before the run goes on


class Saved(NamedTuple):
    """A checkpoint that was written."""

    path: Path
    bytes: int  # written, merged segments included
    seconds: float  # that the thread took


def order(path: Path) -> tuple[int, int]:
    """Checkpoints of a run by age: step, and number among those of one step."""
    match = NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2] or 0)) if match else (-1, -1)


def checkpoints(logdir: Path) -> list[Path]:
    """The checkpoints of a run, the newest first, damaged ones included."""
    return sorted((p for p in logdir.glob("checkpoint-*") if order(p) >= (0, 0)), key=order, reverse=True)


@dataclass
class _Job:
    """All that a checkpoint consists of, copied from the run."""

    step: int
    states: dict[str, tuple[Any, dict[str, Tensor]]]
    spans: list[Span]
    old: list[Segment]
    chunks: Iterable[list[Part]]


class Store:
    """Writes the checkpoints of one run, at most one at a time; `keep` of them remain. Failures are told to `warn` in
    a sentence, and training goes on: the next save tries again."""

    def __init__(
        self, logdir: Path, keep: int = 2, warn: Callable[[str], None] = warnings.warn, disk: Disk | None = None
    ) -> None:
        self.logdir, self.keep, self.warn, self.disk = logdir, keep, warn, disk or Disk()
        self.saved: Saved | None = None  # the last one
        self.stall = 0.0  # seconds for which the last save held up its caller
        self._folder = logdir / REPLAY
        self._memory: Callable[[], Rings | None] = lambda: None  # the buffer whose rows the segments hold
        self._segments: list[Segment] = []
        self._marks: list[int] = []  # of each ring: rows before this one are stored and settled
        self._history: list[Path] | None = None  # checkpoints that belong to this run, oldest first; None: all there
        self._thread: threading.Thread | None = None
        self._stopped: BaseException | None = None

    def resume(self, path: Path, memory: Rings) -> None:
        """Go on from this checkpoint, which has been restored: its segments are shared. What is newer is of a past
        that did not happen, or damaged: it is set aside, and removed after the next save."""
        found = manifest.load(path)
        self._memory = weakref.ref(memory)
        self._segments = list(found.segments)
        self._marks = [span.settled for span in memory.spans()]
        older = [other for other in checkpoints(self.logdir) if order(other) <= order(path)]
        self._history = older[::-1]
        for newer in set(checkpoints(self.logdir)) - set(older):
            aside = self.logdir / f".aside-{newer.name}"
            try:
                self.disk.remove(aside)
                self.disk.rename(newer, aside)
            except OSError as error:
                self.warn(f"{newer} is damaged and cannot be moved away ({error.strerror}).")

    def save(self, agent: Agent, extra: dict[str, Any] | None = None) -> None:
        """Copy the agent, its replay buffer's new rows and `extra`, and write them in the background. A save that is
        still being written is waited for first."""
        before = time.perf_counter()
        self.wait()
        memory: Rings = agent.replay
        spans = memory.spans()
        if self._memory() is not memory:
            self._forget(memory)
        pieces = segments.new_pieces(spans, self._marks)
        sizes = [segments.row_bytes(memory, ring) for ring in range(len(spans))]
        groups = segments.chunked(pieces, sizes)
        chunks: Iterable[list[Part]] = ([(p, memory.rows(*p)) for p in group] for group in groups)
        small = sum((last - first) * sizes[ring] for ring, first, last in pieces) <= BACKGROUND
        if small:
            chunks = list(chunks)
        parts = {"agent": agent.state_dict(), "run": extra or {}, "replay": memory.counters()}
        states = {name: split(state) for name, state in parts.items()}
        job = _Job(agent.step, states, spans, segments.needed(self._segments, spans), chunks)
        self._thread = threading.Thread(target=self._work, args=(job,), name="checkpoint")
        self._thread.start()
        if not small:
            self.wait()
        self.stall = time.perf_counter() - before

    @property
    def busy(self) -> bool:
        """Whether something is being written."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Until nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._stopped is not None:
            raise self._stopped

    def _forget(self, memory: Rings) -> None:
        """Segments are of another buffer, or cannot be read: the next checkpoint holds all rows anew."""
        self._memory = weakref.ref(memory)
        self._segments, self._marks = [], [0] * len(memory.spans())

    def _work(self, job: _Job) -> None:
        """Write a checkpoint; says why if it cannot be, and leaves nothing of it."""
        began = time.perf_counter()
        new: list[Path] = []
        try:
            path, written = self._write(job, new)
        except Exception as error:
            self._clean(new)
            self._failed(job, error)
            return
        except BaseException as error:
            self._stopped = error
            return
        self.saved = Saved(path, written, time.perf_counter() - began)
        try:
            self.disk.fsync_directory(self.logdir)
            self._prune()
        except Exception as error:
            self.warn(f"{path.name} is written, but old files could not be removed ({_reason(error)}).")
        except BaseException as error:
            self._stopped = error

    def _failed(self, job: _Job, error: Exception) -> None:
        if isinstance(error, Damaged) and (memory := self._memory()) is not None:
            self._forget(memory)
        kept = self._newest()
        serves = f"{kept.name} stays the last one" if kept else "there is none yet"
        self.warn(
            f"No checkpoint could be written at step {job.step} ({_reason(error)}): {serves}; "
            "training goes on and tries again."
        )

    def _newest(self) -> Path | None:
        return self._history[-1] if self._history else None

    def _write(self, job: _Job, new: list[Path]) -> tuple[Path, int]:
        """Segments, then the folder, then its name; `new` collects what is to be removed if this fails."""
        bad = not_finite(job.states["agent"][1])
        if bad is not None:
            raise ValueError(f"{bad} is not finite")
        self._start(new)
        kept, written = list(job.old), 0
        for parts in job.chunks:
            kept.append(self._segment(parts, 0, new))
            written += kept[-1].stored.size
        while group := segments.mergeable(kept):
            rows = (part for old in group for part in segments.decode(self._folder, old, old.raw))
            together = segments.merged(rows, job.spans)
            kept[-len(group) :] = [self._segment(together, group[0].level + 1, new)] if together else []
            written += kept[-1].stored.size if together else 0
        self.disk.fsync_directory(self._folder)
        path = self._name(job.step)
        partial = self.logdir / f".partial-{path.name}"
        new.append(partial)
        self.disk.mkdir(partial)
        files = {}
        for name, data in _contents(job):
            files[name] = self.disk.create(partial / name, data)
            written += files[name].size
        manifest.write(self.disk, partial, Manifest(job.step, files, tuple(kept)))
        self.disk.fsync_directory(partial)
        fresh = [segment for segment in kept if self._folder / segment.name in new]
        manifest.verify(partial, self._folder, fresh)
        self.disk.rename(partial, path)
        self._segments, self._marks = kept, [span.settled for span in job.spans]
        self._history = [*(self._history or []), path]
        return path, written

    def _start(self, new: list[Path]) -> None:
        """The run's directories, without what an interrupted save left."""
        if self._history is None:
            self._history = checkpoints(self.logdir)[::-1]
        if not self._folder.is_dir():
            self.disk.mkdir(self._folder)
            self.disk.fsync_directory(self.logdir)
        for left in self.logdir.glob(".partial-checkpoint-*"):
            self.disk.remove(left)

    def _segment(self, parts: list[Part], level: int, new: list[Path]) -> Segment:
        """A new file of rows."""
        names = [SEGMENT.fullmatch(path.name) for path in self._folder.glob("segment-*.zst")]
        numbers = [int(name[1]) for name in names if name]
        path = self._folder / f"segment-{max(numbers, default=0) + 1}.zst"
        packed, raw = segments.encode(parts)
        new.append(path)
        return Segment(path.name, self.disk.create(path, packed), raw, level, tuple(piece for piece, _ in parts))

    def _name(self, step: int) -> Path:
        """checkpoint-STEP, with a number behind it if there is one of this step."""
        same = [order(path)[1] for path in checkpoints(self.logdir) if order(path)[0] == step]
        return self.logdir / (f"checkpoint-{step}-{max(same) + 1}" if same else f"checkpoint-{step}")

    def _clean(self, new: list[Path]) -> None:
        for path in reversed(new):
            try:
                self.disk.remove(path)
            except OSError:  # the next save, or the next start, tries again
                continue

    def _prune(self) -> None:
        """Remove checkpoints but the last `keep`, and segments that none of these names."""
        assert self._history is not None
        newest = self._history[-1]
        kept = [path for path in self._history if order(path) <= order(newest)][-self.keep :]
        for aside in self.logdir.glob(".aside-*"):
            self.disk.remove(aside)
        for path in [p for p in checkpoints(self.logdir) if p not in kept]:
            aside = self.logdir / f".aside-{path.name}"
            self.disk.rename(path, aside)  # a half removed one has no name
            self.disk.remove(aside)
        self._history = kept
        named = {segment.name for segment in self._segments}
        for path in kept[:-1]:
            try:
                named |= {segment.name for segment in manifest.load(path).segments}
            except Damaged:  # it cannot serve, so its segments cannot either
                continue
        for path in self._folder.glob("segment-*.zst"):
            if path.name not in named:
                self.disk.unlink(path)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _contents(job: _Job) -> Iterator[tuple[str, bytes]]:
    """Each file of a checkpoint but the manifest."""
    for name in FILES:
        part, _, kind = name.partition(".")
        tree, tensors = job.states[part]
        yield name, to_json(tree) if kind == "json" else to_safetensors(tensors)
