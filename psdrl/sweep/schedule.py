"""The scheduler of the house: jobs to workers, until each has finished or has failed for good.

Why Ray's actors and not Ray Tune: which runs there are is known at the start, and each is its own checkpoint, exact to
the bit. Tune would keep a second record of what has finished, beside the run directories, and restore from that; here
the directories are the only record, so whatever dies (run, worker, node, this process), the same command goes on from
them. An actor, unlike a task, can be asked at any time how far it is, to stop after saving, and for its files. Tune
decides where something is to be decided: which runs ASHA ends early (psdrl/sweep/asha.py).

A backend runs jobs: `Local` in processes of this machine, `psdrl.sweep.cluster.Cluster` on Ray."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from psdrl.sweep.worker import Job, Look, Worker

State = Literal["waiting", "queued", "running", "finished", "stopped", "failed"]  # queued: for a machine
PAUSE = 0.1  # seconds between two rounds of looks
AGAIN = 1.0  # seconds before a job that failed is tried again
HELD = 300.0  # seconds to wait for a run that another process writes, such as one on a node that was taken for dead


class Lost(Exception):
    """A worker is gone, and its process with it; the message says why."""


@dataclass(eq=False)
class Task:
    """A job and what has become of it."""

    job: Job
    steps: int = 0  # that it is to make, 0 if it does not count any
    state: State = "waiting"
    look: Look = field(default_factory=Look)
    attempts: int = 0
    failures: int = 0  # of the run itself
    losses: int = 0  # of its worker, in a row, without a new checkpoint
    saved: int = -1  # step of the newest checkpoint that was seen
    reasons: list[str] = field(default_factory=list)
    seconds: float = 0.0  # of all attempts
    made: int = 0  # steps made in these seconds
    since: float = 0.0
    first: int = -1  # the step at which this attempt began
    not_before: float = 0.0
    held: float = 0.0  # since when another process has written it
    stopping: str = ""  # why it was asked to stop
    evaluations: list[tuple[int, float]] = field(default_factory=list)

    @property
    def open(self) -> bool:
        """Whether there is still something to do."""
        return self.state in ("waiting", "queued", "running")

    @property
    def step(self) -> int:
        """How far it is."""
        return self.steps if self.state == "finished" else max(self.look.step, self.look.saved, 0)

    @property
    def elapsed(self) -> float:
        """Seconds of all attempts, this one included."""
        return self.seconds + (time.monotonic() - self.since if self.state == "running" else 0.0)


class Backend(Protocol):
    """Where jobs run."""

    def room(self) -> bool:
        """Whether another job may be submitted now."""

    def submit(self, job: Job) -> Any:
        """Start a job; returns its handle, with which it is looked for, stopped and released."""

    def looks(self) -> Iterator[tuple[Any, Look | Lost]]:
        """What is new of the jobs under way, since the last call."""

    def stop(self, handle: Any) -> None:
        """Ask a job to save and end."""

    def release(self, handle: Any) -> None:
        """Forget a job that has ended."""

    def close(self) -> None:
        """End everything."""


class Local:
    """Processes of this machine, `jobs` at a time; with GPUs, each job sees the one it was given."""

    def __init__(self, jobs: int, gpus_per_run: float = 0.0, gpus: int = 0) -> None:
        self._jobs = jobs
        per_gpu = int(1 / gpus_per_run) if 0 < gpus_per_run <= 1 else 1
        width = max(1, int(gpus_per_run))
        sets = [",".join(map(str, range(i, i + width))) for i in range(0, gpus - width + 1, width)]
        self._free = [devices for devices in sets for _ in range(per_gpu)] if gpus_per_run else []
        self._running: dict[Worker, str] = {}
        self._gpu = bool(gpus_per_run)

    def room(self) -> bool:
        return len(self._running) < self._jobs and (bool(self._free) or not self._gpu)

    def submit(self, job: Job) -> Worker:
        devices = self._free.pop(0) if self._gpu else ""
        variables = {"CUDA_VISIBLE_DEVICES": devices} if self._gpu else {}
        worker = Worker()
        worker.start(Job(**vars(job) | {"environment": job.environment | variables}))
        self._running[worker] = devices
        return worker

    def looks(self) -> Iterator[tuple[Worker, Look | Lost]]:
        for worker in list(self._running):
            yield worker, worker.look()

    def stop(self, handle: Worker) -> None:
        handle.stop()

    def release(self, handle: Worker) -> None:
        handle.end()
        devices = self._running.pop(handle)
        if self._gpu:
            self._free.append(devices)

    def close(self) -> None:
        for worker in list(self._running):
            self.release(worker)


class Schedule:
    """Runs tasks on a backend. A run that fails by itself is tried `retries` times more; one whose worker or node
    dies as often in a row without a new checkpoint: where machines come and go, what progresses is not given up."""

    def __init__(self, tasks: Iterable[Task], backend: Backend, retries: int = 2) -> None:
        self.tasks, self.backend, self.retries = list(tasks), backend, retries
        self.on_change: Callable[[Task], None] = lambda task: None  # a task has ended
        self.on_look: Callable[[Task], None] = lambda task: None  # something is known of it
        self._handles: dict[Any, Task] = {}
        self._stopping = False

    def run(self, stop: Callable[[], bool], tell: Callable[[], None] = lambda: None) -> None:
        """Until all tasks have ended, or `stop()` and those under way have saved."""
        try:
            while any(task.open for task in self.tasks):
                if stop() and not self._stopping:
                    self._stop_all()
                if self._stopping and not self._handles:
                    return
                if not self._stopping:
                    self._submit()
                for handle, news in self.backend.looks():
                    self._hear(handle, self._handles[handle], news)
                tell()
                time.sleep(PAUSE)
        finally:
            self.backend.close()

    def end(self, task: Task, why: str) -> None:
        """Stop one run early, after saving."""
        for handle, other in self._handles.items():
            if other is task and not task.stopping:
                task.stopping = why
                self.backend.stop(handle)

    def _stop_all(self) -> None:
        self._stopping = True
        for handle, task in list(self._handles.items()):
            if task.state == "queued":  # it waits for a machine: it has nothing to save, and must not begin
                self._over(handle, task)
                task.state = "waiting"
            elif not task.stopping:
                self.backend.stop(handle)

    def _submit(self) -> None:
        now = time.monotonic()
        for task in self.tasks:
            if task.state != "waiting" or task.not_before > now:
                continue
            if not self.backend.room():
                return
            task.state, task.first = "queued", -1
            task.attempts += not task.held
            self._handles[self.backend.submit(task.job)] = task

    def _hear(self, handle: Any, task: Task, news: Look | Lost) -> None:
        if isinstance(news, Lost):
            self._over(handle, task)
            self._lost(task, str(news))
            return
        if news.saved > task.saved:
            task.saved, task.losses = news.saved, 0
        last = task.evaluations[-1][0] if task.evaluations else 0
        task.evaluations += [one for one in news.evaluations if one[0] > last]  # a resumed run repeats some
        task.look = news
        if task.state == "queued":
            task.state, task.since = "running", time.monotonic()
        task.first = news.step if task.first < 0 else min(task.first, news.step)
        self.on_look(task)
        if news.code is not None:
            self._over(handle, task)
            self._ended(task, news)

    def _over(self, handle: Any, task: Task) -> None:
        """The attempt is over."""
        self.backend.release(handle)
        del self._handles[handle]
        task.seconds = task.elapsed
        task.made += max(0, task.look.step - max(0, task.first))

    def _ended(self, task: Task, news: Look) -> None:
        code = news.code or 0
        if code == 0:
            self._close(task, "finished")
        elif news.held and time.monotonic() - (task.held or time.monotonic()) < HELD:
            task.held = task.held or time.monotonic()
            self._wait(task, 2 * AGAIN)
        elif task.stopping and (code == 130 or code < 0):
            self._close(task, "stopped", task.stopping)
        elif self._stopping and (code == 130 or code < 0):
            task.state = "waiting"
        elif code < 0:
            self._lost(task, f"its process was killed by signal {-code}")
        else:
            task.failures += 1
            self._failed(task, _sentence(news.words) or f"exit code {code}", task.failures)

    def _lost(self, task: Task, reason: str) -> None:
        task.losses += 1
        self._failed(task, reason, task.losses)

    def _failed(self, task: Task, reason: str, count: int) -> None:
        task.reasons.append(reason)
        task.held = 0.0
        if count > self.retries:
            self._close(task, "failed", reason)
        else:
            self._wait(task, AGAIN)

    def _wait(self, task: Task, seconds: float) -> None:
        task.state, task.not_before = "waiting", time.monotonic() + seconds

    def _close(self, task: Task, state: State, reason: str = "") -> None:
        task.state = state
        if reason and (not task.reasons or task.reasons[-1] != reason):
            task.reasons.append(reason)
        self.on_change(task)


def _sentence(words: str) -> str:
    """The last line of a run's output that says something: the error, or the end of a traceback."""
    lines = [line.strip(" │╯╰─") for line in words.splitlines()]
    lines = [line for line in lines if line]
    errors = [i for i, line in enumerate(lines) if line.startswith("error:")]
    if errors:  # a sentence may be wrapped
        return " ".join(lines[errors[-1] :]).removeprefix("error:").strip()[:500]
    return lines[-1][:500] if lines else ""
