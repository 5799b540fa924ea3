"""psdrl.doctor finds what is wrong, and training does not use it."""

import json

import pytest
import torch

from psdrl import doctor
from psdrl.cli import main_doctor
from psdrl.execution import Execution
from psdrl.graphs import Cuda
from psdrl.kernels import checks, dispatch
from psdrl.kernels.gru_actions import gru_actions
from psdrl.kernels.posterior import native
from tests.recorder import StandIn

CPU = torch.device("cpu")
QUICK = doctor.Doctor(device="cpu", quick=True, seconds=0, json=True)


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    monkeypatch.setattr(dispatch, "_disabled", {})
    monkeypatch.setattr(native, "_disabled", {})
    yield
    for entry in dispatch.operations.values():
        entry.direct = False


def test_a_sound_installation(capsys):
    assert doctor.run(doctor.Doctor(device="cpu", quick=True, seconds=0.1, json=True)) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["sound"]
    assert report["versions"]["torch"] == torch.__version__.split("+")[0] or report["versions"]["torch"]
    kinds = {result["kind"] for result in report["results"]}
    assert kinds == {"backend", "kernel", "update", "throughput"}
    checked = {result["name"] for result in report["results"] if result["kind"] == "kernel"}
    assert {"gru_actions", "linear_tanh", "tanh_dot", "greedy_action"} <= checked
    if native.unavailable(CPU) is None:
        assert set(native.OPERATIONS) <= checked
    modes = {result["name"]: result["status"] for result in report["results"] if result["kind"] == "update"}
    assert modes == {"eager": "ok", "compile": "skipped", "graphs": "skipped", "compile and graphs": "skipped"}


def break_gru(monkeypatch):
    entry = dispatch.operations["gru_actions"]
    right = entry.aten
    monkeypatch.setattr(entry, "aten", lambda *args: right(*args) * 1.001)
    entry.direct = False


def test_a_wrong_kernel_is_found(monkeypatch, capsys):
    break_gru(monkeypatch)
    assert doctor.run(QUICK) == 1
    report = json.loads(capsys.readouterr().out)
    wrong = [result for result in report["results"] if result["status"] == "wrong"]
    assert {result["name"] for result in wrong if result["kind"] == "kernel"} == {"gru_actions"}


def test_the_table_names_it_and_gives_a_hint(monkeypatch, capsys):
    break_gru(monkeypatch)
    monkeypatch.setattr("sys.argv", ["psdrl.doctor", "--device", "cpu", "--quick", "--seconds", "0"])
    with pytest.raises(SystemExit) as end:
        main_doctor()
    assert end.value.code == 1
    assert "kernel gru_actions: training replaces it" in capsys.readouterr().out


def test_training_uses_the_fallback_of_a_wrong_kernel(monkeypatch, caplog):
    break_gru(monkeypatch)
    inputs = checks.LOOKAHEAD[0].inputs(checks.QUICK[0])
    before = gru_actions(*inputs)
    failures = checks.start_up(CPU)
    assert {failure.operation for failure in failures} == {"gru_actions"}
    assert "gru_actions by aten failed its start-up check" in caplog.text
    expected = dispatch.operations["gru_actions"].backend("reference")(*inputs)
    assert torch.equal(gru_actions(*inputs), expected)
    assert not torch.equal(before, expected)
    choice = dispatch.explain(CPU)["gru_actions"]
    assert choice.backend == "reference"
    assert "start-up check" in choice.refused["aten"]


def test_a_kernel_that_raises_is_replaced_too(monkeypatch):
    def crash(*args):
        raise RuntimeError("illegal address")

    entry = dispatch.operations["tanh_dot"]
    monkeypatch.setattr(entry, "aten", crash)
    entry.direct = False
    problems = {failure.operation: failure.problem for failure in checks.start_up(CPU)}
    assert problems == {"tanh_dot": "RuntimeError: illegal address"}
    assert checks.start_up(CPU) == []


@pytest.mark.skipif(native.unavailable(CPU) is not None, reason="the C++ extension is not built")
def test_a_wrong_posterior_is_replaced(monkeypatch):
    monkeypatch.setattr(checks.posterior_reference, "posterior_mean", lambda *args: torch.ones(5, args[1].shape[0]))
    assert "posterior_mean" in {failure.operation for failure in checks.start_up(CPU)}
    assert "start-up check" in (native.unavailable(CPU) or "")


def test_a_step_that_cannot_be_captured_is_reported(monkeypatch):
    """On a GPU: with a recording device in the place of the real one."""

    def of(config, device):
        execution = Execution(device, config.compile, config.cuda_graphs, "fp32", Cuda(CPU, StandIn()))
        if config.cuda_graphs:
            original = execution.captured
            execution.captured = lambda name, step, *args, **more: original(  # type: ignore[method-assign]
                name, (lambda *x: (float(x[0].sum()), step(*x))[1]) if name == "window" else step, *args, **more
            )
        return execution

    monkeypatch.setattr("psdrl.agent.Execution.of", of)
    monkeypatch.setattr(doctor, "MODES", {"eager": {}, "graphs": {"cuda_graphs": True}})

    class Gpu:
        type = "cuda"

        def __str__(self):
            return "cpu"

    results = {result.name: result for result in doctor.updates(Gpu(), True)}  # type: ignore[arg-type]
    assert results["eager"].status == "ok"
    assert results["graphs"].status == "wrong"
    assert "not captured: window" in results["graphs"].detail
