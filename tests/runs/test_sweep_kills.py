"""A worker, a node or the driver of a sweep is killed in the middle: its runs equal those of one that nobody disturbed,
bit for bit. Short versions, with small programs in place of runs, are in tests/unit/test_sweep_schedule.py."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import sweeps
from tests.sweeps import (
    differences,
    in_the_middle,
    kill,
    kill_node,
    nodes,
    parent,
    start,
    statuses,
    trainers,
    until,
    wait,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sweep that nobody disturbs, without Ray."""
    out = tmp_path_factory.mktemp("calm") / "out"
    wait(start(out, "none", "--jobs", "2"), out)
    return out


@pytest.fixture
def cluster() -> Iterator[Any]:
    with nodes(2) as found:
        yield found


def ended(out: Path, lost: str) -> None:
    """All runs have finished; one had this accident, and was resumed from a checkpoint."""
    found = statuses(out)
    assert [status["state"] for status in found.values()] == ["finished"] * 4
    accidents = {name: status["reasons"] for name, status in found.items() if status["reasons"]}
    (name,) = accidents
    assert accidents[name] == [lost]
    assert found[name]["attempts"] == 2
    assert re.search(r"resumed\s+at", (out / name / "output.txt").read_text())


@pytest.mark.parametrize("storage", ["auto", "copy"])
def test_a_worker_is_killed(calm: Path, cluster: Any, storage: str, tmp_path: Path) -> None:
    """With copies, after its first checkpoint has come back."""
    out = tmp_path / "out"
    sweep = start(out, cluster.address, "--storage", storage, "--copy-minutes", "0")
    most = 1700 if storage == "auto" else 2400  # a copy comes later, and the run goes on meanwhile
    pid, run = until(lambda: in_the_middle(out, most), sweep)
    assert (out in run.parents) == (storage == "auto")
    worker = parent(pid)
    assert b"ray::" in Path(f"/proc/{worker}/cmdline").read_bytes()
    kill(worker)
    wait(sweep, out)
    ended(out, "its worker died")
    assert not differences(calm, out)


def test_a_node_is_killed(calm: Path, cluster: Any, tmp_path: Path) -> None:
    """Its raylet alone: the worker must notice by itself, and its run end with it. It goes on at the other node."""
    out = tmp_path / "out"
    sweep = start(out, cluster.address)
    pid, _ = until(lambda: in_the_middle(out), sweep)
    kill_node(cluster, parent(parent(pid)))
    until(lambda: pid not in trainers(out), sweep)
    wait(sweep, out)
    ended(out, "its node died")
    assert not differences(calm, out)


def test_the_driver_is_killed_and_starts_again(calm: Path, cluster: Any, tmp_path: Path) -> None:
    """No run outlives it, and the same command goes on from what they had saved."""
    out = tmp_path / "out"
    sweep = start(out, cluster.address)
    until(lambda: in_the_middle(out), sweep)
    kill(sweep.pid)
    sweep.wait()
    again = start(out, cluster.address)
    said = wait(again, out)
    assert [status["state"] for status in statuses(out).values()] == ["finished"] * 4
    assert not trainers(out)
    assert said.count("4 runs in") == 2
    assert not differences(calm, out)


@pytest.mark.parametrize("first", ["local processes", "Ray"])
def test_ctrl_c_saves_every_run(calm: Path, cluster: Any, first: str, tmp_path: Path) -> None:
    """Two run, two wait. Then the same command goes on: in local processes after Ray, or the other way round."""
    out = tmp_path / "out"
    ways = [("none", "--jobs", "2"), (cluster.address, "--storage", "copy")]
    before, after = ways if first == "local processes" else [(cluster.address,), ways[0]]
    sweep = start(out, *before, "--checkpoint-every", "0")
    until(lambda: any(path.stat().st_size > 2000 for path in out.rglob("metrics.jsonl")), sweep)
    os.kill(sweep.pid, signal.SIGINT)
    said = wait(sweep, out, code=130)
    assert re.search(r"Go on with:\n\s*psdrl sweep ", said)
    assert any(out.rglob("checkpoint-*")), "nothing was saved"
    assert len(list(out.rglob("config.json"))) < 4, "one that waited was begun"
    wait(start(out, *after), out)
    assert not differences(calm, out)


def test_a_run_that_always_fails_stops_nothing(calm: Path, cluster: Any, tmp_path: Path) -> None:
    """It is one of four: its directory cannot be written. It is reported, the others are as they would be."""
    out = tmp_path / "out"
    broken = out / "deepsea-5" / "psdrl" / "seed-1" / "run"
    broken.mkdir(parents=True)
    (out / "sweep.json").write_text("{}")
    (broken / "mine.txt").write_text("not a run")
    said = wait(start(out, cluster.address, "--retries", "1"), out, code=1)
    found = statuses(out)
    assert [s["state"] for s in found.values()].count("finished") == 3
    failed = found["deepsea-5/psdrl/seed-1"]
    assert (failed["state"], failed["attempts"]) == ("failed", 2)
    assert "is not empty and holds no run" in failed["reasons"][-1]
    assert "failed       deepsea-5/psdrl/seed-1" in said
    for name in found:
        if name != "deepsea-5/psdrl/seed-1":
            assert not sweeps.compare(calm / name / "run", out / name / "run")
