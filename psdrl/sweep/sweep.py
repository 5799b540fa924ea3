"""A sweep from its cases to its end: the directory, the tasks, the screen, and what is said of it.

DIR/ENV/AGENT/seed-N/ has the run itself in `run/` (what `psdrl report` reads), what it printed in output.txt, and
status.json: how it ended. Whether a run is finished, its own checkpoint says: status.json is for people, but for runs
that were stopped early, which are not begun again."""

import itertools
import json
import shlex
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import psdrl
from psdrl.errors import UserError
from psdrl.run.store import metrics
from psdrl.run.store.files import Disk
from psdrl.run.store.lock import Lock
from psdrl.run.train import Stop
from psdrl.sweep import cluster, costs
from psdrl.sweep.asha import Asha
from psdrl.sweep.plan import RECORD, Case, check_directory
from psdrl.sweep.progress import Eta, Screen
from psdrl.sweep.ranking import ranking
from psdrl.sweep.schedule import Backend, Local, Schedule, Task
from psdrl.sweep.worker import Job
from psdrl.version import __version__

STATUS = "status.json"


@dataclass(frozen=True)
class Machines:
    """Where the runs of a sweep run."""

    address: str = "auto"
    """auto: a Ray that runs, or else one that is started here; local: one that is started here; HOST:PORT: this one;
    none: without Ray, in processes of this machine."""
    jobs: int = 0
    """Most runs at a time; 0: as many as there is room for, with --address none one."""
    cpus_per_run: float = 1.0
    """CPU cores that a run is given, and its threads; below 1: several runs share a core."""
    gpus_per_run: float | None = None
    """GPUs that a run is given; 0.5: two runs share one. Default: 1 where there are GPUs, unless --device is cpu."""
    storage: cluster.Storage = "auto"
    """auto: runs on machines that see --out are written there, others are copied through Ray; shared: refuse machines
    that do not see it; copy: copy all."""
    copy_minutes: float = 5.0
    """Minutes between two copies of a run that is copied: what a lost machine costs. A checkpoint of the paper's size
    is above 0.9 GB."""
    retries: int = 2
    """How often a run that fails is tried again; one whose worker or node dies: as often without a new checkpoint."""


def check_machines(options: Machines) -> None:
    """Refuse numbers that mean nothing."""
    if min(options.jobs, options.retries, options.copy_minutes) < 0:
        raise UserError("--jobs, --retries and --copy-minutes must be at least 0.")
    if not options.cpus_per_run > 0:
        raise UserError(f"--cpus-per-run is {options.cpus_per_run} but must be greater than 0.")
    gpus = options.gpus_per_run or 0.0
    if gpus < 0 or (gpus > 1 and gpus != int(gpus)):
        raise UserError(f"--gpus-per-run is {gpus} but must be a share of one GPU (0.5) or a whole number.")


class Place:
    """The machines, found before anything is planned; runs are started on them by `backend`."""

    def __init__(self, options: Machines, here_cpus: int, here_gpus: int) -> None:
        check_machines(options)
        self.options, self._gpus_here, self._ray = options, here_gpus, None
        self.cpus, self.gpus = float(here_cpus), float(here_gpus)  # the most that one machine has
        if options.address not in ("none", "local"):
            self._ray = cluster.connect(options.address, here_cpus, here_gpus)
            self.cpus, self.gpus = cluster.largest(self._ray)
        self._here = here_cpus, here_gpus

    def gpus_per_run(self, device: str) -> float:
        """What was asked for, or 1 if there are GPUs and the runs may use one."""
        asked = self.options.gpus_per_run
        found = asked if asked is not None else float(self.gpus > 0 and device != "cpu")
        if found > self.gpus:
            where = "this machine has" if self._ray is None else "no machine of this cluster has more than"
            raise UserError(f"--gpus-per-run is {found:g}, but {where} {self.gpus:g}: use fewer, or --device cpu.")
        if found and device == "cpu":
            raise UserError("--gpus-per-run asks for GPUs, and --device cpu for none: leave one of them out.")
        if self.options.cpus_per_run > self.cpus:
            asked = self.options.cpus_per_run
            raise UserError(f"--cpus-per-run is {asked:g}, but no machine has more than {self.cpus:g}: use fewer.")
        return found

    def backend(self, out: Path, gpus: float) -> Backend:
        """Start."""
        options = self.options
        if options.address == "none":
            return Local(options.jobs or 1, gpus, self._gpus_here)
        ray = self._ray or cluster.connect(options.address, *self._here)
        return cluster.Cluster(
            ray, out, options.cpus_per_run, gpus, options.jobs, options.storage, 60 * options.copy_minutes
        )

    def close(self) -> None:
        """If nothing was started."""
        if self._ray is not None:
            self._ray.shutdown()


def run(
    cases: list[Case],
    place: Place,
    out: Path,
    gpus: float,
    console: Console,
    asha: Asha | None = None,
    eta: bool = True,
) -> int:
    """All cases, until each has finished, has failed for good or was stopped; the exit code."""
    check_directory(out, cases)
    out.mkdir(parents=True, exist_ok=True)
    try:
        lock = Lock(out).__enter__()
    except UserError as error:
        raise UserError(str(error).replace("--logdir", "--out")) from None
    try:
        _record(out, cases)
        tasks = dict(zip(_tasks(cases, out, place.options), cases, strict=True))
        return _run(tasks, place, out, gpus, console, asha, eta)
    finally:
        lock.__exit__(None, None, None)


def _run(
    tasks: dict[Task, Case], place: Place, out: Path, gpus: float, console: Console, asha: Asha | None, eta: bool
) -> int:
    left = Eta(list(tasks))
    screen = Screen(list(tasks), console, left)
    done = sum(not task.open for task in tasks)
    open_cases = [case for task, case in tasks.items() if task.open]
    console.print(
        f"{len(tasks)} runs in {out}: {len(open_cases)} to run" + (f", {done} are there already." if done else "."),
        highlight=False,
        soft_wrap=True,
    )
    if not open_cases:
        place.close()
        return _say_end(console, tasks, out)
    schedule = Schedule(tasks, place.backend(out, gpus), place.options.retries)

    def changed(task: Task) -> None:
        _write_status(out, task)
        screen.ended(task)

    def looked(task: Task) -> None:
        if asha and not asha.goes_on(task):
            schedule.end(task, "early, by ASHA")

    schedule.on_change, schedule.on_look = changed, looked
    if asha:
        for task in tasks:
            asha.goes_on(task)  # what is known of runs that have ended
    with Stop(console) as stop, screen, _forecast(left, open_cases if eta else [], gpus):
        schedule.run(stop, screen)
    if stop.asked:
        again = shlex.join(["psdrl", *sys.argv[1:]])
        console.print(f"Stopped: {screen.summary()}. Go on with:\n  {again}", highlight=False, soft_wrap=True)
        return 130
    return _say_end(console, tasks, out)


@contextmanager
def _forecast(left: Eta, cases: list[Case], gpus: float) -> Iterator[None]:
    """Ask the cost model, which takes seconds for each agent, while runs go on. Its thread ends before Python does:
    cut off inside of torch, it would abort the process."""
    over = threading.Event()
    wanted = itertools.takewhile(lambda case: not over.is_set(), cases)

    def predict() -> None:
        left.predicted = costs.predict(wanted, "a100" if gpus else "here").seconds

    thread = threading.Thread(target=predict, name="forecast")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _tasks(cases: list[Case], out: Path, options: Machines) -> list[Task]:
    """A task for each case, with what is known of it already."""
    threads = str(max(1, int(options.cpus_per_run)))
    source = str(Path(psdrl.__file__).parents[1])
    variables = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONPATH": source}
    found = []
    for case in cases:
        words = (*case.arguments, "--logdir", "{folder}/run")
        job = Job(case.name, "psdrl.train", words, str((out / case.name).resolve()), variables)
        task = Task(job, steps=case.config.steps)
        if case.finished(out):
            task.state = "finished"
        elif (status := read_status(out / case.name)).get("state") == "stopped" and status.get("steps") == task.steps:
            task.state, task.reasons = "stopped", list(status.get("reasons", []))
        if not task.open:
            task.evaluations = evaluations(case.run(out))
        found.append(task)
    return found


def evaluations(run: Path) -> list[tuple[int, float]]:
    """Step and return of each evaluation of a run."""
    path = run / "metrics.jsonl"
    lines = metrics.read(path) if path.exists() else ()
    return [(int(line["step"]), line["eval/return"]) for line in lines if "eval/return" in line]


def read_status(folder: Path) -> dict[str, Any]:
    """How a case ended; nothing if it has not."""
    try:
        found = json.loads((folder / STATUS).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def _write_status(out: Path, task: Task) -> None:
    record = {
        "state": task.state,
        "steps": task.steps,
        "attempts": task.attempts,
        "reasons": task.reasons,
        "seconds": round(task.seconds, 1),
        "host": task.look.host,
    }
    Disk().replace(out / task.job.name / STATUS, (json.dumps(record, indent=2) + "\n").encode())


def _record(out: Path, cases: list[Case]) -> None:
    """sweep.json: all cases that were ever asked for here, with their commands."""
    try:
        before = json.loads((out / RECORD).read_text(encoding="utf-8"))["cases"]
    except (OSError, ValueError, KeyError, TypeError):
        before = {}
    commands = {case.name: f"psdrl train {shlex.join(case.arguments)}" for case in cases}
    record = {"version": __version__, "command": ["psdrl", *sys.argv[1:]], "cases": before | commands}
    Disk().replace(out / RECORD, (json.dumps(record, indent=2) + "\n").encode())


def _say_end(console: Console, tasks: dict[Task, Case], out: Path) -> int:
    """What there is now, and what failed."""

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    screen = Screen(list(tasks), console, Eta([]))
    say(f"Done: {screen.summary().partition(', 0 running')[0]}{screen.summary().partition(', 0 running')[2]}.")
    failed = [task for task in tasks if task.state == "failed"]
    for task in failed:
        say(f"failed       {task.job.name}: {task.reasons[-1]}; see {out / task.job.name / 'output.txt'}")
    table = ranking({case: task.evaluations or evaluations(case.run(out)) for task, case in tasks.items()})
    if table is not None:
        (out / "settings.csv").write_text(table.csv(), encoding="utf-8")
        console.print(table.shown(), highlight=False)
        say(f"All settings: {out / 'settings.csv'}")
    say(f"Tables and figures: psdrl report {shlex.quote(str(out))}")
    return 1 if failed else 0
