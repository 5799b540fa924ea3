"""Runs on Ray: one actor per run, on one machine or many.

An actor's process is a `Worker`, which starts the run in a process of its own. If the actor finds the sweep's token at
the sweep's own path, it shares that disk and the run is written there. If not, the run is written to its machine's
temporary directory and copied (psdrl/sweep/copying.py): nothing is assumed of disks."""

import contextlib
import hashlib
import importlib.util
import os
import secrets
import socket
import time
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from psdrl.errors import UserError
from psdrl.sweep import worker as module
from psdrl.sweep.copying import Copy
from psdrl.sweep.schedule import Lost
from psdrl.sweep.worker import Job, Look, Worker
from psdrl.version import __version__

Storage = Literal["auto", "shared", "copy"]
TOKEN = ".token"
AHEAD = 32  # actors that wait for a place, beyond those that run: an autoscaler sees what is needed
ROUND = 0.25  # seconds between two looks at a run, at least
PER_SECOND = 100  # looks at all runs, at most: a thousand runs are each looked at every ten seconds
COPIES = 4  # runs that are copied at a time
LOCAL_MEMORY = 256 << 20  # bytes of the object store of a Ray of our own: only files are passed, piece by piece


def connect(address: str, cpus: int, gpus: int) -> Any:
    """Ray's module, connected: to a Ray that runs (`auto`, HOST:PORT), or, if there is none or by `local`, to one that
    is started on this machine, on its loopback device, and ends with the sweep."""
    if importlib.util.find_spec("ray") is None:
        raise UserError(
            'Ray is not installed: pip install "psdrl[sweep]", or run in local processes with --address none.'
        )
    found = "" if address == "local" else _running() if address == "auto" else address
    if found.startswith("ray://"):
        raise UserError(f"--address {found} is Ray's client: run psdrl sweep on a node of the cluster instead.")
    if found and not _answers(found):  # Ray itself would try for many minutes
        raise _silence(found, "nothing listens there")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not found:  # before Ray is imported; the name is of other systems, the effect is that Ray stays on 127.0.0.1
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        os.environ.setdefault("RAY_worker_niceness", "0")  # not 15: beside any other work runs would stand still
    import ray

    ray.cloudpickle.register_pickle_by_value(module)  # by its source: importing psdrl would cost each actor torch
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if not found:
        sizes: dict[str, Any] = {"num_cpus": cpus, "num_gpus": gpus, "object_store_memory": LOCAL_MEMORY}
        ray.init(address="local", include_dashboard=False, **sizes, **quiet)
        return ray
    try:
        ray.init(address=found, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _silence(found, (str(error).splitlines() or [type(error).__name__])[0]) from None
    return ray


def _running() -> str:
    """The address of a Ray that is named by the environment or runs here: what `ray start` leaves says so, and stays
    behind if it is killed. "": there is none."""
    note = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    if os.environ.get("RAY_ADDRESS"):
        return os.environ["RAY_ADDRESS"]
    noted = note.read_text(encoding="utf-8").strip() if note.exists() else ""
    return noted if _answers(noted) else ""


def _answers(address: str) -> bool:
    """Whether something listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError):
        return False
    return True


def _silence(address: str, why: str) -> UserError:
    return UserError(
        f"No Ray answers at {address} ({why.rstrip('.')}): start one (docs/cluster.md), or use --address local or none."
    )


def largest(ray: Any) -> tuple[float, float]:
    """The most CPUs and the most GPUs that one node has."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return max(n.get("CPU", 0.0) for n in nodes), max(n.get("GPU", 0.0) for n in nodes)


@dataclass(eq=False)
class Handle:
    """A run on its way."""

    job: Job
    actor: Any
    stage: Literal["seeing", "starting", "running", "fetching"]
    question: tuple[Any, ...] = ()  # method of the actor and its arguments
    waits: Any = None  # the answer that is awaited
    copy: Copy | None = None
    work: "Future[Any] | None" = None  # copying, in a thread
    whole: bool = False  # the copy under way was begun after the run had ended
    last: Look | None = None
    at: float = 0.0  # when to look again
    heard: int = -1  # step of the last evaluation that was told
    stopping: bool = False


class Cluster:
    """A backend: an actor per run, at most `jobs` at a time or as many as the nodes have room for."""

    def __init__(
        self,
        ray: Any,
        out: Path,
        cpus: float,
        gpus: float,
        jobs: int = 0,
        storage: Storage = "auto",
        copy_every: float = 60.0,
    ) -> None:
        self._ray, self._out, self._jobs, self._storage = ray, out.resolve(), jobs, storage
        self._copy_every = copy_every  # seconds
        self._token = secrets.token_hex(16)
        (self._out / TOKEN).write_text(self._token, encoding="utf-8")
        place = hashlib.sha256(f"{os.uname().nodename} {self._out}".encode()).hexdigest()[:12]
        self._scratch = f"psdrl-sweep-{place}"  # in every life of this sweep: what one leaves, the next removes
        actor = ray.remote(num_cpus=cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0)
        self._actor = actor(Worker)
        self._cpus, self._gpus = cpus, gpus
        self._handles: list[Handle] = []
        self._threads = ThreadPoolExecutor(COPIES, "copy")
        self._away = ray.exceptions.ActorUnavailableError
        self._lost = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError)

    def room(self) -> bool:
        if self._jobs:
            return len(self._handles) < self._jobs
        waiting = sum(handle.stage == "seeing" for handle in self._handles)
        return waiting < AHEAD

    def submit(self, job: Job) -> Handle:
        handle = Handle(job, self._actor.remote(), "seeing")
        self._ask(handle, "sees", str(self._out / TOKEN), self._token)
        self._handles.append(handle)
        return handle

    def _ask(self, handle: Handle, *question: Any) -> None:
        method, *arguments = handle.question = question
        handle.waits = getattr(handle.actor, method).remote(*arguments)

    def looks(self) -> Iterator[tuple[Handle, Look | Lost]]:
        now = time.monotonic()
        for handle in self._handles:
            if handle.stage == "running" and handle.waits is None and handle.at <= now:
                self._ask(handle, "look", handle.heard)
        waits = {handle.waits: handle for handle in self._handles if handle.waits is not None}
        ready = self._ray.wait(list(waits), num_returns=len(waits), timeout=0)[0] if waits else []
        for answer in ready:
            yield from self._heard(waits[answer])
        for handle in [h for h in self._handles if h.work is not None and h.work.done()]:
            yield from self._worked(handle)

    def _heard(self, handle: Handle) -> Iterator[tuple[Handle, Look | Lost]]:
        """An answer has come."""
        answer, handle.waits = handle.waits, None
        try:
            said = self._ray.get(answer)
        except self._away:  # Ray does not know yet whether it is dead: ask again until it answers, or Ray knows
            self._ask(handle, *handle.question)
            if handle.stopping:
                handle.actor.stop.remote()
            return
        except self._lost as error:
            yield handle, Lost(_why(error))
            return
        except self._ray.exceptions.RayTaskError as error:  # such as a full disk over there
            yield handle, Lost(str(error).strip().splitlines()[-1])
            return
        if handle.stage == "seeing":
            yield from self._seen(handle, *said)
        elif handle.stage == "starting":
            handle.stage = "running"
        elif handle.stage == "running":
            yield from self._looked(handle, said)

    def _seen(
        self, handle: Handle, shares: bool, host: str, version: str | None
    ) -> Iterator[tuple[Handle, Look | Lost]]:
        """Its machine is known: start the run in the sweep's directory or, with copies of its files, in its own."""
        problem = ""
        if version not in (None, __version__):
            problem = f"{host} has psdrl {version}, the sweep is of {__version__}: install the same version everywhere"
        if self._storage == "shared" and not shares:
            problem = f"{host} does not see --out {self._out}: leave out --storage shared, and runs are copied"
        if problem:
            yield handle, Look(code=1, words=f"error: {problem}.", host=host)
        elif shares and self._storage != "copy":
            handle.stage = "starting"
            self._ask(handle, "start", handle.job)
        else:
            handle.copy = Copy(self._ray, handle.actor, handle.job, f"{self._scratch}/{handle.job.name}")
            handle.stage, handle.work = "starting", self._threads.submit(handle.copy.there)

    def _looked(self, handle: Handle, look: Look) -> Iterator[tuple[Handle, Look | Lost]]:
        pause = max(ROUND, len(self._handles) / PER_SECOND)
        handle.at = time.monotonic() + pause
        handle.heard = max([handle.heard, *(step for step, _ in look.evaluations)])
        if handle.copy is None:
            yield handle, look
            return
        ended = look.code is not None
        due = ended or time.monotonic() - handle.copy.at >= self._copy_every
        if due and handle.work is None:
            handle.work = self._threads.submit(handle.copy.back)
            handle.whole = ended
        if ended:
            handle.stage, handle.last = "fetching", look  # its end is told when its files are here
        else:
            yield handle, look

    def _worked(self, handle: Handle) -> Iterator[tuple[Handle, Look | Lost]]:
        """Copying is done."""
        work, handle.work = handle.work, None
        assert work is not None
        assert handle.copy is not None
        try:
            work.result()
        except self._away:
            if handle.stage == "starting":
                yield handle, Lost("its machine did not answer while files were copied to it")
            elif handle.stage == "fetching":
                handle.work, handle.whole = self._threads.submit(handle.copy.back), True
            return  # while running, the next look tells
        except self._lost as error:
            yield handle, Lost(_why(error))
            return
        except (OSError, self._ray.exceptions.RayTaskError) as error:
            said = str(error).strip().splitlines()[-1]
            yield handle, Lost(f"its files could not be copied ({said})")
            return
        if handle.stage == "starting":
            handle.stage = "running"
        elif handle.stage == "fetching" and handle.whole:
            assert handle.last is not None
            yield handle, handle.last
        elif handle.stage == "fetching":
            handle.work, handle.whole = self._threads.submit(handle.copy.back), True

    def stop(self, handle: Handle) -> None:
        handle.stopping = True
        handle.actor.stop.remote()

    def release(self, handle: Handle) -> None:
        self._handles.remove(handle)
        if handle.work is not None:  # the next life of the run must not meet the copying of this one
            self._ray.kill(handle.actor)
            futures.wait([handle.work])
        elif handle.copy is not None:
            with contextlib.suppress(*self._lost, self._ray.exceptions.GetTimeoutError):
                self._ray.get(handle.actor.forget.remote(), timeout=10)
        self._ray.kill(handle.actor)

    def close(self) -> None:
        for handle in list(self._handles):
            self.release(handle)
        self._threads.shutdown(cancel_futures=True)
        self._ray.shutdown()


def _why(error: Exception) -> str:
    """What Ray says of a dead actor, in few words."""
    return "its node died" if "node has died" in str(error) else "its worker died"
