"""Sweeps on a real Ray: a cluster of several nodes in processes of this machine, on the loopback device, and what was
killed in the middle of one."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.crash import compare, environment

MEMORY = 80 << 20  # bytes of an object store, the smallest that Ray takes
# A dead raylet is noticed by its workers after 0.1 s instead of 1, by the cluster after 2.5 s instead of 15.
ALERT = {"raylet_death_check_interval_milliseconds": 100, "health_check_period_ms": 500}
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
# Two agents, two seeds; checkpoints at odd steps, evaluations, episodes' ends.
FLAGS: tuple[str, ...] = ("--envs", "deepsea-5", "--algos", "psdrl,bootstrap", "--seeds", "2", "--preset", "debug")
FLAGS += ("--device", "cpu", "--steps", "2500", "--eval-every", "600", "--checkpoint-every", "137")


@contextmanager
def nodes(count: int) -> Iterator[Any]:
    """A cluster with a head that runs nothing, and nodes with a CPU each."""
    os.environ.update(LOOPBACK)
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:  # its sockets' names must be short
        os.environ["RAY_TMPDIR"] = folder  # here it notes its address, for --address auto
        home = Path(folder) / "ray"
        home.mkdir()
        common: dict[str, Any] = {"node_ip_address": "127.0.0.1", "object_store_memory": MEMORY}
        cluster = Cluster()
        try:
            cluster.add_node(num_cpus=0, include_dashboard=False, temp_dir=str(home), _system_config=ALERT, **common)
            for _ in range(count):
                cluster.add_node(num_cpus=1, **common)
            yield cluster
        finally:
            cluster.shutdown()
            del os.environ["RAY_TMPDIR"]


def kill_node(cluster: Any, raylet: int) -> None:
    """Kill the raylet alone. It must be waited for: Ray's workers take a process that nobody has waited for to be
    alive; on a real node init does this."""
    node = next(n for n in cluster.worker_nodes if n.all_processes["raylet"][0].process.pid == raylet)
    kill(raylet)
    node.all_processes["raylet"][0].process.wait()
    cluster.worker_nodes.remove(node)


def start(out: Path, address: str, *flags: str) -> subprocess.Popen[bytes]:
    """`psdrl sweep`, in a process of its own."""
    command = [sys.executable, "-m", "psdrl", "sweep", "--address", address, "--out", str(out), *FLAGS, *flags]
    with open(out.with_suffix(".out"), "ab") as said:
        return subprocess.Popen(command, stdout=said, stderr=said, env=environment() | LOOPBACK)


def wait(process: subprocess.Popen[bytes], out: Path, code: int = 0) -> str:
    """Until it has ended, with this code; what it said."""
    ended = process.wait(900)
    said = out.with_suffix(".out").read_text(errors="replace")
    assert ended == code, f"exit code {ended}:\n{said[-4000:]}"
    return said


def trainers(out: Path) -> dict[int, Path]:
    """Processes that train below this directory or on its behalf, by id, with their run directories."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if "psdrl.train" in words and "--logdir" in words:
                run = Path(words[words.index("--logdir") + 1])
                if out in run.parents or "psdrl-sweep-" in str(run):
                    found[int(folder.name)] = run
    return found


def parent(pid: int) -> int:
    """The process that started this one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def until(asked: Callable[[], Any], process: subprocess.Popen[bytes], seconds: float = 600.0) -> Any:
    """Ask until it is so, while the sweep goes on."""
    end = time.monotonic() + seconds
    while not (found := asked()):
        assert process.poll() is None, "the sweep ended before"
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return found


def in_the_middle(out: Path, most: int = 1700) -> tuple[int, Path] | None:
    """A process that trains and whose run the sweep has a checkpoint of, at `most` at this step; with its directory."""
    for pid, run in trainers(out).items():
        home = out.joinpath(*run.parts[-4:])
        saved = [int(path.name.split("-")[1]) for path in home.glob("checkpoint-*")]
        if saved and max(saved) <= most:
            return pid, run
    return None


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def statuses(out: Path) -> dict[str, dict[str, Any]]:
    """How the runs of a sweep ended, by name."""
    return {
        str(path.parent.relative_to(out)): json.loads(path.read_text()) for path in sorted(out.rglob("status.json"))
    }


def differences(calm: Path, out: Path) -> list[str]:
    """What differs between two sweeps, run for run: metrics without times, and all that the last checkpoint holds."""
    runs = sorted(path.parent.relative_to(calm) for path in calm.rglob("config.json"))
    assert len(runs) == 4
    assert sorted(path.parent.relative_to(out) for path in out.rglob("config.json")) == runs
    return [f"{run}: {what}" for run in runs for what in compare(calm / run, out / run)]
