"""The backend on Ray, without Ray: which one is found; an actor is asked in this process, and answers are lost."""

import json
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from psdrl.errors import UserError
from psdrl.sweep import cluster
from psdrl.sweep.cluster import Cluster
from psdrl.sweep.schedule import Schedule, Task
from psdrl.sweep.worker import Job, Worker

EVALUATIONS = [(step, float(step % 7)) for step in range(10, 60, 10)]
PROGRAM = f"""
import json, os, sys, time
folder = sys.argv[1] + "/run"
os.makedirs(folder, exist_ok=True)
print("begun", flush=True)
for step, value in {EVALUATIONS}:
    with open(folder + "/metrics.jsonl", "a") as file:
        file.write(json.dumps({{"step": step, "eval/return": value}}) + "\\n")
    time.sleep(0.05)
"""


class Died(Exception):
    """Ray's ActorDiedError, and what it has in common with ActorUnavailableError."""


class Unavailable(Died):
    """Ray's ActorUnavailableError: the question may have been heard or not."""


class Answer:
    """Of an actor; an error is raised when it is fetched."""

    def __init__(self, call: Callable[[], Any], worker: Worker) -> None:
        self.worker = worker
        self.value: Any = None
        self.error: Exception | None = None
        try:
            self.value = call()
        except Exception as error:
            self.error = error


class Ray:
    """Ray with actors in this process. `before(name, count)` and `after(name, count)` are called around each
    method, and may raise."""

    exceptions = SimpleNamespace(
        RayActorError=Died,
        ActorUnavailableError=Unavailable,
        ObjectLostError=LookupError,
        RayTaskError=RuntimeError,
        GetTimeoutError=TimeoutError,
    )

    def __init__(self, before: Callable[[str, int], None], after: Callable[[str, int], None], cpus: int = 1) -> None:
        self.before, self.after = before, after
        self.asked: Counter[str] = Counter()
        self.cpus, self.actors = cpus, list[Any]()  # those beyond the CPUs wait

    def remote(self, **_: Any) -> Callable[[type[Worker]], Any]:
        return lambda kind: SimpleNamespace(remote=lambda: self._actor(kind()))

    def _actor(self, worker: Worker) -> Any:
        def ask(name: str, *arguments: Any, **named: Any) -> Answer:
            self.asked[name] += 1
            count = self.asked[name]

            def call() -> Any:
                self.before(name, count)
                said = getattr(worker, name)(*arguments, **named)
                self.after(name, count)
                return said

            return Answer(call, worker)

        self.actors.append(worker)
        names = ("sees", "start", "look", "stop", "clear", "write", "snapshot", "read", "forget")
        bound = {name: SimpleNamespace(remote=lambda *a, name=name, **n: ask(name, *a, **n)) for name in names}
        return SimpleNamespace(worker=worker, **bound)

    def wait(self, answers: list[Answer], num_returns: int, timeout: float) -> tuple[list[Answer], list[Answer]]:
        return [answer for answer in answers if answer.worker in self.actors[: self.cpus]], []

    def get(self, answer: Answer, timeout: float | None = None) -> Any:
        if answer.error:
            raise answer.error
        return answer.value

    def kill(self, actor: Any) -> None:
        actor.worker.end()
        self.actors.remove(actor.worker)

    def shutdown(self) -> None:
        pass


def nothing(name: str, count: int) -> None:
    pass


def every_second(*names: str) -> Callable[[str, int], None]:
    def lose(name: str, count: int) -> None:
        if name in names and count % 2:
            raise Unavailable

    return lose


def swept(ray: Ray, tmp_path: Path, storage: Any, retries: int = 0) -> Task:
    """One run of the program above, to its end."""
    (tmp_path / "program.py").write_text(PROGRAM)
    out = tmp_path / "out"
    out.mkdir()
    task = Task(Job("x", "program", ("{folder}",), str(out / "x"), {"PYTHONPATH": str(tmp_path)}), steps=50)
    Schedule([task], Cluster(ray, out, 1, 0, storage=storage, copy_every=0.0), retries).run(lambda: False)
    return task


@pytest.mark.parametrize("storage", ["shared", "copy"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_machine_that_does_not_answer_is_asked_again(
    storage: str, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second question is lost, or its answer: there is one run, not two, and no evaluation is missing."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "there"))
    lossy = every_second("sees", "look", "start" if storage == "shared" else "snapshot")
    ray = Ray(lossy, nothing) if when == "before" else Ray(nothing, lossy)
    task = swept(ray, tmp_path, storage)
    assert (task.state, task.attempts, task.reasons) == ("finished", 1, [])
    assert (tmp_path / "out/x/output.txt").read_text() == "begun\n"
    assert task.evaluations == EVALUATIONS
    lines = (tmp_path / "out/x/run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [step for step, _ in EVALUATIONS]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("The actor died because its node has died. Node Id: 1", "its node died"),
        ("The actor is dead because its worker process has died.", "its worker died"),
    ],
)
def test_the_reason_is_what_ray_says_in_the_end(said: str, reason: str, tmp_path: Path) -> None:
    """Two questions remain without an answer before Ray knows why; then the run begins anew."""

    def dying(name: str, count: int) -> None:
        if name == "look" and count in (2, 3):
            raise Unavailable
        if name == "look" and count == 4:
            raise Died(said)

    task = swept(Ray(dying, nothing), tmp_path, "shared", retries=1)
    assert (task.state, task.attempts, task.reasons) == ("finished", 2, [reason])


POLITE = """
import os, signal, sys, time
def end(*_):
    print("saved", flush=True)
    time.sleep(0.3)
    sys.exit(130)
signal.signal(signal.SIGTERM, end)
print("begun", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("lost", [(), ("stop", "look")], ids=["heard", "every second question is lost"])
def test_stopping_begins_none_that_waits_for_a_machine(lost: tuple[str, ...], tmp_path: Path) -> None:
    """One runs, two wait: it saves, is asked once, and they never begin."""
    (tmp_path / "polite.py").write_text(POLITE)
    variables = {"PYTHONPATH": str(tmp_path)}
    tasks = [Task(Job(f"{i}", "polite", (), str(tmp_path / f"{i}"), variables)) for i in range(3)]
    output = tmp_path / "0" / "output.txt"
    backend = Cluster(Ray(every_second(*lost), nothing), tmp_path, 1, 0, storage="shared")
    Schedule(tasks, backend).run(stop=lambda: tasks[0].state == "running" and "begun" in output.read_text())
    assert [task.state for task in tasks] == ["waiting"] * 3, "they go on next time"
    assert output.read_text() == "begun\nsaved\n"
    assert not (tmp_path / "1").exists()
    assert not (tmp_path / "2").exists()


def test_a_ray_that_does_not_listen_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that was killed leaves a note of its address; one that is named must answer."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert cluster._running() == ""
    (tmp_path / "ray").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        (tmp_path / "ray" / "ray_current_cluster").write_text(address)
        assert cluster._running() == address
    assert cluster._running() == ""
    with pytest.raises(UserError, match=f"No Ray answers at {address} .nothing listens there.: start one"):
        cluster.connect(address, 1, 0)
    for named, said in (
        (address, "No Ray answers"),
        ("ray://head:10001", "is Ray's client"),
        ("head", "No Ray answers"),
    ):
        monkeypatch.setenv("RAY_ADDRESS", named)
        with pytest.raises(UserError, match=said):
            cluster.connect("auto", 1, 0)
