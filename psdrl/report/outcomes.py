"""What runs came to: found in run directories and files of results/, finished or not, and read into one form."""

import json
import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psdrl.envs.deepsea import deepsea_size, solved_after
from psdrl.errors import UserError
from psdrl.report.variants import variant
from psdrl.run import records
from psdrl.run.store import files, metrics
from psdrl.run.store.lock import BEAT
from psdrl.run.store.settings import LIMIT

State = Literal["finished", "running", "stopped", "crashed"]
CHECKPOINT = re.compile(r"checkpoint-(\d{1,18})")


class Series(NamedTuple):
    """Returns, and the environment steps at which they came; both (n,)."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, float]]) -> "Series":
        """From pairs of step and return."""
        steps, values = zip(*pairs, strict=True) if (pairs := list(pairs)) else ((), ())
        return cls(np.array(steps, np.int64), np.array(values, np.float64))


@dataclass(frozen=True)
class Outcome:
    """One run. What its version did not record is None."""

    id: str  # of this report: run-7
    source: str  # its directory, or its file and line
    env: str
    agent: str  # with what differs from its preset
    seed: int
    state: State
    budget: int | None  # steps asked for
    steps: int  # steps made
    preset: str | None
    commit: str | None
    version: str | None
    command: str
    settings: dict[str, Any] | None  # resolved and flat
    machine: str
    minutes: float | None  # of updates and acting on its device; of a run of results/ those of one core
    episodes: Series  # of training
    evaluations: Series
    solved: int | None  # DeepSea: after so many episodes
    archive: bool = False  # made with earlier settings, kept to be cited
    note: str | None = None

    @property
    def finished(self) -> bool:
        """Whether it counts in averages."""
        return self.state == "finished"

    @property
    def curve(self) -> Series:
        """What it is judged by: its evaluations, or the episodes of training if it was never evaluated."""
        return self.evaluations if len(self.evaluations.steps) else self.episodes

    @property
    def evaluated(self) -> bool:
        """Whether it was evaluated at all."""
        return len(self.evaluations.steps) > 0


class Found(NamedTuple):
    """What was read, and one sentence about each thing that was not."""

    outcomes: list[Outcome]
    unreadable: list[str]


def find(paths: Iterable[Path]) -> Found:
    """All runs in and below these directories and files, each once, numbered in the order of their names."""
    outcomes: list[Outcome] = []
    unreadable: list[str] = []
    for place in sorted({place.resolve(): place for path in paths for place in _places(path)}.values()):
        try:
            outcomes += read_directory(place) if place.is_dir() else read_file(place)
        except (UserError, records.Damaged) as error:
            unreadable.append(str(error))
    return Found([replace(outcome, id=f"run-{i}") for i, outcome in enumerate(outcomes, 1)], unreadable)


def state_of_files(paths: Iterable[Path]) -> set[tuple[str, int, int, str]]:
    """Changes when a report of these paths would: name, size and time of what is read, and whether a run goes on."""
    found: set[tuple[str, int, int, str]] = set()
    for place in (place for path in paths for place in _places(path)):
        file = place / "metrics.jsonl" if place.is_dir() else place
        status = file.stat() if file.exists() else None
        state = _state(place, False) if place.is_dir() else ""
        found.add((str(place), status.st_size if status else 0, status.st_mtime_ns if status else 0, state))
    return found


def _places(path: Path) -> Iterator[Path]:
    """Run directories and files of runs, at or below this path; nothing within a run directory is another run."""
    if not path.exists():
        raise UserError(f"{path} does not exist: name directories of runs, or files of results/.")
    if path.is_file():
        if not path.name.endswith(records.SUFFIX):
            raise UserError(f"{path} is no file of runs: name a run's directory, or a file *{records.SUFFIX}.")
        yield path
        return
    for folder, below, names in os.walk(path):
        if "config.json" in names and ("metrics.jsonl" in names or _is_config(Path(folder))):
            below.clear()
            yield Path(folder)
            continue
        below.sort()
        yield from (Path(folder) / name for name in sorted(names) if name.endswith(records.SUFFIX))


def _is_config(folder: Path) -> bool:
    """Whether config.json is of a run that has logged nothing yet; other programs have files of this name too."""
    try:
        record = json.loads(files.read(folder / "config.json", LIMIT))
    except (files.Damaged, ValueError, RecursionError):
        return False
    return isinstance(record, dict) and {"version", "config", "command"} <= record.keys()


# Run directories


def read_directory(folder: Path) -> list[Outcome]:
    """The run of a directory."""
    record, settings = _settings(folder)
    logged = _Log.of(folder / "metrics.jsonl")
    steps = max([logged.steps, *_checkpoints(folder)])
    env, budget = str(settings.get("game") or settings.get("env") or ""), settings.get("steps")
    words = record.get("command")
    return [
        Outcome(
            id="",
            source=str(folder),
            env=env,
            agent=variant(settings),
            seed=int(settings.get("seed") or 0),
            state=_state(folder, steps >= (budget or 0)),
            budget=budget,
            steps=steps,
            preset=settings.get("preset"),
            commit=record.get("commit"),
            version=record.get("version"),
            command=_typed([str(word) for word in words] if isinstance(words, list) else []),
            settings=settings,
            machine=str(settings.get("device") or ""),
            minutes=logged.seconds / 60 if logged.seconds else None,
            episodes=logged.episodes,
            evaluations=logged.evaluations,
            solved=solved_after(logged.episodes.values.tolist()) if deepsea_size(env) else None,
        )
    ]


def _typed(words: list[str]) -> str:
    """The command as one would type it; the program's own path says nothing."""
    if not words:
        return "unknown"
    program, *arguments = words
    path = Path(program)
    names = {"train.py": "python -m psdrl.train", "__main__.py": "python -m psdrl", "psdrl": "psdrl"}
    return f"{names.get(path.name, path.name)} {shlex.join(arguments)}".strip()


def _settings(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json and its settings, flat; settings of other versions are taken as they are."""
    try:
        record = json.loads(files.read(folder / "config.json", LIMIT))
        settings = records.flat(record["config"])
        if not isinstance(settings.get("steps", 0), int):
            raise ValueError("steps is no whole number")
    except files.Damaged as error:
        raise UserError(f"{folder / 'config.json'} cannot be read: {error}.") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{folder / 'config.json'} is no configuration of a run: {str(error)[:100]}.") from None
    return record, settings


def _checkpoints(folder: Path) -> list[int]:
    """Steps of the checkpoints."""
    matches = (CHECKPOINT.fullmatch(path.name) for path in folder.glob("checkpoint-*"))
    return [int(match[1]) for match in matches if match]


def _state(folder: Path, has_its_steps: bool) -> State:
    """The holder's file is touched every few seconds while a run is written, removed at its end, left by a crash."""
    if has_its_steps:
        return "finished"
    try:
        age = time.time() - (folder / ".holder.json").stat().st_mtime
    except FileNotFoundError:
        return "stopped"
    return "running" if age < 6 * BEAT else "crashed"


class _Log(NamedTuple):
    """What metrics.jsonl says."""

    episodes: Series
    evaluations: Series
    steps: int
    seconds: float

    @classmethod
    def of(cls, path: Path) -> "_Log":
        episodes: list[tuple[int, float]] = []
        evaluations: list[tuple[int, float]] = []
        steps, seconds = 0, 0.0
        for line in metrics.read(path) if path.exists() else ():
            step = int(line["step"])
            steps = max(steps, step)
            if "train/return" in line:
                episodes.append((step, line["train/return"]))
            elif "eval/return" in line:
                evaluations.append((step, line["eval/return"]))
            else:  # compilation happens within the phases
                seconds += sum(
                    value for name, value in line.items() if name.startswith("time/") and name != "time/compile"
                )
        return cls(Series.of(episodes), Series.of(evaluations), steps, seconds)


# Files of results/


def read_file(path: Path) -> list[Outcome]:
    """The runs of a file."""
    return [_stored(run, f"{path}, line {line}", path) for line, run in enumerate(records.read(path), 1)]


def _stored(run: records.Run, source: str, path: Path) -> Outcome:
    ends = np.array(run.ends, np.int64)
    steps = run.steps or int(ends[-1] if len(ends) else 0)
    whole = run.solved is not None or run.budget is None or steps >= run.budget
    machine = run.machine or {}
    return Outcome(
        id="",
        source=source,
        env=run.env,
        agent=run.method,
        seed=run.seed,
        state="finished" if whole else "stopped",
        budget=run.budget,
        steps=steps,
        preset=run.preset,
        commit=run.commit or run.added_in,
        version=None,
        command=run.command,
        settings=run.settings,
        machine=f"{machine.get('cpu', '')}, {machine.get('threads', '?')} thread(s)" if machine else "",
        minutes=run.cpu_minutes,
        episodes=Series(ends, np.array(run.returns, np.float64)),
        evaluations=Series.of([]),
        solved=run.solved,
        archive=path.name == records.ARCHIVE,
        note=run.note,
    )
