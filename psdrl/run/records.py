"""Stored runs: RESULTS/SUITE/METHOD.jsonl.gz, one run per line. No other module knows this format.

`zcat results/deepsea/psdrl.jsonl.gz` shows it. Lines are sorted and the gzip header holds no time of writing, so the
same runs make the same file."""

import fcntl
import gzip
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from psdrl.envs.atari import GAMES
from psdrl.envs.deepsea import deepsea_size

SUFFIX = ".jsonl.gz"
ARCHIVE = f"tuning{SUFFIX}"  # runs with earlier settings: which env and method, its lines say themselves
UPDATES = 40  # most updates of a run whose metrics are stored


class Damaged(ValueError):
    """A file that cannot be read as runs; the message is one sentence for the user."""


@dataclass(frozen=True)
class Run:
    """One training run. What earlier versions did not record is None."""

    env: str
    method: str  # psdrl, or the name of what differs from it
    seed: int
    budget: int | None  # steps asked for; DeepSea ends when it is solved
    steps: int | None  # steps made
    solved: int | None  # DeepSea: the episode after which it counts as solved
    commit: str | None  # of the source, with "+dirty" if the source differed from it
    added_in: str | None  # runs from before `commit` was kept: the commit that brought the result
    note: str | None
    command: str
    preset: str | None
    settings: dict[str, Any] | None  # resolved and flat: {"value.networks": 2, ...}
    machine: dict[str, Any] | None  # cpu, isa (instruction set that torch uses), threads
    torch: str | None
    minutes: float | None
    cpu_minutes: float | None  # what counts if other processes share the machine
    returns: list[float]  # by episode
    ends: list[int]  # step at which each episode ended
    updates: dict[str, list[float | None]]  # some of the updates, by column: "step", "loss/value", ...

    @property
    def key(self) -> tuple[str, int, str, int]:
        """What tells runs of one file apart, in the order of its lines."""
        return self.env, self.seed, self.method, self.budget or 0

    def answers(self, env: str, method: str, seed: int, budget: int) -> bool:
        """Whether this is that run: a solved one would have ended at the same step with a larger budget."""
        same = (self.env, self.method, self.seed) == (env, method, seed)
        return same and (self.budget == budget or (self.solved is not None and (self.steps or 0) <= budget))


def suite(env: str) -> str:
    """The directory of an environment's runs."""
    if env in GAMES:
        return "atari"
    if deepsea_size(env):
        return "deepsea"
    return "minatar" if env.startswith("minatar/") else "control"


def path_of(results: Path, run: Run) -> Path:
    """The file a run belongs in."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", run.method):
        raise ValueError(f"Method {run.method!r} is no file name: use letters, digits and . _ + - only.")
    return results / suite(run.env) / f"{run.method}{SUFFIX}"


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dotted names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def columns(updates: list[dict[str, float]]) -> dict[str, list[float | None]]:
    """At most `UPDATES` rows of metrics, evenly spaced, four digits each, by column."""
    rows = updates[:: max(1, -(-len(updates) // UPDATES))]
    found: dict[str, list[float | None]] = {"step": [row["step"] for row in rows]}
    for name in sorted({name for row in rows for name in row} - {"step"}):
        found[name] = [float(f"{row[name]:.4g}") if name in row else None for row in rows]
    return found


def _short(value: Any) -> Any:
    """2046.0 as 2046: a third of most lists."""
    if isinstance(value, list):
        return [_short(item) for item in value]
    if isinstance(value, dict):
        return {name: _short(item) for name, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _line(run: Run) -> str:
    values = asdict(run)
    numbers = {name: _short(values[name]) for name in ("returns", "updates")}  # settings keep their types
    return json.dumps(values | numbers, separators=(",", ":"))


def _parse(line: str) -> Run:
    values, names = json.loads(line), {field.name for field in fields(Run)}
    if not isinstance(values, dict) or set(values) != names:
        wrong = sorted(names ^ set(values)) if isinstance(values, dict) else ["no JSON object"]
        raise ValueError(f"missing or unknown: {', '.join(wrong)}")
    run = Run(**values)
    if len(run.returns) != len(run.ends):
        raise ValueError(f"{len(run.returns)} returns, {len(run.ends)} ends of episodes")
    return run


def read(path: Path) -> list[Run]:
    """The runs of one file; all of it must be sound."""
    advice = "restore the file (git checkout) or remove it."
    try:
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise Damaged(f"{path} is no sound gzip file ({error}): {advice}") from None
    runs: dict[tuple[str, int, str, int], Run] = {}
    for number, line in enumerate(lines, 1):
        try:
            run = _parse(line)
        except ValueError as error:
            raise Damaged(f"{path}, line {number} is no run ({error}): {advice}") from None
        if run.key in runs:
            raise Damaged(f"{path}, line {number} has {run.env}, seed {run.seed} a second time: {advice}")
        runs[run.key] = run
    return list(runs.values())


def write(path: Path, runs: Iterable[Run]) -> None:
    """Replace a file at once: whoever reads it sees all of the old one or all of the new one."""
    text = "".join(_line(run) + "\n" for run in sorted(runs, key=lambda run: run.key))
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(beside, "wb") as file:
        file.write(gzip.compress(text.encode(), 9, mtime=0))
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def load(results: Path) -> list[Run]:
    """All runs of all suites."""
    runs: list[Run] = []
    for path in sorted(results.glob(f"*/*{SUFFIX}")):
        for run in read(path):
            if path_of(results, run) != path:
                raise Damaged(f"{path} has a run that belongs in {path_of(results, run)}: move or remove it.")
            runs.append(run)
    return runs


@contextmanager
def _locked(results: Path) -> Iterator[None]:
    results.mkdir(parents=True, exist_ok=True)
    with open(results / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed, also by the death of the process
        yield


def append(results: Path, run: Run, replace: bool = False) -> bool:
    """Add a run to its file; False: it is there already, and stays unless it is to be replaced."""
    path = path_of(results, run)
    with _locked(results):
        stored = read(path) if path.exists() else []
        others = [old for old in stored if not old.answers(run.env, run.method, run.seed, run.budget or 0)]
        if len(others) < len(stored) and not replace:
            return False
        write(path, [*others, run])
    return True
