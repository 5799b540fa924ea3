"""One writer per run directory.

The operating system holds the lock and drops it when its holder dies, however it dies. Beside it lies who holds it, a
file that is touched every few seconds: where two hosts share a file system that does not share locks, the other's
heart is seen to beat.
"""

import contextlib
import json
import os
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import filelock

from psdrl.errors import UserError
from psdrl.run.store.files import Damaged, read

BEAT = 5.0  # seconds


class Lock:
    """`with Lock(logdir):` refuses at once if another process writes there. A holder that was seen on another host is
    watched for two beats, for its lock may not be visible here."""

    def __init__(self, logdir: Path, beat: float = BEAT, host: str | None = None) -> None:
        self.logdir, self._beat, self._host = logdir, beat, host or socket.gethostname()
        self._lock = filelock.FileLock(str(logdir / ".lock"), timeout=0, thread_local=False)
        self._holder = logdir / ".holder.json"
        self._release = threading.Event()
        self._heart = threading.Thread(target=self._touch, name="heartbeat", daemon=True)

    def __enter__(self) -> "Lock":
        try:
            self.logdir.mkdir(parents=True, exist_ok=True)
            self._acquire()
            record = {"host": self._host, "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
            self._holder.write_text(json.dumps(record), encoding="utf-8")
        except filelock.Timeout:
            self._refuse()
        except OSError as error:
            raise UserError(f"--logdir {self.logdir} cannot be written ({error.strerror}): use another.") from None
        self._heart.start()
        return self

    def _acquire(self) -> None:
        with contextlib.suppress(NotImplementedError):  # a file system without locks: the heartbeat has to do
            self._lock.acquire()
        holder = self._read()
        died_here = holder.get("host") == self._host and self._lock.is_locked
        if not holder or died_here:
            return
        seen, until = self._beats(), time.monotonic() + 2 * self._beat
        while time.monotonic() < until:
            time.sleep(self._beat / 20)
            if self._beats() != seen:
                self._lock.release()
                self._refuse()

    def _beats(self) -> int:
        try:
            return self._holder.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def _read(self) -> dict[str, Any]:
        """Who holds the lock, or held it and died."""
        try:
            holder = json.loads(read(self._holder, 4096))
            return holder if isinstance(holder, dict) else {}
        except (Damaged, ValueError, RecursionError):
            return {}

    def _refuse(self) -> None:
        holder = {"host": "?", "pid": "?", "since": "?"} | self._read()
        raise UserError(
            f"{self.logdir} is being written by process {holder['pid']} on {holder['host']} since {holder['since']}: "
            "wait for it, stop it, or use another --logdir."
        )

    def _touch(self) -> None:
        while not self._release.wait(self._beat):
            with contextlib.suppress(OSError):
                os.utime(self._holder)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._release.set()
        self._heart.join()
        with contextlib.suppress(OSError):
            self._holder.unlink()
        self._lock.release()
