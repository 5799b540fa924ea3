"""Stored runs: nothing is lost, nothing damaged is taken for a run, and what is shown comes from the files."""

import gzip
import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from psdrl.experiments import learn
from psdrl.report import equal, measured, outcomes, protocols, side_by_side
from psdrl.run import records
from psdrl.run.records import Damaged, Run

ROOT = Path(__file__).parents[2]


def make(**changes) -> Run:
    run = Run(
        env="deepsea-10",
        method="psdrl",
        seed=0,
        budget=4000,
        steps=4000,
        solved=None,
        commit="0" * 40,
        added_in=None,
        note=None,
        command="python -m psdrl.train --env deepsea-10 --seed 0",
        preset="deepsea",
        settings={"value.discount": 1.0, "autoencoder.channels": [16, 32], "game": None},
        machine={"cpu": "a CPU", "isa": "avx2", "threads": 1},
        torch="2.13.0",
        minutes=1.5,
        cpu_minutes=1.25,
        returns=[-0.004, 0.99, 1.0],
        ends=[10, 20, 30],
        updates={"step": [10, 20], "loss/value": [0.1234, None]},
    )
    return replace(run, **changes)


def test_round_trip_and_stable_bytes(tmp_path):
    runs = [make(seed=seed, env=env) for env in ("deepsea-14", "deepsea-10") for seed in (10, 9, 0)]
    path = tmp_path / "a" / "psdrl.jsonl.gz"
    records.write(path, runs)
    found = records.read(path)
    assert found == sorted(runs, key=lambda run: (run.env, run.seed))
    settings = found[0].settings
    assert settings is not None
    assert isinstance(settings["value.discount"], float), "settings keep their types"
    first = path.read_bytes()
    records.write(path, reversed(runs))
    assert path.read_bytes() == first
    assert first[4:8] == bytes(4), "the gzip header holds a time"
    assert [p.name for p in path.parent.iterdir()] == [path.name], "nothing is left beside it"


APPEND = """
import sys
from dataclasses import replace
from pathlib import Path
from psdrl.run import records
results, (like,) = Path(sys.argv[1]), records.read(Path(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
for seed in range(15):
    assert records.append(results, replace(like, seed=100 * int(sys.argv[3]) + seed))
"""


def test_processes_that_append_at_once_lose_nothing(tmp_path):
    like, results = tmp_path / "like.jsonl.gz", tmp_path / "results"
    records.write(like, [make()])
    command = [sys.executable, "-c", APPEND, str(results), str(like)]
    children = [
        subprocess.Popen([*command, str(i)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True)
        for i in range(3)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:  # all at once
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    assert [child.wait(60) for child in children] == [0, 0, 0]
    for child in children:
        child.communicate()
    assert [run.seed for run in records.load(results)] == [100 * i + seed for i in range(3) for seed in range(15)]


def test_what_is_stored_stays_unless_replaced(tmp_path):
    assert records.append(tmp_path, make())
    before = (tmp_path / "deepsea/psdrl.jsonl.gz").read_bytes()
    assert not records.append(tmp_path, make(minutes=9.0))
    assert (tmp_path / "deepsea/psdrl.jsonl.gz").read_bytes() == before
    assert records.append(tmp_path, make(minutes=9.0), replace=True)
    assert records.append(tmp_path, make(budget=8000, steps=8000))
    assert [(run.budget, run.minutes) for run in records.load(tmp_path)] == [(4000, 9.0), (8000, 1.5)]


def test_missing_runs(tmp_path, capsys):
    """Same environment, method, seed and steps are stored; a solved DeepSea run also answers larger budgets."""
    case = learn.Case("deepsea-10", "psdrl", 0)
    settings = records.flat(case.config().to_dict())
    records.append(tmp_path, make(settings=settings | {"value.units": 7}))
    records.append(tmp_path, make(seed=1, budget=2000, steps=900, solved=90, settings=None))
    records.append(tmp_path, make(seed=2, budget=2000, steps=2000, settings=None))
    cases = [case, *(replace(case, seed=seed) for seed in (1, 2, 3)), replace(case, method="mean")]
    assert learn.missing(cases, tmp_path) == cases[2:]
    said = capsys.readouterr().out
    assert f"value.units 7 there and {settings['value.units']} here" in said
    assert said.count("other settings") == 1
    small = replace(case, seed=1, extra=("--steps", "800"))
    assert learn.missing([small], tmp_path) == [small], "solved after more steps than these"


def spoil(path: Path, kind: str) -> None:
    good = gzip.decompress(path.read_bytes()).decode().splitlines()
    values = json.loads(good[0])
    lines = {
        "no JSON": [good[0], good[1][:-20]],
        "a field is missing": [good[0], json.dumps({name: values[name] for name in values if name != "ends"})],
        "an unknown field": [good[0], json.dumps(values | {"more": 1})],
        "unequal lists": [good[0], json.dumps(values | {"seed": 7, "ends": [10]})],
        "twice the same": [good[0], good[0]],
    }
    if kind == "cut off":
        path.write_bytes(path.read_bytes()[:-30])
    elif kind == "not compressed":
        path.write_text("\n".join(good))
    else:
        path.write_bytes(gzip.compress("\n".join(lines[kind]).encode()))


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("no JSON", "line 2 is no run"),
        ("a field is missing", "missing or unknown: ends"),
        ("an unknown field", "missing or unknown: more"),
        ("unequal lists", "3 returns, 1 ends"),
        ("twice the same", "line 2 has deepsea-10, seed 0 a second time"),
        ("cut off", "no sound gzip file"),
        ("not compressed", "no sound gzip file"),
    ],
)
def test_damaged_files_are_refused_and_left_alone(tmp_path, kind, says):
    path = tmp_path / "deepsea/psdrl.jsonl.gz"
    records.write(path, [make(), make(seed=1)])
    spoil(path, kind)
    before = path.read_bytes()
    for call in (lambda: records.load(tmp_path), lambda: records.append(tmp_path, make(seed=5))):
        with pytest.raises(Damaged, match=says) as error:
            call()
        assert str(path) in str(error.value)
    assert path.read_bytes() == before


def test_runs_in_the_wrong_file_are_refused(tmp_path):
    records.write(tmp_path / "atari/psdrl.jsonl.gz", [make()])
    with pytest.raises(Damaged, match=r"belongs in .*deepsea"):
        records.load(tmp_path)
    with pytest.raises(ValueError, match="no file name"):
        records.append(tmp_path, make(method="../mean"))


def test_a_run_is_stored_with_its_settings(tmp_path):
    case = learn.Case("deepsea-3", "mean", 4, ("--steps", "30"))
    learn.store(case, tmp_path, again=False)
    (run,) = records.load(tmp_path)
    assert (run.env, run.method, run.seed, run.budget, run.steps) == ("deepsea-3", "mean", 4, 30, 30)
    assert run.settings == records.flat(case.config().to_dict())
    assert run.settings["posterior.rule"] == "mean"
    assert run.command.endswith("--seed 4 --posterior.rule mean --policy.epsilon 0.05 --steps 30")
    assert run.machine is not None
    assert run.machine["isa"].startswith(("avx", "default", "sve", "vsx", "z"))
    assert run.ends == list(range(3, 31, 3))
    assert 0 < len(run.updates["step"]) == len(run.updates["loss/value"]) <= records.UPDATES
    assert not list((tmp_path / ".runs").iterdir()), "the run directory is removed"


def test_updates_of_any_agent_are_kept(tmp_path):
    """Also of one that learns at every step and reports now and then."""
    learn.store(learn.Case("deepsea-10", "bootstrap", 0, ("--steps", "520")), tmp_path, again=False)
    (run,) = records.load(tmp_path)
    assert run.updates["step"] == [500]  # a report per 500 gradient steps, one of these per step of DeepSea
    assert {"loss/heads", "time/learning"} <= set(run.updates)


def test_an_interrupted_run_goes_on_and_equals_an_undisturbed_one(tmp_path, monkeypatch):
    case = learn.Case("deepsea-3", "psdrl", 0, ("--steps", "30"))
    learn.store(case, tmp_path / "whole", again=False)

    def interrupt(trace: learn.Trace) -> bool:
        if len(trace.returns) == 5:
            signal.raise_signal(signal.SIGTERM)
        return False

    done = learn.Trace.done
    monkeypatch.setattr(learn.Trace, "done", interrupt)
    with pytest.raises(SystemExit, match="interrupted; the same command goes on"):
        learn.store(case, tmp_path / "parts", again=False)
    monkeypatch.setattr(learn.Trace, "done", done)
    assert records.load(tmp_path / "parts") == []
    monkeypatch.setattr(learn, "commit", lambda: "another")
    learn.store(case, tmp_path / "parts", again=False)
    (whole,), (parts,) = (records.load(tmp_path / name) for name in ("whole", "parts"))
    for name in ("returns", "ends", "steps", "settings", "command", "commit"):
        assert getattr(parts, name) == getattr(whole, name), name
    assert parts.updates["loss/value"] == whole.updates["loss/value"]
    assert (whole.note, parts.note) == (None, "gone on with at another")


def test_commit_and_what_makes_it_dirty(tmp_path):
    def git(*arguments: str) -> str:
        name = ("-c", "user.name=n", "-c", "user.email=e@example.org")
        return subprocess.run(
            ["git", "-C", str(tmp_path), *name, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    source, result = tmp_path / "psdrl" / "learn.py", tmp_path / "results" / "a"
    for file in (source, result):
        file.parent.mkdir()
        file.write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "m")
    head = git("rev-parse", "HEAD")
    copy = tmp_path / "installed.py"
    copy.write_text("1")
    assert learn.commit(copy) is None, "an installed copy in a repository of the user's"
    result.write_text("2")
    assert learn.commit(source) == head
    source.write_text("2")
    assert learn.commit(source) == f"{head}+dirty"


def test_thinned_updates():
    rows: list[dict[str, float]] = [{"step": i, "loss/value": i + 0.123456} for i in range(85)]
    rows[3] |= {"loss/autoencoder": 2.0}
    thin = records.columns(rows)
    assert thin["step"] == list(range(0, 85, 3))
    assert thin["loss/value"][1] == 3.123
    assert thin["loss/autoencoder"] == [None, 2.0, *[None] * 27]


@pytest.fixture(scope="module")
def stored() -> tuple[list[Run], list[Run]]:
    return records.load(ROOT / "results"), records.read(ROOT / "results" / records.ARCHIVE)


def test_the_table_is_made_from_the_files(stored):
    groups = protocols.group(protocols.unique(outcomes.find([ROOT / "results"]).outcomes)[0])
    assert (ROOT / "results/TABLE.md").read_text() == measured.table(groups), "make learn makes it anew"
    assert all(np.isfinite(run.returns).all() for runs in stored for run in runs)


def test_the_agents_side_by_side_are_made_from_the_files():
    (steps,) = re.findall(r"^EQUAL_STEPS \?= (\d+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    runs, _ = equal.cut(outcomes.find([ROOT / "results"]).outcomes, int(steps))
    table = side_by_side.table(side_by_side.problems(protocols.group(protocols.unique(runs)[0])))
    assert (ROOT / "results/SIDE_BY_SIDE.md").read_text() == table, "make learn makes it anew"


def test_results_are_small():
    files = [path for path in (ROOT / "results").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 3_000_000


def test_cited_tuning_runs_exist(stored):
    """`tuning/ENVIRONMENT/METHOD` in the documents names runs of the archive."""
    names = {f"tuning/{run.env}/{run.method}" for run in stored[1]}
    for file in ("docs/experiments.md", "docs/learning.md", "README.md", "psdrl/agents/psdrl/presets.py"):
        for cited in re.findall(r"tuning/[\w*./-]*[\w*]", (ROOT / file).read_text()):
            if cited == "tuning/ENVIRONMENT/METHOD":
                continue
            pattern = re.compile(re.escape(cited).replace(r"\*", ".*") + "(/.*)?")
            assert any(pattern.fullmatch(name) for name in names), f"{file}: {cited}"
