"""A worker: one run in a process of its own, what is known of it, and its files.

Ray sends this module to other machines by its source, and a worker costs 0.1 GB because of it: nothing but the standard
library is imported here. No method waits for the run, so whoever asks has an answer at once."""

import contextlib
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

RUN, OUTPUT, SNAPSHOT = "run", "output.txt", ".snapshot"
TAIL = 4000  # characters of a failed run's output that are kept
SKIPPED = (".lock", ".holder.json")  # of the process that writes, not of the run
# The process of a job: `python -m MODULE ARGUMENTS`, ended when its parent is gone. The parent holds the other end of
# stdin; if it dies, however it dies, the pipe closes and this process kills itself. A run that nobody watches would
# hold the lock of its directory, and no other could go on from its checkpoints. What is lost is what a kill loses: the
# steps since the last checkpoint, which are made again, bit for bit.
CHILD = """
import os, runpy, signal, sys, threading
def watch():
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=watch, name="parent", daemon=True).start()
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
Entry = tuple[str, int, int]  # a file: its path below the job's folder, its size, the time of its last change


@dataclass(frozen=True)
class Job:
    """A process to run: `python -m MODULE ARGUMENTS`, with `{folder}` in the arguments for the job's folder."""

    name: str
    module: str
    arguments: tuple[str, ...]
    folder: str  # its files; a training run lies in FOLDER/run
    environment: dict[str, str] = field(default_factory=dict)
    apart: bool = False  # stderr goes to errors.txt instead of output.txt


class Look(NamedTuple):
    """What is known of a run."""

    step: int = 0  # of its last line of metrics
    saved: int = -1  # step of its last checkpoint
    evaluations: tuple[tuple[int, float], ...] = ()  # step and return, those after the step that was asked about
    code: int | None = None  # of the process that has ended; -9: it was killed
    held: bool = False  # refused because another process writes the run
    words: str = ""  # the end of a failed run's output
    host: str = ""
    kept: str = ""  # where its files are, "" if in the sweep's own directory


class Worker:
    """Runs one job; everything is asked of it from outside."""

    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self.folder = Path()
        self._read = 0  # bytes of metrics.jsonl
        self._step = 0
        self._evaluations: list[tuple[int, float]] = []
        self._stopping = False

    def sees(self, file: str, token: str) -> tuple[bool, str, str | None]:
        """Whether this machine shares the disk on which that file was written; its name; its psdrl's version."""
        try:
            shares = Path(file).read_text(encoding="utf-8") == token
        except OSError:
            shares = False
        try:
            version: str | None = importlib.metadata.version("psdrl")
        except importlib.metadata.PackageNotFoundError:  # perhaps a source tree
            version = None
        return shares, os.uname().nodename, version

    def start(self, job: Job, copied: bool = False) -> None:
        """Start the process, with its files in the job's folder or, `copied`, in that of `clear`. It ends with this
        one, however that ends. Asked again, by one who did not hear the answer, it starts no second one."""
        if self.child:
            return
        self.folder = self.folder if copied else Path(job.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        words = [word.replace("{folder}", str(self.folder)) for word in job.arguments]
        with (
            open(self.folder / OUTPUT, "ab") as out,
            open(self.folder / "errors.txt", "ab") if job.apart else contextlib.nullcontext(out) as errors,
        ):
            self.child = subprocess.Popen(
                [sys.executable, "-c", CHILD, job.module, *words],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=errors,
                env=os.environ | self._here(job.environment),
                start_new_session=True,  # Ctrl-C is for the sweep, which asks its runs to stop
            )

    @staticmethod
    def _here(environment: dict[str, str]) -> dict[str, str]:
        """The variables of a job; a source tree that is not on this machine is left out."""
        path = environment.get("PYTHONPATH", "")
        there = [part for part in path.split(os.pathsep) if part and Path(part).is_dir()]
        there += [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part not in there]
        return environment | {"PYTHONPATH": os.pathsep.join(there)}

    def look(self, after: int = -1) -> Look:
        """How far the run is, its evaluations after this step, and whether its process has ended. An answer may be
        lost: asked again, it tells the same."""
        code = self.child.poll() if self.child else None
        self._follow()
        evaluations = tuple(one for one in self._evaluations if one[0] > after)
        held = code is not None and code > 0 and (self.folder / RUN / ".holder.json").exists()
        saved = max((_order(path)[0] for path in (self.folder / RUN).glob("checkpoint-*")), default=-1)
        words = self._words() if code else ""
        return Look(self._step, saved, evaluations, code, held, words, os.uname().nodename)

    def _follow(self) -> None:
        """Read the metrics written since the last look; a resumed run begins with a shorter file."""
        with contextlib.suppress(FileNotFoundError), open(self.folder / RUN / "metrics.jsonl", "rb") as file:
            if file.seek(0, os.SEEK_END) < self._read:
                self._read = 0
                self._evaluations.clear()
            file.seek(self._read)
            data = file.read()
            whole = data.rfind(b"\n") + 1
            self._read += whole
            for line in data[:whole].splitlines():
                with contextlib.suppress(ValueError, TypeError, KeyError):
                    values = json.loads(line)
                    self._step = int(values["step"])
                    if "eval/return" in values:
                        self._evaluations.append((self._step, float(values["eval/return"])))

    def _words(self) -> str:
        errors = self.folder / "errors.txt"
        path = errors if errors.exists() else self.folder / OUTPUT
        try:
            with open(path, "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def text(self) -> str:
        """All that the process has printed."""
        return (self.folder / OUTPUT).read_text(encoding="utf-8", errors="replace")

    def stop(self) -> None:
        """Ask the process to save and end, once: asked twice it would not save."""
        if self.child and self.child.poll() is None and not self._stopping:
            self.child.send_signal(signal.SIGTERM)
            self._stopping = True

    def end(self) -> None:
        """Kill the process if it still runs, and forget it."""
        if self.child:
            self.child.kill()
            self.child.wait()
            self._close()

    def _close(self) -> None:
        pipe: IO[Any] | None = self.child.stdin if self.child else None
        if pipe:
            with contextlib.suppress(OSError):
                pipe.close()

    # Copying, where the sweep's directory is not on this machine

    def clear(self, folder: str) -> None:
        """An empty folder below this machine's temporary directory: what lay there was of a life before, which the
        sweep has a copy of."""
        self.folder = Path(tempfile.gettempdir()) / folder
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def forget(self) -> None:
        """Remove the folder: the sweep has all of it."""
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)
        for above in self.folder.parents:
            if above == Path(tempfile.gettempdir()):
                return
            with contextlib.suppress(OSError):  # other runs of the sweep may lie there
                above.rmdir()

    def write(self, name: str, data: bytes) -> tuple[int, int]:
        """Append to a file; its size and time of change."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as file:
            file.write(data)
        return path.stat().st_size, path.stat().st_mtime_ns

    def snapshot(self) -> list[Entry]:
        """Links to the files of the last checkpoint and to all else that the run has written: they stay what they are
        while the run goes on and removes old ones. Files that grow are read up to their size of now."""
        for _ in range(10):
            try:
                return self._snapshot()
            except FileNotFoundError:  # an old checkpoint was removed meanwhile
                continue
        return []

    def _snapshot(self) -> list[Entry]:
        links = self.folder / SNAPSHOT
        shutil.rmtree(links, ignore_errors=True)
        found: list[Entry] = []
        for path in files_of(self.folder, newest_only=True):
            name = str(path.relative_to(self.folder))
            (links / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(path, links / name)
            found.append((name, path.stat().st_size, path.stat().st_mtime_ns))
        return found

    def read(self, name: str, first: int, size: int) -> bytes:
        """Bytes of a file of the last snapshot."""
        with open(self.folder / SNAPSHOT / name, "rb") as file:
            file.seek(first)
            return file.read(size)


def _order(path: Path) -> tuple[int, int]:
    """Step of checkpoint-STEP or checkpoint-STEP-NUMBER, and the number; -1: it is none."""
    step, _, number = path.name.removeprefix("checkpoint-").partition("-")
    return (int(step), int(number or 0)) if step.isdigit() and (number or "0").isdigit() else (-1, -1)


def files_of(folder: Path, newest_only: bool) -> list[Path]:
    """The files of a job that are worth a copy, in the order in which they may be put into place: a checkpoint after
    all that it needs. `newest_only`: one checkpoint, and the replay segments that it names."""
    run = folder / RUN
    order = sorted((path for path in run.glob("checkpoint-*") if _order(path) >= (0, 0)), key=_order)
    checkpoints = order[-1:] if newest_only else order
    named = {segment for path in checkpoints for segment in segments_of(path)}
    found = [path for path in (folder / OUTPUT, folder / "errors.txt") if path.exists()]
    found += [path for path in (run / "replay" / name for name in sorted(named)) if newest_only or path.exists()]
    for path in sorted(run.rglob("*")) if run.exists() else []:
        inside = path.relative_to(run).parts
        ours = inside[0] == "replay" or inside[0].startswith("checkpoint-")
        if path.is_file() and not ours and not inside[-1].startswith(".") and inside[-1] not in SKIPPED:
            found.append(path)
    return found + [file for path in checkpoints for file in sorted(path.iterdir()) if file.is_file()]


def segments_of(checkpoint: Path) -> list[str]:
    """Names of the replay segments that a checkpoint needs."""
    manifest = json.loads((checkpoint / "manifest.json").read_bytes())
    return [Path(segment["name"]).name for segment in manifest["segments"]]
