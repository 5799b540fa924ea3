"""`psdrl sweep` and `psdrl reproduce` as a user types them, on a real Ray of one machine."""

import json
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.crash import compare

SMALL = ("--preset", "debug", "--device", "cpu", "--steps", "300", "--eval-every", "100")


@pytest.fixture
def one_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",
        "RAY_USAGE_STATS_ENABLED",
        "RAY_worker_niceness",
    ):  # they are put back at the end
        monkeypatch.setenv(name, "0")


@pytest.mark.usefixtures("one_tree")
def test_a_sweep_on_ray_is_its_runs(cli_run: Run, tmp_path: Path) -> None:
    """One run is new, of one all is there: it is not begun again. Run for run equal to `psdrl train`, bit for bit; then
    the report of it."""
    words = ("sweep", "--envs", "deepsea-4", "--seeds", "2", "--out", "out", "--address", "local", "--storage", "copy")
    for seed in (0, 1):
        assert cli_run("train", "--env", "deepsea-4", *SMALL, "--seed", seed, "--logdir", f"alone-{seed}").code == 0
    there = tmp_path / "out/deepsea-4/psdrl/seed-1/run"
    there.parent.mkdir(parents=True)
    (tmp_path / "out/sweep.json").write_text('{"cases": {"earlier": "psdrl train"}}')
    (tmp_path / "alone-1").rename(there)
    before = there.stat().st_mtime_ns
    outcome = cli_run("psdrl", *words, *SMALL)
    assert outcome.code == 0, outcome
    assert "2 runs in out: 1 to run, 1 are there already." in outcome.out
    assert "Done: 2 of 2 finished." in outcome.out
    run = tmp_path / "out/deepsea-4/psdrl/seed-0"
    assert not compare(tmp_path / "alone-0", run / "run")
    assert there.stat().st_mtime_ns == before, "what is finished is left as it is"
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["attempts"], status["steps"]) == ("finished", 1, 300)
    record = json.loads((tmp_path / "out/sweep.json").read_text())
    assert set(record["cases"]) == {"earlier", "deepsea-4/psdrl/seed-0", "deepsea-4/psdrl/seed-1"}
    assert cli_run("psdrl", "report", "out", "--out", "report").out.startswith("2 runs")
    again = cli_run("psdrl", *words, *SMALL)
    assert again.code == 0
    assert "2 runs in out: 0 to run, 2 are there already." in again.out
    other = cli_run("psdrl", *words, *SMALL, "--value.units", "7")
    assert other.code == 2
    assert "belongs to another configuration (value.units = 16 there, 7 now)" in other.err.replace("\n", " ")


@pytest.mark.slow  # every agent is timed in three problems; tests/unit plan the same experiments
def test_reproduce_says_what_it_costs_before_it_runs(cli_run: Run) -> None:
    outcome = cli_run("psdrl", "reproduce", "deepsea", "--scale", "small", "--dry-run", *SMALL)
    assert outcome.code == 0
    said = outcome.out.replace("\n", " ")
    assert "SMALL VERSION of deepsea: 3 environments, 1 seed, 300 steps, preset debug" in said
    assert "18 runs, forecast" in said
    assert "core hours" in said
    assert not Path("reproduce").exists()


def test_reproduce_refuses_what_would_spoil_it(cli_run: Run) -> None:
    refused = cli_run("psdrl", "reproduce", "table-runtime", "--dry-run", "--gpus-per-run", "0.5")
    assert refused.code == 2
    assert "runs that share a GPU slow each other" in refused.err.replace("\n", " ")
    assert cli_run("psdrl", "reproduce").code == 2
    large = cli_run("psdrl", "reproduce", "table-1", "--address", "none")
    assert large.code == 2
    assert "made for GPUs, and none was found" in large.err.replace("\n", " ")
    assert "Forecast" not in large.out


def test_without_ray_it_says_what_to_install(cli_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else find(name, *rest))
    outcome = cli_run("psdrl", "sweep", "--envs", "deepsea-4", "--out", "out", "--address", "auto")
    assert outcome.code == 2
    assert 'pip install "psdrl[sweep]"' in outcome.err
    assert "--address none" in outcome.err
