"""Start-up checks: they let pass what the mode's rounding explains, and nothing that computes wrongly or not at all."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.agents.psdrl.kernel_calls import KernelCalls, check_kernels
from psdrl.agents.psdrl.synthetic import debug_agent
from psdrl.agents.registry import configure
from psdrl.envs.vector import EnvSpec
from psdrl.errors import UserError
from psdrl.kernels import checks, dispatch, tune
from psdrl.kernels.checks import lookahead, rounding
from psdrl.kernels.checks import posterior as posterior_checks
from psdrl.kernels.checks.calls import Argument, Call
from psdrl.kernels.posterior import native, reference
from tests.helpers import GRID as GRID_SETTINGS
from tests.kernels.inputs import calls, empty

CPU = torch.device("cpu")
PRECISIONS: tuple[rounding.Precision, ...] = ("fp32", "tf32", "bf16")
PRODUCTS = ("linear", "linear_tanh", "tanh_dot")
ATARI = EnvSpec("test", "image", (1, 64, 64), "uint8", 6, "none")
GRID = EnvSpec("test", "vector", (2100,), "float32", 3, "none", (10, 10, 21))
RUNS = {
    "debug": (configure(game="Pong", preset="debug", device="cpu"), ATARI),
    "cpu": (configure(game="Pong", preset="cpu", device="cpu", num_envs=16, env_groups=2), ATARI),
    "deepsea": (configure(env="deepsea-10", device="cpu"), EnvSpec("test", "vector", (100,), "float32", 2, "none")),
    "minatar": (configure(env="minatar/freeway", device="cpu"), GRID),
}


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    monkeypatch.setattr(dispatch, "_disabled", {})
    monkeypatch.setattr(native, "_disabled", {})
    yield
    for entry in dispatch.operations.values():
        entry.direct = False


def replaced(monkeypatch: pytest.MonkeyPatch, operation: str, kernel: Any) -> None:
    """This kernel in the place of the one that serves; it also gets the right one."""
    entry = dispatch.operations[operation]
    right = entry.aten
    monkeypatch.setattr(entry, "aten", lambda *args: kernel(right, *args))
    monkeypatch.setattr(lookahead, "in_one_call", lambda rows, device: False)  # a kernel of its own
    entry.direct = False


def findings(chosen: list[Call], precision: rounding.Precision) -> list[checks.Finding]:
    found = list(checks.check_calls(chosen, CPU, precision))
    assert found, "nothing was checked"
    return found


def of(operation: str, chosen: list[Call]) -> list[Call]:
    return [call for call in chosen if call.operation == operation]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("run", RUNS)
def test_sound_kernels_pass(run, precision):
    found = findings(KernelCalls.of(*RUNS[run]).calls, precision)
    assert found
    assert [finding for finding in found if finding.problem] == []


def emulated(round_operand):
    """A kernel whose products have rounded factors."""

    def kernel(right, *args):
        with rounding.Emulated(round_operand, torch.float32):
            return right(*args)

    return kernel


@pytest.mark.parametrize("inner", [33, 65, 2292])
@pytest.mark.parametrize("operation", PRODUCTS)
@pytest.mark.parametrize("operand", [rounding.to_tf32, rounding.cut_to_tf32])
def test_tf32_kernels_pass_in_tf32_only(monkeypatch, operand, operation, inner):
    """Whatever the width: at small ones cuBLAS computes in float32 even where tf32 is allowed, and is no measure."""
    oracle = dispatch.operations[operation].backend("reference")
    replaced(monkeypatch, operation, lambda right, *args: emulated(operand)(lambda *x: oracle(*x), *args))
    chosen = of(operation, calls(inner) + calls(inner, states=50))
    for finding in findings(chosen, "tf32"):
        assert finding.problem is None, finding
        assert finding.error > 0.1 * finding.allowed, "the allowance has lost touch with tf32"
    fp32 = findings(chosen, "fp32")
    assert all(finding.problem for finding in fp32), fp32
    # The measure of before: four times what float32 products are wrong by, as a library at such widths forms them.
    monkeypatch.undo()
    library = {finding.call: finding.error for finding in findings(chosen, "fp32")}
    assert all(finding.error > 4 * library[finding.call] + 1.2e-7 for finding in fp32)


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
@pytest.mark.parametrize("operation", PRODUCTS)
def test_bf16_kernels_fail_elsewhere(monkeypatch, operation, precision):
    oracle = dispatch.operations[operation].backend("reference")
    replaced(monkeypatch, operation, lambda right, *args: emulated(rounding.to_bf16)(lambda *x: oracle(*x), *args))
    assert all(finding.problem for finding in findings(of(operation, calls(65, 50)), precision))


class Idle:
    """Kernels that write nothing, and what then is in the memory of their result."""

    @staticmethod
    def zeros(right, *args):
        return torch.zeros_like(right(*args))

    @staticmethod
    def garbage(right, *args):
        result = right(*args)
        return result.fill_(3e38 if result.is_floating_point() else 2**40)

    @staticmethod
    def unwritten(right, *args):
        result = right(*args)
        return result.fill_(torch.nan if result.is_floating_point() else 0)

    def __init__(self) -> None:
        self.memory: Tensor | None = None

    def recycled(self, right, *args):
        """The first call is right, those after it get its memory back from the allocator."""
        result = right(*args)
        self.memory = result if self.memory is None else self.memory
        return self.memory[: len(result)]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("operation", dispatch.explain())
@pytest.mark.parametrize("what", ["zeros", "garbage", "unwritten", "recycled"])
def test_kernels_that_do_nothing_fail(monkeypatch, what, operation, precision):
    chosen = calls(65) + ([] if what == "recycled" else calls(65, states=50))
    for call in of(operation, chosen):
        with monkeypatch.context() as patch:
            replaced(patch, operation, getattr(Idle(), what))
            (finding,) = findings([call], precision)
            assert finding.problem, finding


@pytest.mark.parametrize("operation", dispatch.explain())
def test_what_another_call_left_in_memory_is_no_result(monkeypatch, operation):
    """Calls that differ in rows only have the same truth, which the first one must not leave to the second."""
    many, fewer = of(operation, calls(65, states=60) + calls(65, states=50))
    replaced(monkeypatch, operation, Idle().recycled)
    first, second = findings([many, fewer], "fp32")
    assert first.problem is None
    assert second.problem


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_no_call_of_a_run_leaves_room_for_zeros(run, precision):
    """The allowance is at most 5 % of what zeros are wrong by, and that is not nothing."""
    for call in KernelCalls.of(*RUNS[run]).calls:
        truth = lookahead._truth(call.distinct(), precision)
        result = dispatch.operations[call.operation].backend("reference")(*truth.inputs)
        nothing = truth.compared(torch.zeros_like(result), torch.arange(len(truth.exact)))
        assert 0 < truth.allowed <= 0.05 * rounding.rms(nothing - truth.exact) * (1 + 1e-9), call


def test_the_ceiling_holds_where_rounding_is_coarse(monkeypatch):
    """A mode whose rounding leaves nothing may not excuse a kernel that leaves nothing."""
    monkeypatch.setitem(rounding.ROUNDINGS, "tf32", (torch.zeros_like,))
    replaced(monkeypatch, "linear", Idle.zeros)
    assert all(finding.problem for finding in findings(of("linear", calls(65, 50)), "tf32"))


@pytest.mark.parametrize("operation", [name for name in dispatch.explain() if name != "greedy_action"])
def test_an_error_of_a_thousandth_is_found(monkeypatch, operation):
    replaced(monkeypatch, operation, lambda right, *args: right(*args) * 1.001)
    for call in of(operation, calls(33) + calls(2292) + calls(65, states=50)):
        (finding,) = findings([call], "fp32")
        assert finding.problem, finding


def test_one_wrong_action_is_found(monkeypatch):
    def kernel(right, *args):
        action = right(*args)
        action[-1] = (action[-1] + 1) % args[0].shape[1]
        return action

    replaced(monkeypatch, "greedy_action", kernel)
    for call in of("greedy_action", calls(33) + calls(33, states=50)):
        assert findings([call], "fp32")[0].problem


@pytest.mark.parametrize("row", [0, 128, -1])
def test_one_wrong_row_is_found(monkeypatch, row):
    """Of the two tiles of 128 rows."""

    def kernel(right, *args):
        result = right(*args)
        result[row] += 0.01
        return result

    replaced(monkeypatch, "linear_tanh", kernel)
    assert findings(of("linear_tanh", calls(65, states=60)), "fp32")[0].problem


def test_a_read_beyond_the_rows_is_found(monkeypatch):
    """What lies between the rows of a strided argument is NaN."""
    rows, weight = torch.empty(50, 12, device="meta")[:, :8], empty(5, 8)

    def kernel(right, x, *args):
        return right(x, *args) + 0 * x.as_strided((len(x), 12), (12, 1)).sum()

    replaced(monkeypatch, "linear", kernel)
    assert findings([Call.of("linear", rows, weight, None)], "fp32")[0].problem


@pytest.mark.parametrize("wrong", native.operations())
@pytest.mark.skipif(native.unavailable(CPU) is not None, reason="the C++ extension is not built")
def test_posterior_operations_that_do_nothing_fail(wrong):
    """One of them leaves its results zero, or its argument as it was; the others are right."""

    def nothing(*args):
        if wrong == "gram_accumulate_":
            return None
        result = getattr(reference, wrong)(*args)
        return tuple(map(torch.zeros_like, result)) if isinstance(result, tuple) else torch.zeros_like(result)

    functions = SimpleNamespace(**{name: getattr(reference, name) for name in native.operations()})
    assert not any(f.problem for f in posterior_checks.check_posterior(65, CPU, functions))
    setattr(functions, wrong, nothing)
    found = posterior_checks.check_posterior(65, CPU, functions)
    assert {f.operation for f in found if f.problem} & {wrong, "posterior"}, found


def unit(call: Call) -> int:
    """UNIT of a product's machine code, as the kernels derive it."""
    weight = call.arguments[1]
    assert isinstance(weight, Argument)
    return tune.common_unit(call.first.shape[1], call.first.strides[0], weight.strides[0])


def test_the_paper_checks_its_own_widths():
    """With the machine code that training runs: 16-byte loads because 4 divides widths and strides (UNIT)."""
    work = KernelCalls.of(configure(game="Pong", preset="paper", device="cpu"), ATARI)
    shapes = {(call.first.shape[1], call.arguments[1].shape[0], unit(call)) for call in work.calls
              if call.operation in PRODUCTS and isinstance(call.arguments[1], Argument)}  # fmt: skip
    assert {(756, 2292, 4), (2292, 2292, 4), (2292, 1537, 4), (1536, 4560, 16), (2298, 2292, 2)} <= shapes
    assert (1536, 1536, 4) in shapes  # the termination network reads rows of 2292 numbers
    assert work.features == 2292
    products = [call for call in work.calls if call.operation in PRODUCTS]
    rows = {call.rows <= tune.FEW_ROWS for call in products}
    assert rows == {True, False}
    for call in products:
        bounded = call.bounded()
        assert bounded.rows <= 256
        assert (bounded.rows <= tune.FEW_ROWS) == (call.rows <= tune.FEW_ROWS)  # the same list of tiles
        assert call.rows <= 128 or bounded.rows > 128 or bounded.rows == call.rows


@pytest.mark.parametrize("kind", ["image", "vector", "grid"])
def test_a_run_makes_no_other_calls(kind, monkeypatch):
    """Every call of a real update and action is among those that were checked, up to the number of rows and to strides
    that compile to the same machine code (steps of a batch lie a multiple of their width apart)."""

    def code(call: Call) -> tuple[Any, ...]:
        shapes = [x.shape if isinstance(x, Argument) else x for x in call.with_states(1).arguments]
        return call.operation, *shapes, unit(call) if call.operation in PRODUCTS else 0

    local: Any = {**GRID_SETTINGS, "termination": {"predicted": True}} if kind == "grid" else {}
    agent: PsdrlAgent = debug_agent("fast", torch.float32, kind=kind, actions=3, **local)
    made: dict[Call, None] = {}
    serve = dispatch.Operation.serve

    def noted(self, x, *args):
        made[Call.of(self.name, x, *args)] = None
        return serve(self, x, *args)

    monkeypatch.setattr(dispatch.Operation, "serve", noted)
    with dispatch.force("aten"):
        agent.update()
        frames = agent.replay.observations[:1].numpy().repeat(agent.config.num_envs, 0)
        agent.actor.act(frames, 0.0)
    checked = {code(call) for call in KernelCalls.of(agent.config, agent.spec).calls}
    assert made
    assert [call for call in made if code(call) not in checked] == []


def test_nothing_is_measured(monkeypatch):
    """Checks run default tiles and known ones; the tuner is asked what it knows, never to choose."""
    default, other = tune.tiles(80, "tf32", 200)[:2]

    def refuse(*args):
        raise AssertionError("measured")

    x = torch.empty(200, 64)
    monkeypatch.delenv("PSDRL_AUTOTUNE", raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A100")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    known = {"linear_tanh A100 tf32 4096x64x64": other, "linear_tanh A100 tf32 512x64x64": (1, 2, 3)}
    monkeypatch.setattr(tune, "tuner", lambda: SimpleNamespace(known=known, choose=refuse))

    def tile():
        return tune._way("linear_tanh", x, "tf32", (200, 64, 64), refuse, parts=True)

    with pytest.raises(AssertionError, match="measured"):
        tile()
    with tune.pinned():
        assert tile() == default
    with tune.pinned(3000):  # what training found for its own rows
        assert tile() == other
    for rows in (200, 400):  # not known; known, but no candidate any more
        with tune.pinned(rows):
            assert tile() == default
    for way in (tune.LIBRARY, tune.splits("tf32", 200)[0]):  # what has not been measured yet and may be chosen
        with tune.pinned(way):
            assert tile() == way
    with tune.pinned(tune.Tile(1, 2, 3, 4, 5)):
        assert tile() == default
    seen = []

    def kernel(right, *args):
        seen.append(tune._pinned)
        return right(*args)

    replaced(monkeypatch, "linear", kernel)
    findings(of("linear", calls()), "fp32")
    assert seen
    assert None not in seen


def test_start_up_leaves_everything_as_it_was():
    """Generators and switches; a run must not depend on whether its kernels were checked."""
    before = torch.get_rng_state(), torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    assert check_kernels(*RUNS["debug"], CPU) == []
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before[1:]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_switches_return(precision):
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    def fails_within() -> None:
        with checks.switches(torch.device("cuda"), precision):
            assert torch.get_float32_matmul_precision() == ("highest" if precision == "fp32" else "high")
            assert torch.backends.cudnn.allow_tf32 == (precision != "fp32")
            raise ValueError("within")

    with pytest.raises(ValueError, match="within"):
        fails_within()
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


def test_a_device_that_a_kernel_has_broken_is_named(monkeypatch):
    """After an illegal address no fallback can serve: CUDA refuses everything until the process ends."""

    def crash(right, *args):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    replaced(monkeypatch, "linear", crash)
    assert {f.operation for f in checks.start_up(CPU, "fp32", of("linear", calls()), 16)} == {"linear"}
    dispatch._disabled.clear()
    monkeypatch.setattr(checks, "_unusable", lambda device: "illegal address")
    with pytest.raises(UserError, match=r"cpu refuses all work \(illegal address\).*linear"):
        checks.start_up(CPU, "fp32", of("linear", calls()), 16)


def test_rounding_to_tf32():
    x = torch.tensor([1.0, 1 + 2**-10, 1 + 2**-11, 1 + 2**-12, -1 - 2**-11, 1 + 2**-10 - 2**-23])
    assert rounding.to_tf32(x).tolist() == [1, 1 + 2**-10, 1 + 2**-10, 1, -1 - 2**-10, 1 + 2**-10]
    assert rounding.cut_to_tf32(x).tolist() == [1, 1 + 2**-10, 1, 1, -1, 1]
    assert rounding.to_tf32(x.double()).dtype == torch.float64


@pytest.mark.parametrize("inner", [100, 10_000])
def test_the_error_of_float32_sums_is_emulated(inner):
    """Against sums in sequence, the worst order: as large, within a factor of two."""
    x, y = torch.randn(2, 200, inner, generator=torch.Generator().manual_seed(inner))
    exact = (x.double() * y.double()).sum(1)
    total = torch.zeros(200)
    for k in range(inner):
        total = torch.addcmul(total, x[:, k], y[:, k])
    sequential = rounding.rms(total - exact)
    a, b = x.double(), y.double()
    with rounding.Emulated(rounding.exactly, torch.float64, summed=True):
        emulated_sums = a @ b.T
    error = rounding.rms(emulated_sums - a @ b.T)
    assert 0.5 * sequential < error < 2 * sequential
