"""psdrl.doctor finds what is wrong, and training does not use it."""

import importlib.metadata
import json
from types import SimpleNamespace

import pytest
import torch

from psdrl import doctor
from psdrl.agents.psdrl import examination, update_checks
from psdrl.agents.psdrl.kernel_calls import check_kernels
from psdrl.cli import main_doctor
from psdrl.envs.vector import EnvSpec
from psdrl.kernels import dispatch
from psdrl.kernels.checks import posterior as posterior_checks
from psdrl.kernels.gru_actions import gru_actions
from psdrl.kernels.linear_tanh import aten
from psdrl.kernels.posterior import native
from psdrl.runtime.execution import Execution
from psdrl.runtime.graphs import Cuda
from tests.recorder import StandIn

CPU = torch.device("cpu")
QUICK = doctor.Doctor(device="cpu", quick=True, seconds=0, json=True)
SPEC = EnvSpec("test", "image", (1, 64, 64), "uint8", 6, "none")
IMPOSSIBLE = {p: why for p in update_checks.PRECISIONS if (why := update_checks.impossible(CPU, p))}
POSSIBLE = [p for p in update_checks.PRECISIONS if p not in IMPOSSIBLE]


def start_up():
    return check_kernels(update_checks.base("cpu"), SPEC, CPU)


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
    assert report["versions"]["torch"] == importlib.metadata.version("torch")
    results = report["results"]
    (products,) = [result for result in results if result["name"] == "products"]
    assert products["data"]["choices"], "which library forms a product on this CPU"
    assert set(products["data"]["choices"].values()) <= {*aten.LINEAR, *aten.TANH}
    assert {result["kind"] for result in results} == {"backend", "kernel", "update", "throughput"}
    for precision in POSSIBLE:
        checked = {r["name"] for r in results if r["kind"] == "kernel" and r["data"].get("precision") == precision}
        assert checked == {
            "linear", "linear_tanh", "tanh_dot", "gru_actions", "one_step_returns", "best_return", "greedy_action"
        }  # fmt: skip
    exact = {r["name"] for r in results if r["kind"] == "kernel" and r["data"].get("precision") == "float64"}
    assert exact == (set(native.operations()) if native.unavailable(CPU) is None else set())
    skipped = {r["name"]: r["detail"] for r in results if r["kind"] == "kernel" and r["status"] == "skipped"}
    assert skipped == IMPOSSIBLE
    modes = {result["name"]: result["status"] for result in results if result["kind"] == "update"}
    expected: dict[str, str] = dict.fromkeys(IMPOSSIBLE, "skipped")
    for precision in POSSIBLE:
        expected |= {f"{mode} {precision}": "skipped" for mode in ("compile", "graphs", "compile and graphs")}
        expected[f"eager {precision}"] = "ok"
    assert modes == expected


def test_tf32_is_skipped_on_a_cpu():
    assert IMPOSSIBLE["tf32"] == "a CPU computes tf32 in fp32"


def test_a_cpu_without_bf16_skips_it(monkeypatch):
    monkeypatch.setattr(update_checks, "bf16_on_cpu", lambda: "this CPU cannot")
    kernels = {r.name: r for r in examination.kernels(CPU, quick=True) if r.status == "skipped"}
    updates = {r.name: r for r in examination.updates(CPU, quick=True)}
    assert kernels["bf16"].detail == updates["bf16"].detail == "this CPU cannot"
    assert "eager bf16" not in updates


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
    inputs = torch.randn(1, 24), torch.randn(1, 24), torch.randn(6, 24), torch.randn(1, 8)
    before = gru_actions(*inputs)
    failures = start_up()
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
    problems = {failure.operation: failure.problem for failure in start_up()}
    assert problems == {"tanh_dot": "RuntimeError: illegal address"}
    assert start_up() == []


@pytest.mark.skipif(native.unavailable(CPU) is not None, reason="the C++ extension is not built")
def test_a_wrong_posterior_is_replaced(monkeypatch):
    monkeypatch.setattr(posterior_checks.reference, "posterior_mean", lambda *args: torch.ones(5, args[1].shape[0]))
    assert "posterior_mean" in {failure.operation for failure in start_up()}
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

    monkeypatch.setattr("psdrl.agents.psdrl.agent.Execution.of", of)
    monkeypatch.setattr(update_checks, "MODES", {"eager": {}, "graphs": {"cuda_graphs": True}})
    monkeypatch.setattr(update_checks, "PRECISIONS", ("fp32",))

    class Gpu:
        type = "cuda"

        def __str__(self):
            return "cpu"

    results = {result.name: result for result in examination.updates(Gpu(), True)}  # type: ignore[arg-type]
    assert results["eager fp32"].status == "ok"
    assert results["graphs fp32"].status == "wrong"
    assert "not captured: window" in results["graphs fp32"].detail


def altered(monkeypatch, change):
    """Outcomes of these modes as `change` makes them; the plain path and the emulation stay as they are."""
    right = update_checks.outcome

    def outcome(config, arithmetic=None):
        found = right(config, arithmetic)
        return found if config.update_path == "plain" or arithmetic else change(config, found)

    update_checks.allowance("bf16")
    monkeypatch.setattr(update_checks, "outcome", outcome)
    return {result.name: result for result in examination.updates(CPU, quick=True) if result.status != "skipped"}


def test_updates_that_do_nothing_are_wrong(monkeypatch):
    results = altered(monkeypatch, lambda config, found: found._replace(after=found.before))
    assert {name: result.status for name, result in results.items()} == {f"eager {p}": "wrong" for p in POSSIBLE}
    assert all(result.data["distance"] == pytest.approx(1) for result in results.values())


def test_a_slightly_wrong_update_is_found_in_float32(monkeypatch):
    """A thousandth of the way, which bf16's own rounding exceeds."""

    def nudged(config, found):
        return found._replace(after=found.after + 1e-3 * (found.after - found.before))

    results = altered(monkeypatch, nudged)
    assert results.pop("eager fp32").status == "wrong"
    assert all(result.status == "ok" for result in results.values())


def test_graphs_must_reproduce_the_eager_mode(monkeypatch):
    """Also where the precision leaves room: a hundredth of the way passes as bf16, but not as a replay of it."""
    way = torch.tensor([1.0, 0.0], dtype=torch.float64)
    side = torch.tensor([0.0, 1.0], dtype=torch.float64)
    plain, eager = (update_checks.Outcome(0 * way, way + share * side, 0.0, []) for share in (0.0, 0.02))
    for after, wrong in ((eager.after, False), (eager.after + 0.01 * side, True)):
        found = update_checks.Outcome(0 * way, after, 0.0, [])
        comparison = update_checks._comparison("graphs bf16", found, plain, 0.05, eager)
        assert (comparison.problem == "not what it is eagerly") == wrong


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_allowances_come_from_the_rounding(precision, monkeypatch):
    """Larger than float32's, far below doing nothing; without rounding there would be next to none."""
    allowed = update_checks.allowance.__wrapped__(precision)
    assert 1e-3 < allowed <= update_checks.MOST
    exact = SimpleNamespace(**{precision: (lambda: None,)})
    monkeypatch.setattr(update_checks, "EMULATIONS", vars(exact))
    assert update_checks.allowance.__wrapped__(precision) < 1e-6
