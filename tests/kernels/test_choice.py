"""Which library serves is measured once, agreed upon between processes, and kept by a run."""

import json
import subprocess
import sys
import time

import pytest
import torch

from psdrl.agents.psdrl.synthetic import debug_agent
from psdrl.kernels import choice, tune
from psdrl.kernels.linear_tanh import aten
from psdrl.kernels.posterior import gram_accumulate_
from tests.kernels.inputs import randn


@pytest.fixture
def choices(tmp_path, monkeypatch):
    fresh = choice.Choices(tmp_path / "cpu.json")
    monkeypatch.setattr(choice, "choices", lambda: fresh)
    monkeypatch.setenv("PSDRL_AUTOTUNE", "1")
    return fresh


def slow(seconds):
    def call():
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    return call


def test_the_fastest_serves_and_aten_where_none_is_clearly_faster():
    assert choice.fastest({"csrc": slow(1e-4), "aten": slow(1e-3)}) == "csrc"
    assert choice.fastest({"csrc": slow(1e-3), "aten": slow(1e-4)}) == "aten"
    assert choice.fastest({"csrc": slow(1e-3), "aten": slow(1.001e-3)}) == "aten"


def test_measured_once_per_class(choices):
    measured = []

    def candidates():
        measured.append(1)
        return {"csrc": slow(1e-5), "aten": slow(1e-4)}

    x, y = randn(100, 8), randn(4, 8)
    assert choice.choose("linear", x, y, candidates) == "csrc"
    assert choice.choose("linear", x, y, candidates) == "csrc"
    assert len(measured) == 1
    assert list(choices.known) == [f"linear {torch.get_num_threads()} 128x8 4x8"]
    assert json.loads(choices.path.read_text()) == {choice.machine(): choices.known}


def test_classes():
    assert choice.shape_class(randn(7, 3), randn(5, 3)) == "7x3 5x3"
    assert choice.shape_class(randn(100, 3), randn(5, 3)) == choice.shape_class(randn(128, 3), randn(5, 3))
    assert choice.shape_class(randn(129, 3), randn(5, 3)) != choice.shape_class(randn(128, 3), randn(5, 3))
    assert choice.shape_class(randn(3, 9).T, randn(5, 4)[:, :3]) == "9x3t 5x3s"


@pytest.mark.skipif(not aten.NATIVE, reason="the C++ extension is not built")
def test_rows_of_a_regression_are_a_class(choices):
    """The last rows of a buffer are of another number in every update: measured each time, they took a tenth of it."""
    gram, cross = torch.zeros(4, 4, dtype=torch.float64), torch.zeros(4, 2, dtype=torch.float64)
    for rows in (70, 100, 128):
        gram_accumulate_(gram, cross, randn(rows, 4).float(), randn(rows, 2).float())
    assert list(choices.known) == [f"gram {torch.get_num_threads()} 128x4 4x2"]


def test_another_process_agrees(choices):
    """What is on disk is not measured again, and what a damaged file holds is."""
    key = "linear 1 1x8 4x8"
    choices.path.write_text(json.dumps({choice.machine(): {key: "aten"}, "another machine": {key: "csrc"}}))
    assert choices.choose(key, {"csrc": slow(1e-5), "aten": slow(1e-3)}) == "aten"
    choices.known.clear()
    choices.path.write_text("{")
    assert choices.choose(key, {"csrc": slow(1e-5), "aten": slow(1e-3)}) == "csrc"


def test_another_build_is_measured_anew(choices, monkeypatch):
    key, candidates = "linear 1 1x8 4x8", {"csrc": slow(1e-5), "aten": slow(1e-3)}
    choices.path.write_text(json.dumps({choice.machine(): {key: "aten"}}))
    monkeypatch.setattr(choice, "fingerprint", lambda: "another")
    monkeypatch.setattr(choice, "machine", choice.machine.__wrapped__)
    assert choices.choose(key, candidates) == "csrc"


def test_what_else_the_machine_does_meets_all_candidates_alike():
    """They are called in turn: a slow minute at the beginning is no fault of the first one."""
    began = time.perf_counter()

    def disturbed(seconds):
        return lambda: slow(seconds if time.perf_counter() - began > 0.05 else 10 * seconds)()

    assert choice.fastest({"csrc": disturbed(1e-3), "aten": disturbed(1e-2)}) == "csrc"


def test_a_slow_candidate_is_called_a_few_times_only():
    calls = []

    def ten_milliseconds():
        calls.append(1)
        slow(1e-2)()

    times = choice.best_times({"csrc": slow(0), "aten": ten_milliseconds})
    assert times["csrc"] < times["aten"]
    assert len(calls) == 1 + choice.ROUNDS


def test_a_candidate_may_choose_in_its_turn(choices):
    inner = {"csrc": slow(1e-5), "aten": slow(1e-3)}
    outer = {"aten": lambda: choices.choose("inner", inner), "csrc": slow(1e-2)}
    start = time.perf_counter()
    assert choices.choose("outer", outer) == "aten"
    assert time.perf_counter() - start < 30  # nobody waits for a lock that he holds
    assert json.loads(choices.path.read_text())[choice.machine()] == {"inner": "csrc", "outer": "aten"}


def test_a_run_keeps_its_choices(choices):
    key = f"linear {torch.get_num_threads()} 1x8 4x8"
    candidates = {"csrc": slow(1e-5), "aten": slow(1e-3)}
    assert choice.choose("linear", randn(1, 8), randn(4, 8), lambda: candidates) == "csrc"
    assert choice.state() == {key: "csrc"}
    choice.restore({key: "aten"})
    assert choice.choose("linear", randn(1, 8), randn(4, 8), lambda: candidates) == "aten"


def test_nothing_is_measured_in_deterministic_mode(choices, monkeypatch):
    monkeypatch.setenv("PSDRL_AUTOTUNE", "0")
    assert not tune.measures()
    assert choice.choose("linear", randn(1, 8), randn(4, 8), lambda: {"onednn": slow(1), "aten": slow(1)}) == "onednn"
    assert not choices.path.exists()


def test_an_unwritable_cache_costs_a_measurement_no_more(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PSDRL_AUTOTUNE", "1")
    fresh = choice.Choices(tmp_path / "file" / "cpu.json")
    assert fresh.choose("k", {"csrc": slow(1e-5), "aten": slow(1e-3)}) == "csrc"


@pytest.mark.skipif(not aten.NATIVE, reason="the C++ extension is not built")
@pytest.mark.parametrize(("asked", "message"), [("sse9", "must be avx512, avx2 or portable"), ("portable", "portable")])
def test_the_instruction_set_can_be_asked_for(asked, message):
    code = "from psdrl.kernels.extension import instruction_set; print(instruction_set())"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PSDRL_CPU": asked, "PATH": ""}
    )
    assert message in run.stdout + run.stderr


@pytest.mark.parametrize("known", [[], {"linear 1 1x8 4x8": 3}, "aten"])
def test_choices_of_a_stranger(choices, known):
    with pytest.raises(ValueError, match="must be names"):
        choice.restore(known)
    choice.restore({"linear 1 1x8 4x8": "rm -rf"})
    assert choices.choose("linear 1 1x8 4x8", {"csrc": slow(1e-5), "aten": slow(1e-3)}) == "csrc"


def test_a_checkpoint_keeps_the_choices(choices):
    """An agent that is restored forms its products as the saved one did."""
    agent = debug_agent("fast", torch.float32)
    agent.update()
    made = dict(choices.known)
    assert made
    state = agent.state_dict()
    changed = dict.fromkeys(made, "aten")
    choices.known.clear()
    choices.known.update(changed)
    debug_agent("fast", torch.float32).load_state_dict(state)
    assert choices.known == made
