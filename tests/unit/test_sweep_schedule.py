"""The scheduler: real processes of small programs, what it does when they fail, and its estimate of the end."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from psdrl.sweep import grid, plan
from psdrl.sweep.asha import Asha
from psdrl.sweep.copying import Copy
from psdrl.sweep.progress import Eta, Screen
from psdrl.sweep.schedule import Local, Lost, Schedule, Task
from psdrl.sweep.worker import Job, Look, Worker
from tests.conftest import Run

ROOT = Path(__file__).parents[2]
# A program that counts its lives in a file; `code` by life, then what it prints.
COUNT = """
import os, signal, sys
folder, codes = sys.argv[1], [int(c) for c in sys.argv[2].split(",")]
with open(folder + "/lives", "a+") as file:
    file.write("x")
    file.flush()
    file.seek(0)
    life = len(file.read())
code = codes[min(life, len(codes)) - 1]
print(f"life {life}")
if code < 0:
    os.kill(os.getpid(), -code)
if code:
    print("error: it is broken,\\nsee its cause.", file=sys.stderr)
sys.exit(code)
"""


def program(tmp_path: Path, name: str, text: str) -> dict[str, str]:
    """A module that jobs can run; the variables with which it is found."""
    (tmp_path / f"{name}.py").write_text(text)
    return {"PYTHONPATH": str(tmp_path)}


def counted(tmp_path: Path, name: str, codes: str, **options: Any) -> Task:
    variables = program(tmp_path, "count", COUNT)
    (tmp_path / name).mkdir(exist_ok=True)
    return Task(Job(name, "count", ("{folder}", codes), str(tmp_path / name), variables, **options))


def never() -> bool:
    return False


def test_failures_are_tried_again_and_stop_nothing(tmp_path: Path) -> None:
    tasks = {
        "good": counted(tmp_path, "good", "0"),
        "once": counted(tmp_path, "once", "3,0"),
        "killed": counted(tmp_path, "killed", "-9,-9,0"),
        "always": counted(tmp_path, "always", "7"),
        "dies": counted(tmp_path, "dies", "-9"),
    }
    schedule = Schedule(tasks.values(), Local(2), retries=2)
    ended: list[str] = []
    schedule.on_change = lambda task: ended.append(task.job.name)
    schedule.run(never)
    assert {name: task.state for name, task in tasks.items()} == {
        "good": "finished", "once": "finished", "killed": "finished", "always": "failed", "dies": "failed",
    }  # fmt: skip
    assert {name: task.attempts for name, task in tasks.items()} == {
        "good": 1, "once": 2, "killed": 3, "always": 3, "dies": 3,
    }  # fmt: skip
    assert tasks["always"].reasons[-1] == "it is broken, see its cause."
    assert tasks["dies"].reasons[-1] == "its process was killed by signal 9"
    assert sorted(ended) == sorted(tasks), "each is told of once"
    assert (tmp_path / "once" / "output.txt").read_text().count("life") == 2


def test_no_more_jobs_at_a_time_than_asked(tmp_path: Path) -> None:
    """Each notes how many others run; with two at a time none sees a third."""
    text = """
import os, sys, time
shared = os.path.dirname(sys.argv[1])
mine = os.path.join(shared, f"running-{os.getpid()}")
open(mine, "w").close()
seen, until = 0, time.monotonic() + 0.4
while time.monotonic() < until:
    seen = max(seen, sum(name.startswith("running-") for name in os.listdir(shared)))
os.unlink(mine)
print(seen)
"""
    variables = program(tmp_path, "crowd", text)
    tasks = [Task(Job(f"{i}", "crowd", ("{folder}",), str(tmp_path / f"{i}"), variables)) for i in range(5)]
    Schedule(tasks, Local(2)).run(never)
    seen = [int((tmp_path / f"{i}" / "output.txt").read_text()) for i in range(5)]
    assert max(seen) == 2


def test_runs_share_gpus(tmp_path: Path) -> None:
    """Two halves of each of two GPUs: four at a time, each sees one."""
    variables = program(tmp_path, "show", "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
    backend = Local(9, gpus_per_run=0.5, gpus=2)
    workers: list[Any] = []
    while backend.room():
        workers.append(backend.submit(Job("x", "show", (), str(tmp_path / f"{len(workers)}"), variables)))
    assert len(workers) == 4
    for worker in workers:
        assert worker.child is not None
        worker.child.wait()
    backend.close()
    assert sorted((tmp_path / f"{i}" / "output.txt").read_text().strip() for i in range(4)) == ["0", "0", "1", "1"]
    assert not Local(9, gpus_per_run=2, gpus=1).room()


def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    """The parent is killed: its child, which would run for a minute, is gone at once."""
    sleeper = "import os, sys, time\nopen(sys.argv[1] + '/pid', 'w').write(str(os.getpid()))\ntime.sleep(60)"
    variables = program(tmp_path, "sleeper", sleeper)
    starter = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("worker", {str(ROOT / "psdrl/sweep/worker.py")!r})
worker = sys.modules["worker"] = module_from_spec(spec)
spec.loader.exec_module(worker)
one = worker.Worker()
one.start(worker.Job("x", "sleeper", ("{{folder}}",), {str(tmp_path / "x")!r}, {variables!r}))
print("started", flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"started\n"
    pid = int(wait_for(lambda: (tmp_path / "x" / "pid").exists() and (tmp_path / "x" / "pid").read_text()))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2])


def wait_for(asked: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Until it is so."""
    until = time.monotonic() + seconds
    while not (found := asked()):
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.01)
    return found


def test_stopping_asks_each_process_once_and_starts_no_other(tmp_path: Path) -> None:
    polite = """
import signal, sys, time
def end(*_):
    print("saved", flush=True)
    sys.exit(130)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(60)
"""
    variables = program(tmp_path, "polite", polite)
    tasks = [Task(Job(f"{i}", "polite", (), str(tmp_path / f"{i}"), variables)) for i in range(3)]

    def ready() -> bool:
        outputs = [tmp_path / f"{i}" / "output.txt" for i in range(2)]
        return all(path.exists() and "ready" in path.read_text() for path in outputs)

    Schedule(tasks, Local(2)).run(stop=ready)
    assert [task.state for task in tasks] == ["waiting"] * 3, "they go on next time"
    assert [(tmp_path / f"{i}" / "output.txt").read_text() for i in range(2)] == ["ready\nsaved\n"] * 2
    assert not (tmp_path / "2").exists()


class Scripted:
    """A backend whose workers do what a script says: one list of news per attempt."""

    def __init__(self, *attempts: Sequence[Look | Lost]) -> None:
        self.attempts, self.begun, self.stopped = list(attempts), 0, 0

    def room(self) -> bool:
        return True

    def submit(self, job: Job) -> object:
        self.news = iter(self.attempts[self.begun])
        self.begun += 1
        self.handle = object()
        return self.handle

    def looks(self) -> Iterator[tuple[object, Look | Lost]]:
        if self.handle is not None:
            yield self.handle, next(self.news)

    def stop(self, handle: object) -> None:
        self.stopped += 1

    def release(self, handle: object) -> None:
        self.handle = None

    def close(self) -> None:
        pass


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psdrl.sweep.schedule.AGAIN", 0.0)
    monkeypatch.setattr("psdrl.sweep.schedule.PAUSE", 0.0)


def scripted(*attempts: Sequence[Look | Lost], retries: int = 2, steps: int = 100) -> tuple[Task, Scripted]:
    task, backend = Task(Job("x", "x", (), "/nowhere"), steps=steps), Scripted(*attempts)
    Schedule([task], backend, retries).run(never)
    return task, backend


@pytest.mark.usefixtures("hasty")
def test_a_run_that_progresses_is_not_given_up() -> None:
    """Its nodes die nine times, with a new checkpoint each time; then thrice without one."""
    lives: list[list[Look | Lost]] = [[Look(10 * i, 10 * i), Lost("its node died")] for i in range(9)]
    task, _ = scripted(*lives, [Look(90, 90), Look(100, 100, code=0)])
    assert (task.state, task.attempts, len(task.reasons)) == ("finished", 10, 9)
    dying: list[list[Look | Lost]] = [[Look(85, 80), Lost("its node died")] for _ in range(3)]
    task, _ = scripted(*lives, *dying)
    assert (task.state, task.attempts) == ("failed", 11), "the last new checkpoint came with the ninth life"


@pytest.mark.usefixtures("hasty")
def test_a_run_that_another_process_writes_is_waited_for() -> None:
    busy = [Look(code=2, held=True, words="error: it is being written.")]
    task, backend = scripted(*[list(busy) for _ in range(5)], [Look(100, 100, code=0)], retries=0)
    assert (task.state, task.attempts, backend.begun) == ("finished", 1, 6)
    assert not task.reasons


@pytest.mark.usefixtures("hasty")
def test_own_failures_are_bounded_though_it_progresses() -> None:
    task, _ = scripted(*[[Look(i, i, code=1, words="error: no.")] for i in range(1, 9)])
    assert (task.state, task.attempts, task.reasons) == ("failed", 3, ["no."] * 3)


def test_eta_is_the_forecast_corrected_by_what_was_measured() -> None:
    now = time.monotonic()
    done = Task(Job("a", "", (), ""), steps=100, state="finished", seconds=30.0, made=100)
    half = Task(Job("b", "", (), ""), steps=100, state="running", look=Look(50), first=0, since=now - 30)
    wait = Task(Job("c", "", (), ""), steps=100)
    eta = Eta([done, half, wait])
    assert eta.seconds() is None
    assert str(eta) == "-"
    eta.predicted = {"a": 10.0, "b": 20.0, "c": 40.0}
    assert eta.factor() == pytest.approx((30 + 30) / (10 + 10), rel=1e-3), "each second of the forecast takes three"
    assert eta.seconds() == pytest.approx(3 * (10 + 40), rel=1e-3), "one run at a time"
    wait.state, wait.since, wait.look = "running", now, Look(0)
    assert eta.seconds() == pytest.approx(3 * 40, rel=0.05), "the longest of two"
    half.state = wait.state = "waiting"
    half.made, half.seconds, half.look = 50, 30.0, Look(50)
    assert eta.seconds() is None, "nothing runs"


def test_the_screen_has_sums_a_bar_and_the_runs_under_way() -> None:
    now = time.monotonic()
    tasks = [
        Task(Job("a/psdrl/seed-0", "", (), ""), steps=100, state="finished"),
        Task(Job("b/psdrl/seed-0", "", (), ""), 100, "running", Look(20), 1, since=now - 5, evaluations=[(10, 0.5)]),
        Task(Job("c/psdrl/seed-0", "", (), ""), 100, "running", Look(80, host="far"), 2, since=now - 65),
        Task(Job("d/psdrl/seed-0", "", (), ""), steps=200),
    ]
    console = Console(width=90, height=20, file=io.StringIO())
    console.print(Screen(tasks, console, Eta(tasks)).render())
    assert isinstance(console.file, io.StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert lines[0] == "1 of 4 finished, 2 running, 1 waiting; eta -"
    assert set(lines[1].strip()) <= set("━╸╺ ")
    assert [line.split() for line in lines[2:]] == [
        ["run", "step", "%", "evaluation", "time", "attempt", "host"],
        ["c/psdrl/seed-0", "80/100", "80", "-", "65", "s", "2", "far"],
        ["b/psdrl/seed-0", "20/100", "20", "0.50", "5", "s", "1"],
    ]
    small = Console(width=90, height=7, file=io.StringIO())
    small.print(Screen(tasks, small, Eta(tasks)).render())
    assert isinstance(small.file, io.StringIO)
    assert small.file.getvalue().splitlines()[-1].strip() == "and 1 more"


def test_asha_ends_the_worst_settings_of_each_environment() -> None:
    """Returns of the two environments are of different sizes; in each, one setting in three goes on at a rung."""
    axes = tuple(grid.parse(["value.units=8,9,10,11,12,13"]))
    flags = ("--preset", "debug", "--device", "cpu", "--steps", "2700", "--eval-every", "100")
    cases = plan.plan([plan.Block(("deepsea-4", "deepsea-5"), ("psdrl",), (0,), axes, flags)])
    asha = Asha(cases, grace=300, factor=3)
    gone = set()
    tasks = {case: Task(Job(case.name, "", (), ""), steps=2700) for case in cases}
    for step in range(100, 2701, 100):
        for case, task in reversed(tasks.items()):  # the best come first
            if case in gone:
                continue
            value = float(case.point[0][1]) * (1000 if case.env == "deepsea-4" else 1)
            task.evaluations.append((step, value))
            if not asha.goes_on(task):
                assert step >= 300
                gone.add(case)
    kept = {(case.env, case.point[0][1]) for case in cases if case not in gone}
    assert ("deepsea-4", "13") in kept
    assert ("deepsea-5", "13") in kept
    assert 2 <= len(kept) <= 6
    again = Asha(cases, grace=300, factor=3)  # after a restart: all that is known at once
    best = tasks[next(case for case in reversed(cases) if case.env == "deepsea-5")]
    assert again.goes_on(best)
    worst = next(case for case in cases if case.env == "deepsea-5")
    assert not again.goes_on(tasks[worst])


# Copies, of real runs


class Direct:
    """A worker that is asked as an actor is, in this process."""

    read: Any

    def __init__(self, worker: Worker) -> None:
        for name in ("clear", "write", "snapshot", "read"):
            setattr(self, name, SimpleNamespace(remote=getattr(worker, name)))
        self.started: list[tuple[Job, bool]] = []
        self.start = SimpleNamespace(remote=lambda job, copied: self.started.append((job, copied)))


def contents(folder: Path) -> dict[str, bytes]:
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in paths.items() if not re.search(r"(^|/)\.", name)}


def saved(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "run").glob("checkpoint-*"))


def test_copies_there_and_back(cli_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is brought to another machine, goes on there and comes back; copying may break off anywhere."""
    monkeypatch.setattr("psdrl.sweep.copying.PIECE", 1000)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "there"))
    flags = ("--env", "deepsea-4", "--preset", "debug", "--device", "cpu", "--eval-every", "0", "--logdir")
    home, job = tmp_path / "home", Job("x", "psdrl.train", (), str(tmp_path / "home"))
    assert cli_run("train", *flags, home / "run", "--steps", "350", "--checkpoint-every", "100").code == 0
    (home / "output.txt").write_text("said")
    before = contents(home)

    worker = Worker()
    actor, ray = Direct(worker), SimpleNamespace(get=lambda value: value)
    copy = Copy(ray, actor, job, "psdrl-sweep-1/x")
    copy.there()
    there = tmp_path / "there" / "psdrl-sweep-1" / "x"
    assert contents(there) == before
    assert actor.started == [(job, True)]

    assert cli_run("train", *flags, there / "run", "--steps", "650", "--checkpoint-every", "100").code == 0
    reading = actor.read.remote
    for pieces in (0, 5, 10):  # the worker is lost in the middle of a copy
        left = iter(range(pieces))
        actor.read = SimpleNamespace(remote=lambda *where, left=left: (next(left), reading(*where))[1])
        with pytest.raises(StopIteration):
            copy.back()
        assert saved(home) == ["checkpoint-300", "checkpoint-350"]
        assert contents(home).items() >= before.items()
    actor.read = SimpleNamespace(remote=reading)
    copy.back()
    assert saved(there) == ["checkpoint-600", "checkpoint-650"]
    assert saved(home) == ["checkpoint-350", "checkpoint-650"]
    after = contents(home)
    newest = {n: d for n, d in contents(there).items() if "checkpoint-600" not in n and "/replay/" not in n}
    assert {n: after[n] for n in newest} == newest
    manifests = [json.loads(path.read_text()) for path in (home / "run").glob("checkpoint-*/manifest.json")]
    assert {p.name for p in (home / "run" / "replay").iterdir()} == {
        s["name"] for m in manifests for s in m["segments"]
    }
    shutil.rmtree(there)
    assert "is finished: it has 650 steps" in cli_run("train", *flags, home / "run", "--steps", "650").out
    assert cli_run("train", *flags, home / "run", "--steps", "700").code == 0, "all that it needs to go on is there"


def test_a_copy_cannot_leave_its_folder(tmp_path: Path) -> None:
    worker = SimpleNamespace(snapshot=lambda: [("../../evil", 1, 1)], read=lambda *_: b"x", clear=None, write=None)
    copy = Copy(SimpleNamespace(get=lambda value: value), Direct(worker), Job("x", "", (), str(tmp_path / "a/b")), "x")  # type: ignore[arg-type]
    with pytest.raises(OSError, match="outside"):
        copy.back()
    assert not (tmp_path / "evil").exists()
