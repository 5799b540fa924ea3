"""Runs on machines that do not share the sweep's disk: their files go there and come back through Ray, in pieces.

The copy in the sweep's directory is what counts. It changes only from one checkpoint to the next whole one: a
checkpoint is put into place after all that it needs, at once, so a sweep that dies while copying has the one before."""

import os
import shutil
import time
from pathlib import Path
from typing import Any

from psdrl.run.store.saver import checkpoints
from psdrl.sweep.worker import RUN, Job, files_of, segments_of

PIECE = 8 << 20  # bytes that the object store holds of a copy
KEEP = 2  # checkpoints of a copy


class Copy:
    """The files of one run on another machine, for one life of its worker."""

    def __init__(self, ray: Any, actor: Any, job: Job, there: str) -> None:
        self._ray, self._actor, self._job, self._there = ray, actor, job, there
        self._here = Path(job.folder)
        self._known: dict[str, tuple[int, int]] = {}  # files that are equal here and there: size, time of change there
        self.at = time.monotonic()  # of the last copy

    def there(self) -> None:
        """Bring the run's files to its machine, and start it."""
        self._ray.get(self._actor.clear.remote(self._there))
        for path in files_of(self._here, newest_only=False):
            name = str(path.relative_to(self._here))
            with open(path, "rb") as file:
                data = file.read(PIECE)
                while True:
                    self._known[name] = self._ray.get(self._actor.write.remote(name, data))
                    data = file.read(PIECE)
                    if not data:
                        break
        self._ray.get(self._actor.start.remote(self._job, copied=True))
        self.at = time.monotonic()

    def back(self) -> None:
        """Fetch what has changed since the last copy."""
        incoming = self._here / ".incoming"
        shutil.rmtree(incoming, ignore_errors=True)
        entries = self._ray.get(self._actor.snapshot.remote())
        for name, size, changed in entries:
            if self._known.get(name) == (size, changed) and (self._here / name).exists():
                continue
            path = _below(incoming, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                for first in range(0, size, PIECE):
                    file.write(self._ray.get(self._actor.read.remote(name, first, min(PIECE, size - first))))
                file.flush()
                os.fsync(file.fileno())
        self._install(incoming, [name for name, *_ in entries])
        self._known = {name: (size, changed) for name, size, changed in entries}
        self.at = time.monotonic()

    def _install(self, incoming: Path, names: list[str]) -> None:
        """Put new files into their places: those of a checkpoint last and together."""
        whole = [path for path in (incoming / RUN).glob("checkpoint-*") if path.is_dir()]
        for name in names:
            new = incoming / name
            if new.exists() and new.parent not in whole:
                (self._here / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(new, self._here / name)
        for folder in whole:
            place = self._here / RUN / folder.name
            shutil.rmtree(place, ignore_errors=True)
            os.rename(folder, place)
        shutil.rmtree(incoming, ignore_errors=True)
        self._prune()

    def _prune(self) -> None:
        """Remove checkpoints but the last ones, and replay segments that none of these needs."""
        run = self._here / RUN
        found = checkpoints(run)
        for old in found[KEEP:]:
            shutil.rmtree(old)
        named = {name for path in found[:KEEP] for name in segments_of(path)}
        for segment in (run / "replay").glob("segment-*"):
            if found and segment.name not in named:
                segment.unlink()


def _below(folder: Path, name: str) -> Path:
    """A file in this folder, whatever another machine calls it."""
    path = (folder / name).resolve()
    if folder.resolve() not in path.parents:
        raise OSError(f"{name} lies outside of the run")
    return path
