"""Does it learn? `python -m psdrl.experiments.learn deepsea-10 --seeds 0 1 2 3 4 --methods psdrl released`.

Each case (environment, method, seed) is one training run and one line of results/SUITE/METHOD.jsonl.gz
(`psdrl/run/records.py`); what is stored already is not run again. A run that is under way has a run directory in
RESULTS/.runs, with a checkpoint every ten minutes and when it is interrupted: the same command goes on with it. Without
environments: the ladder of `make learn`."""

import argparse
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from psdrl.api import Agent
from psdrl.arguments import parse_train
from psdrl.config import Config
from psdrl.envs import make_env
from psdrl.envs.atari import GAMES
from psdrl.envs.deepsea import deepsea_size, solved_after
from psdrl.errors import UserError
from psdrl.run import records
from psdrl.run.callbacks import Scalars
from psdrl.run.records import Run
from psdrl.run.train import Stop
from psdrl.sweep.schedule import Local, Schedule, Task
from psdrl.sweep.worker import Job

RESULTS = Path("results")
FLAGS = shlex.split("--eval-every 0 --checkpoint-every 0 --device cpu")  # they change nothing that is learned

# MinAtar with features of the whole state and single frames, as Breakout had them before one preset served all games.
WHOLE_STATE = shlex.split(
    "--minatar.stack 1 --no-standardise --no-grid --forward.features tanh --forward.units 256 "
    "--forward.recurrent 32 --forward.gain 2 --forward.learning-rate 0.001 --forward.iterations 40 "
    "--termination.no-predicted --termination.units 64 --termination.learning-rate 0.001 "
    "--termination.weight 1 --value.target-rate 0.1 --value.networks 2 --value.random-share 0.2 "
    "--value.no-hindsight --value.trace 0 --posterior.prior 1 10"
)

METHODS: dict[str, list[str]] = {
    "psdrl": [],
    "egreedy-exploit": ["--algo", "egreedy-exploit"],
    "egreedy-explore": ["--algo", "egreedy-explore"],
    "fresh-value": ["--algo", "fresh-value"],
    "bootstrap": ["--algo", "bootstrap"],
    "successor": ["--algo", "successor"],
    "dreamer": ["--algo", "dreamer"],
    "mean": ["--posterior.rule", "mean", "--policy.epsilon", "0.05"],
    "released": ["--posterior.rule", "released"],
    "reward-weight-30": ["--forward.reward-weight", "30"],
    "not-standardised": ["--no-standardise"],
    "length-20": ["--replay.length", "20"],
    "capacity-20k": ["--replay.capacity", "20000"],
    "ends-rare": ["--replay.ends", "rare"],
    "forward-16": ["--forward.iterations", "16"],
    "start-zero": ["--value.sweep", "paper"],
    "target-copy": ["--value.target-rate", "1"],
    "one-network": ["--value.networks", "1"],
    "no-skip": ["--forward.features", "tanh"],
    "whole-state": WHOLE_STATE,
    "single-frames": ["--minatar.stack", "1"],
    "ends-of-states": ["--termination.no-predicted"],
    "ends-weight-1": ["--termination.weight", "1"],
    "two-networks": ["--value.networks", "2"],
    "no-random-share": ["--value.random-share", "0"],
    "random": ["--policy.epsilon", "1", "--policy.update-every", "1000000"],  # no update ever
    "sticky": ["--minatar.sticky", "0.1", "--minatar.ramping"],  # MinAtar's published protocol
    "half-episodes": ["--policy.update-every", "5"],  # DeepSea-10: every draw is dropped half way down
    "mid-episode": ["--policy.update-every", "15"],  # every other one, half way down
    "two-episodes": ["--policy.update-every", "20"],  # each draw is followed twice
    "noise-1": ["--posterior.noise", "1"],
}


@dataclass(frozen=True)
class Case:
    """One run: `python -m psdrl.train --env ENV --seed SEED` and the method's flags."""

    env: str
    method: str
    seed: int
    extra: tuple[str, ...] = ()  # flags beyond the method's

    def __str__(self) -> str:
        return f"{self.env}, {self.method}, seed {self.seed}"

    @property
    def arguments(self) -> list[str]:
        return [
            "--game" if self.env in GAMES else "--env",
            self.env,
            "--seed",
            str(self.seed),
            *METHODS.get(self.method, []),
            *self.extra,
        ]

    def config(self) -> Config:
        """Its settings."""
        config, _ = parse_train(self.arguments + FLAGS)
        config.check()
        return config


class Trace(Scalars):
    """Keeps returns, when they came, a few numbers of each update, and what the run has taken."""

    def __init__(self, env: str) -> None:
        self.treasure = deepsea_size(env) is not None
        self.kept: dict[str, Any] = {"returns": [], "ends": [], "updates": [], "commit": commit()}
        self.before = (0.0, 0.0)  # seconds, and those of the CPU, until this process took over
        self.begun = self._clock()

    def scalars(self, step: int, values: dict[str, float]) -> None:
        if "train/return" in values:
            self.returns.append(round(values["train/return"], 4))
            self.kept["ends"].append(step)
        elif any(name.startswith("loss/") for name in values):  # an update's report
            found = {k: v for k, v in values.items() if k.startswith(("posterior/", "loss/", "time/"))}
            self.kept["updates"].append({"step": step} | found)

    @property
    def returns(self) -> list[float]:
        """Of all episodes."""
        returns: list[float] = self.kept["returns"]
        return returns

    @staticmethod
    def _clock() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()

    def seconds(self) -> tuple[float, float]:
        """Taken, and those of the CPU, in all processes that were at work on this run."""
        parts = zip(self.before, self._clock(), self.begun, strict=True)
        wall, cpu = (before + now - begun for before, now, begun in parts)
        return wall, cpu

    def state(self) -> dict[str, Any]:
        return {"kept": self.kept, "seconds": list(self.seconds())}

    def resume(self, state: dict[str, Any]) -> None:
        self.kept, (wall, cpu) = state["kept"], state["seconds"]
        self.before, self.begun = (wall, cpu), self._clock()

    def solved(self) -> int | None:
        """Episodes until DeepSea counts as solved."""
        return solved_after(self.returns)

    def done(self) -> bool:
        return self.treasure and bool(self.returns) and self.returns[-1] > 0.5 and self.solved() is not None


def machine() -> dict[str, Any]:
    """The processor, the instruction set that torch uses on it, and the threads."""
    cpuinfo = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.+)", cpuinfo.read_text()) if cpuinfo.exists() else None
    return {
        "cpu": model[1].strip() if model else platform.processor() or platform.machine(),
        "isa": torch.backends.cpu.get_cpu_capability().lower(),
        "threads": torch.get_num_threads(),
    }


def commit(file: Path = Path(__file__)) -> str | None:
    """The commit of the source, "+dirty" if what is run differs from it; None outside of its repository."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(file.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", str(file))  # an installed copy may lie in a repository of the user's
        # Results and documents may differ, they change no run.
        changed = git("status", "--porcelain", "--", ":/psdrl", ":/kernels", ":/csrc")
        return git("rev-parse", "HEAD") + ("+dirty" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def run(case: Case, logdir: Path) -> Run | None:
    """Train in this process, on from what logdir holds; None: interrupted, and saved there."""
    config = replace(case.config(), logdir=logdir, checkpoint_minutes=10.0, checkpoint_keep=1)
    env = make_env(config)
    agent, trace = Agent(config, env.spec), Trace(case.env)
    with Stop(Console(stderr=True)) as stop:
        agent.train(env, trace, lambda: stop() or trace.done())
    env.close()
    if stop.asked:
        return None
    source = commit()
    minutes, cpu_minutes = (round(seconds / 60, 2) for seconds in trace.seconds())
    return Run(
        env=case.env,
        method=case.method,
        seed=case.seed,
        budget=config.steps,
        steps=agent.step,
        solved=trace.solved() if trace.treasure else None,
        commit=trace.kept["commit"],  # of the start
        added_in=None,
        note=None if source == trace.kept["commit"] else f"gone on with at {source}",
        command=f"python -m psdrl.train {shlex.join(case.arguments)}",
        preset=config.preset,
        settings=records.flat(case.config().to_dict()),
        machine=machine(),
        torch=torch.__version__,
        minutes=minutes,
        cpu_minutes=cpu_minutes,
        returns=trace.returns,
        ends=trace.kept["ends"],
        updates=records.columns(trace.kept["updates"]),
    )


def under_way(case: Case, results: Path) -> Path:
    """The run directory of a case until it is stored."""
    return results / ".runs" / f"{case.env.replace('/', '-')}.{case.method}.seed{case.seed}.{case.config().steps}"


def store(case: Case, results: Path, again: bool) -> None:
    """Run one case, or go on with it, and store it; `again`: instead of the one that is stored."""
    logdir = under_way(case, results)
    finished = run(case, logdir)
    if finished is None:
        sys.exit(f"{case}: interrupted; the same command goes on with {logdir}.")
    try:
        records.append(results, finished, again)
    except records.Damaged as error:
        sys.exit(f"{error} Then the same command stores the run, which is in {logdir}.")
    shutil.rmtree(logdir)
    last = finished.returns[-20:]
    solved = f"solved after {finished.solved}, " if finished.solved else ""
    print(
        f"{case}: {solved}last {len(last)} episodes {sum(last) / max(1, len(last)):.2f} of {len(finished.returns)}, "
        f"{finished.steps} steps, {finished.minutes:.1f} min, {finished.cpu_minutes:.1f} of them on the CPU"
    )


def start_all(cases: list[Case], results: Path, replace: bool, jobs: int) -> bool:
    """Run each case in a process of its own, on one thread, so many at a time; False: one of them failed."""
    with tempfile.TemporaryDirectory(prefix="psdrl-learn-") as folder:
        tasks = {_task(case, results, replace, f"{folder}/{i}"): case for i, case in enumerate(cases)}
        schedule = Schedule(tasks, Local(jobs), retries=0)
        schedule.on_change = lambda task: _say(task, tasks[task])
        schedule.run(stop=lambda: False)
    return all(task.state == "finished" for task in tasks)


def _task(case: Case, results: Path, replace: bool, folder: str) -> Task:
    flags = ["--one", case.env, case.method, str(case.seed), "--results", str(results), *["--force"] * replace]
    words = (*flags, "--extra", *case.extra)
    return Task(Job(str(case), "psdrl.experiments.learn", words, folder, {"OMP_NUM_THREADS": "1"}, apart=True))


def _say(task: Task, case: Case) -> None:
    failed = task.state != "finished"
    text = (Path(task.job.folder) / ("errors.txt" if failed else "output.txt")).read_text(errors="replace")
    print(f"{case}: failed\n{text[-2000:]}" if failed else text.strip(), flush=True)


def missing(cases: list[Case], results: Path) -> list[Case]:
    """The cases that are not stored; says so if a stored one was made with other settings."""
    stored, found = records.load(results), []
    for case in cases:
        config = case.config()
        there = [run for run in stored if run.answers(case.env, case.method, case.seed, config.steps)]
        if not there:
            found.append(case)
            continue
        before, now = there[0].settings, records.flat(config.to_dict())
        other = sorted(name for name in now if before and before.get(name) != now[name] and name != "steps")
        if before and other:
            changes = ", ".join(f"{name} {before.get(name)} there and {now[name]} here" for name in other[:3])
            print(f"{case}: stored with other settings ({changes}); --force runs it again, --results keeps both")
    print(f"{len(cases) - len(found)} of {len(cases)} runs are in {results} already", flush=True)
    return found


LADDER = (
    [Case("deepsea-20", "psdrl", 0), Case("Freeway", "psdrl", 0, ("--steps", "30000"))]
    + [Case("minatar/freeway", "psdrl", 0), Case("minatar/space_invaders", "psdrl", 0)]
    + [
        Case(env, "psdrl", seed)
        for env in ("deepsea-10", "deepsea-14", "deepsea-10-image", "CartPole-v1", "minatar/breakout")
        for seed in range(2)
    ]
    + [Case("deepsea-10", control, 0, ("--steps", "3000")) for control in ("released", "egreedy-exploit", "noise-1")]
)


def main() -> None:
    """Parse flags and run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="*")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--methods", nargs="*", default=["psdrl"], help="names of METHODS, or new ones with --extra")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time, one thread each")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--force", action="store_true", help="run what is stored again, and replace it")
    parser.add_argument("--one", nargs=3, metavar=("ENV", "METHOD", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--extra", nargs=argparse.REMAINDER, default=[], help="further flags of psdrl.train; last")
    options = parser.parse_args()
    extra, results = tuple(options.extra), options.results
    if options.one:
        torch.set_num_threads(1)
        store(Case(options.one[0], options.one[1], int(options.one[2]), extra), results, options.force)
        return
    unknown = [method for method in options.methods if method not in METHODS]
    if unknown and not extra:
        parser.error(f"no method {unknown[0]}: one of {', '.join(METHODS)}, or a new name and its flags by --extra")
    cases = [Case(e, m, s, extra) for e in options.envs for m in options.methods for s in options.seeds] or LADDER
    try:
        todo = cases if options.force else missing(cases, results)
    except (records.Damaged, UserError) as error:
        sys.exit(str(error))
    sys.exit(0 if start_all(todo, results, options.force, options.jobs) else 1)


if __name__ == "__main__":
    main()
