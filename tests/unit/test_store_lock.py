"""One writer per run directory: refused at once, free again when the holder is gone, however it went."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import filelock
import pytest

from psdrl.errors import UserError
from psdrl.run.store.lock import Lock
from tests.conftest import Run

HOLD = """
import sys, time
from pathlib import Path
from psdrl.run.store.lock import Lock
with Lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""
SMALL = ("--env", "deepsea-4", "--preset", "debug", "--device", "cpu", "--steps", "20")


def hold(folder: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock."""
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", HOLD, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root})
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_writer_is_refused_until_the_first_is_gone(tmp_path: Path, cli_run: Run) -> None:
    """Killed, it leaves its name behind, but no lock."""
    with hold(tmp_path / "run") as process:
        before = time.monotonic()
        with pytest.raises(UserError, match=f"process {process.pid} on {socket.gethostname()} since 20"):
            Lock(tmp_path / "run").__enter__()
        assert time.monotonic() - before < 1
        outcome = cli_run("train", *SMALL, "--logdir", "run")
        assert (outcome.code, f"process {process.pid}" in outcome.err) == (2, True), outcome
        process.send_signal(signal.SIGKILL)
    assert (tmp_path / "run" / ".holder.json").exists()
    assert cli_run("train", *SMALL, "--logdir", "run").code == 0, "a stale lock, and a directory without a run"
    assert not (tmp_path / "run" / ".holder.json").exists()


def test_two_in_one_process(tmp_path: Path) -> None:
    with Lock(tmp_path), pytest.raises(UserError, match=f"process {os.getpid()}"):
        Lock(tmp_path).__enter__()
    with Lock(tmp_path):
        pass


def test_a_writer_on_another_host_that_shares_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its heart beats: refused. It has stopped: taken over after two beats."""
    far = Lock(tmp_path, beat=0.05, host="far")
    with far:
        far._lock.release()  # the lock is not seen here, the file is
        with pytest.raises(UserError, match="on far"):
            Lock(tmp_path, beat=0.5).__enter__()
        far._release.set()
        far._heart.join()
        holder = (tmp_path / ".holder.json").read_text()
        with Lock(tmp_path, beat=0.1):
            assert json.loads((tmp_path / ".holder.json").read_text())["host"] == socket.gethostname()
    assert json.loads(holder)["host"] == "far"


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The heartbeat has to do, also on this host."""

    def not_here(self: filelock.FileLock) -> None:
        raise NotImplementedError

    monkeypatch.setattr(filelock.FileLock, "_acquire", not_here)
    with Lock(tmp_path, beat=0.05), pytest.raises(UserError, match=f"process {os.getpid()}"):
        Lock(tmp_path, beat=0.5).__enter__()
    with Lock(tmp_path, beat=0.05):
        pass


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"host": 3}', "x" * 10_000], ids=lambda text: text[:9])
def test_a_holder_that_cannot_be_read(text: str, tmp_path: Path) -> None:
    (tmp_path / ".holder.json").write_text(text)
    with Lock(tmp_path, beat=0.02):
        pass


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        Lock(tmp_path / "file" / "run").__enter__()
