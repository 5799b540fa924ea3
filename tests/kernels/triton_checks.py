"""The Triton kernels in Triton's interpreter, against float64 and against eager PyTorch in the same dtype.

Run by test_triton_interpreter.py in a process of its own: TRITON_INTERPRET must be set before Triton is imported.
The tolerance is eager's own error: the error of the kernel against float64, as the root of its mean square over the
tensor, is at most twice that of the plain PyTorch oracle on the CPU. (The interpreter multiplies tf32 inputs in full
float32, so there the oracle is given inputs rounded to tf32.)
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from psdrl.kernels import dispatch, triton_support, tune
from psdrl.kernels.checks.rounding import to_tf32
from psdrl.kernels.greedy import best_return, greedy_action, one_step_returns
from psdrl.kernels.greedy import reference as greedy_reference
from psdrl.kernels.gru_actions import gru_actions
from psdrl.kernels.gru_actions import reference as gru_reference
from psdrl.kernels.linear_tanh import linear, linear_tanh
from psdrl.kernels.linear_tanh import reference as linear_reference
from psdrl.kernels.tanh_dot import reference as dot_reference
from psdrl.kernels.tanh_dot import tanh_dot
from psdrl.kernels.weight_step import weight_step_

assert triton_support.interpreted(), "set TRITON_INTERPRET=1"

ACTIONS = (1, 3, 6, 18)
PRECISIONS = ("ieee", "tf32", "bf16")
SHAPES = [(1, 5, 7), (2, 33, 50), (9, 70, 67)]  # states, inner, units: few rows and many, none a multiple of a tile


@pytest.fixture(autouse=True)
def _forced():
    with dispatch.force("triton"):
        yield


@pytest.fixture(params=PRECISIONS)
def precision(request: pytest.FixtureRequest):
    torch.set_float32_matmul_precision("high" if request.param == "tf32" else "highest")
    yield request.param
    torch.set_float32_matmul_precision("highest")


def draws(precision: str, *shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def error(result: Tensor, exact: Tensor) -> float:
    return float((result.double() - exact).square().mean().sqrt())


def check(
    precision: str,
    kernel: Callable[..., Tensor],
    oracle: Callable[..., Tensor],
    inputs: Callable[[int], Sequence[Tensor | None]],
) -> None:
    """Inputs of seed 0, 1, ... until there are 24 numbers: the error of a few is chance."""
    results, eagers, exacts = [], [], []
    for seed in itertools.count():
        drawn = inputs(seed)
        exacts.append(oracle(*(None if x is None else x.double() for x in drawn)).flatten())
        rounded = [to_tf32(x) if precision == "tf32" and x is not None and x.ndim > 1 else x for x in drawn]
        eager, result = oracle(*rounded), kernel(*drawn)
        assert (result.dtype, result.shape) == (eager.dtype, eager.shape)
        results.append(result.flatten())
        eagers.append(eager.flatten())
        if sum(map(len, exacts)) >= 24:
            break
    exact = torch.cat(exacts)
    mine, eagers_error = error(torch.cat(results), exact), error(torch.cat(eagers), exact)
    shapes = [x if x is None else tuple(x.shape) for x in drawn]
    assert mine <= 2 * eagers_error, f"{precision} {shapes}: error {mine} > 2 * {eagers_error}"


@pytest.mark.parametrize("num_actions", ACTIONS)
@pytest.mark.parametrize(("count", "size"), [(1, 37), (3, 130)])
def test_gru_actions(precision: str, num_actions: int, count: int, size: int) -> None:
    shapes = (count, 3 * size), (count, 3 * size), (num_actions, 3 * size), (count, size)
    pointwise = "ieee" if precision == "tf32" else precision
    check(pointwise, gru_actions, gru_reference.gru_actions, lambda seed: draws(precision, *shapes, seed=seed))


@pytest.mark.parametrize("terms", ["", "b", "s", "bc", "bsc"])
@pytest.mark.parametrize("num_actions", ACTIONS)
def test_linear_tanh(precision: str, num_actions: int, terms: str) -> None:
    for states, inner, units in SHAPES:
        shapes = (states * num_actions, inner), (units, inner), (units,), (states, units), (num_actions, units)

        def inputs(seed: int, shapes: Any = shapes, inner: int = inner) -> list[Tensor | None]:
            x, weight, *optional = draws(precision, *shapes, seed=seed)
            return [
                x,
                weight / inner**0.5,
                *(t if letter in terms else None for t, letter in zip(optional, "bsc", strict=True)),
            ]

        check(precision, linear_tanh, linear_reference.linear_tanh, inputs)


@pytest.mark.parametrize("rows", [1, 6, 33, 150])
@pytest.mark.parametrize("bias", [False, True])
def test_linear(precision: str, rows: int, bias: bool) -> None:
    def inputs(seed: int) -> list[Tensor | None]:
        x, weight, b = draws(precision, (rows, 97), (131, 97), (131,), seed=seed)
        return [x, weight, b if bias else None]

    check(precision, linear, linear_reference.linear, inputs)


def dot_inputs(precision: str, rows: int) -> Callable[[int], list[Tensor]]:
    def inputs(seed: int) -> list[Tensor]:
        shapes = (rows, 70), (67, 70), (67,), (1, 67), (1,)
        x, weight, bias, out, out_bias = draws(precision, *shapes, seed=seed)
        return [x, weight / 8, bias, out / 8, out_bias]

    return inputs


@pytest.mark.parametrize("rows", [1, 6, 18, 131])
def test_tanh_dot(precision: str, rows: int) -> None:
    check(precision, tanh_dot, dot_reference.tanh_dot, dot_inputs(precision, rows))


@pytest.mark.parametrize("rows", [18, 131])
def test_every_tile(precision: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = dot_inputs(precision, rows)
    for tile in sorted({tile for arch in (80, 90, 100) for tile in tune.tiles(arch, precision, rows)}):
        with monkeypatch.context() as patch:
            patch.setattr(tune, "tiles", lambda *_, tile=tile: [tile])
            check(precision, linear_tanh, linear_reference.linear_tanh, lambda seed: inputs(seed)[:3])
            check(precision, tanh_dot, dot_reference.tanh_dot, inputs)


@pytest.mark.parametrize("way", ["cublas", "parts"])
def test_other_ways(precision: str, way: str) -> None:
    """The inner dimension in parts, more of them than it has blocks, and the product by a library."""
    split = tune.splits(precision, 125)
    ways = [tune.LIBRARY] if way == "cublas" else [split[0], split[-1]._replace(split=5)]
    for pin, terms in itertools.product(ways, ("", "b", "bsc")):

        def inputs(seed: int, terms: str = terms) -> list[Tensor | None]:
            shapes = (66, 97), (131, 97), (131,), (11, 131), (6, 131)
            x, weight, *optional = draws(precision, *shapes, seed=seed)
            return [
                x,
                weight / 97**0.5,
                *(t if letter in terms else None for t, letter in zip(optional, "bsc", strict=True)),
            ]

        with tune.pinned(pin):
            check(precision, linear_tanh, linear_reference.linear_tanh, inputs)
            check(precision, linear, linear_reference.linear, lambda seed: inputs(seed)[:3])
            check(precision, tanh_dot, dot_reference.tanh_dot, dot_inputs(precision, 66))
            assert torch.equal(linear_tanh(*inputs(0)), linear_tanh(*inputs(0)))


@pytest.mark.parametrize(("rows", "units", "inner"), [(5, 16, 67), (70, 66, 132)])
def test_weight_step(precision: str, rows: int, units: int, inner: int) -> None:
    """Four steps: the parameters are those of torch.optim.Adam, given the gradient in float64, up to rounding."""
    weight = torch.nn.Parameter(draws("ieee", (units, inner))[0])
    mine, first, second, step = weight.detach().clone(), *torch.zeros(2, units, inner), torch.zeros(())
    adam = torch.optim.Adam([weight], 1e-3, foreach=False)
    for t in range(4):
        delta, x = draws(precision, (rows, units), (rows, inner), seed=t)
        step += 1
        weight_step_(mine, first, second, step, delta, x, 1e-3, (0.9, 0.999), 1e-8)
        weight.grad = (delta.double().T @ x.double()).float()
        adam.step()
        state = adam.state[weight]
        pairs = ((first, state["exp_avg"]), (second, state["exp_avg_sq"]), (mine / 1e-3, weight.detach() / 1e-3))
        for result, expected in pairs:  # weights by how far a step moves them: half an ulp is 1e-4 of it
            assert error(result, expected.double()) <= 1e-6 * float(expected.abs().max()), t


def test_the_check_of_the_weight_step(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes; a kernel that does nothing, or forgets what the averages were, is found."""
    from psdrl.kernels import checks, weight_step

    layer = checks.Call.of("linear_tanh", torch.empty(9, 40, device="meta"), torch.empty(35, 40, device="meta"))
    mode: Any = "fp32" if precision == "ieee" else precision
    (finding,) = checks.check_weight_step([layer], torch.device("cpu"), mode)
    assert finding.problem is None, finding
    for broken in (lambda *_: None, lambda w, m, v, *rest: weight_step_(w, m.zero_(), v, *rest)):
        with monkeypatch.context() as patch:
            patch.setattr(weight_step, "weight_step_", broken)
            (finding,) = checks.check_weight_step([layer], torch.device("cpu"), mode)
            assert finding.problem is not None


@pytest.mark.parametrize("num_actions", ACTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_greedy(num_actions: int, dtype: torch.dtype) -> None:
    precision = "bf16" if dtype == torch.bfloat16 else "ieee"
    rewards, omega, values = draws(precision, *[(71, num_actions)] * 3)
    rewards, values = rewards.round(), (4 * values).round() / 4  # many ties
    lots = torch.rand(71, num_actions, generator=torch.Generator().manual_seed(1))
    returns = one_step_returns(rewards, omega, values, 0.5, 0.4)
    exact = greedy_reference.one_step_returns(rewards.double(), omega.double(), values.double(), 0.5, 0.4)
    eager = greedy_reference.one_step_returns(rewards, omega, values, 0.5, 0.4)
    assert error(returns, exact) <= 2 * error(eager, exact)
    assert torch.equal(best_return(rewards, omega, values, 0.5, 0.4), returns.amax(1))  # all follows from the returns
    action = greedy_action(rewards, omega, values, 0.5, 0.4, lots)
    zero = torch.zeros_like(rewards)
    assert torch.equal(action, greedy_reference.greedy_action(returns, zero, zero, 0.5, 0.4, lots))
    assert num_actions == 1 or not torch.equal(action, returns.argmax(1)), "no ties: the test shows nothing"


def check_ties(rewards: Tensor, omega: Tensor, values: Tensor) -> None:
    """The oracle's action whichever action the lots favour: the tied ones are the same."""
    for favoured in range(rewards.shape[1]):
        lots = torch.zeros(rewards.shape)
        lots[:, favoured] = 0.5
        expected = greedy_reference.greedy_action(rewards, omega, values, 0.9, 0.5, lots)
        assert greedy_action(rewards, omega, values, 0.9, 0.5, lots).tolist() == expected.tolist(), favoured


def test_greedy_ties_are_those_of_isclose() -> None:
    """Differences around rtol = 1e-5 and atol = 1e-8 of torch.isclose."""
    top = torch.tensor([1.0, -3.0, 1e-3, 0.0, 1e4])
    below = torch.tensor([0.0, 0.5e-8, 2e-8, 0.9e-5, 1.1e-5, 1e-3])
    returns = torch.cat([top[:, None] - below * top.abs()[:, None].clamp(1), top[:, None] - below], 1)
    check_ties(returns, torch.zeros_like(returns), torch.zeros_like(returns))


def test_greedy_of_infinities_and_nan() -> None:
    nan, inf = torch.nan, torch.inf
    rewards = torch.tensor(
        [[nan, 1, 2], [1, nan, nan], [inf, inf, 1], [-inf, -inf, -inf], [inf, nan, 0], [-inf, 2, -inf], [0, 0, 0]]
    )
    omega = torch.tensor([[0.0, 0.0, 0.0]] * 6 + [[1.0, nan, 0.0]])
    values = torch.tensor([[0.0, 0.0, 0.0]] * 6 + [[nan, inf, 1.0]])  # dead, dead (NaN is not below), alive
    check_ties(rewards, omega, values)
    for mine, oracle in (
        (one_step_returns, greedy_reference.one_step_returns),
        (best_return, greedy_reference.best_return),
    ):
        result, expected = (function(rewards, omega, values, 0.9, 0.5) for function in (mine, oracle))
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


def test_empty_batch(precision: str) -> None:
    for num_actions in ACTIONS:
        inputs, recurrent, columns, hidden = draws(precision, (0, 30), (0, 30), (num_actions, 30), (0, 10))
        assert gru_actions(inputs, recurrent, columns, hidden).shape == (0, num_actions, 10)
        x, weight, bias, state, columns = draws(precision, (0, 5), (7, 5), (7,), (0, 7), (num_actions, 7))
        assert linear(x, weight, bias).shape == (0, 7)
        assert linear_tanh(x, weight, bias, state, columns).shape == (0, 7)
        out, out_bias, rewards = draws(precision, (1, 7), (1,), (0, num_actions))
        assert tanh_dot(x, weight, bias, out, out_bias).shape == (0,)
        assert one_step_returns(rewards, rewards, rewards, 0.9, 0.5).shape == (0, num_actions)
        assert greedy_action(rewards, rewards, rewards, 0.9, 0.5, rewards).shape == (0,)
        assert best_return(rewards, rewards, rewards, 0.9, 0.5).shape == (0,)


EXTREMES = torch.tensor(
    [0.0, -0.0, 1e-30, -1e-8, 0.999, 1.001, -20, 44, 88, -89, 104, 1e10, -1e30, torch.inf, -torch.inf, torch.nan]
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_extreme_inputs(dtype: torch.dtype) -> None:
    """Saturation without NaN; infinities and NaN come out where eager has them."""
    values = EXTREMES.to(dtype)
    size = len(values)
    table = torch.cartesian_prod(values, values).T.contiguous()  # (2, 256) every pair

    def compare(kernel: Callable[..., Tensor], oracle: Callable[..., Tensor], *inputs: Tensor | None) -> None:
        result, eager = kernel(*inputs), oracle(*inputs)
        exact = oracle(*(None if x is None else x.double() for x in inputs))
        assert torch.equal(result.isnan(), eager.isnan())
        finite = eager.isfinite()
        assert torch.equal(result[~finite].nan_to_num(), eager[~finite].nan_to_num())
        assert error(result[finite], exact[finite]) <= 2 * error(eager[finite], exact[finite])

    weight = torch.eye(2, dtype=dtype)[:1]  # picks the first of two: infinity times 0 is NaN, in eager too
    compare(linear_tanh, linear_reference.linear_tanh, table.T, weight)
    compare(linear_tanh, linear_reference.linear_tanh, values[:, None], torch.ones(3, 1, dtype=dtype))
    ones = torch.ones(1, 3, dtype=dtype)
    compare(tanh_dot, dot_reference.tanh_dot, values[:, None], ones.T, ones[0], ones, ones[0, :1])
    first, second = table
    gates = torch.cat([first, first, first])[None]
    recurrent = torch.cat([second, second, second])[None]
    hidden = torch.full((1, size * size), 0.5, dtype=dtype)
    compare(gru_actions, gru_reference.gru_actions, gates, recurrent, torch.zeros_like(gates), hidden)


@pytest.mark.parametrize("layout", ["sliced", "transposed", "expanded"])
def test_any_strides(precision: str, layout: str) -> None:
    """Views are taken as they are, or copied; never misread."""

    def view(x: Tensor) -> Tensor:
        if layout == "sliced":
            wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1] + 3), torch.nan)
            wide[..., 3 : 3 + x.shape[-1]] = x
            return wide[..., 3 : 3 + x.shape[-1]]
        if layout == "transposed":
            return x.T.contiguous().T
        return x[:1].expand_as(x)

    states, num_actions, size, units = 5, 3, 20, 41
    rows = states * num_actions
    shapes = (rows, size), (units, size), (units,), (states, units), (num_actions, units), (1, units), (1,)

    def inputs(seed: int) -> list[Tensor]:
        x, weight, bias, state, columns, out, out_bias = draws(precision, *shapes, seed=seed)
        strided = torch.stack([bias, bias], 1)[:, 0]
        return [view(x), view(weight / 5), strided, view(state), view(columns), view(out), out_bias]

    check(precision, linear_tanh, linear_reference.linear_tanh, lambda seed: inputs(seed)[:5])
    check(precision, tanh_dot, dot_reference.tanh_dot, lambda seed: [*inputs(seed)[:3], *inputs(seed)[5:]])
    gru_shapes = (states, 3 * size), (states, 3 * size), (num_actions, 3 * size), (states, size)
    pointwise = "ieee" if precision == "tf32" else precision
    check(
        pointwise,
        gru_actions,
        gru_reference.gru_actions,
        lambda seed: [view(t) for t in draws(precision, *gru_shapes, seed=seed)],
    )
    rewards, omega, values = (view(t) for t in draws(precision, *[(states, num_actions)] * 3))
    dense = best_return(rewards.contiguous(), omega.contiguous(), values.contiguous(), 0.9, 0.5)
    assert torch.equal(best_return(rewards, omega, values, 0.9, 0.5), dense)


def test_rows_beyond_two_to_the_31() -> None:
    """Row 2 of a view starts at element 2^31: 32-bit offsets would wrap. Only touched pages take memory."""
    try:
        storage = torch.empty(2**31 + 64, dtype=torch.bfloat16)
    except RuntimeError as problem:
        pytest.skip(f"no 4 GB of address space: {problem}")
    x = storage.as_strided((3, 17), (2**30, 1))
    x.copy_(draws("bf16", (3, 17))[0])
    dense = x.clone()
    (weight, bias, out, out_bias) = draws("bf16", (5, 17), (5,), (1, 5), (1,))
    assert torch.equal(linear_tanh(x, weight, bias), linear_tanh(dense, weight, bias))
    assert torch.equal(linear(dense, x), linear(dense, dense))
    assert torch.equal(tanh_dot(x, weight, bias, out, out_bias), tanh_dot(dense, weight, bias, out, out_bias))
    inputs, recurrent, columns = draws("bf16", (3, 51), (3, 51), (2, 51))
    assert torch.equal(gru_actions(inputs, recurrent, columns, x), gru_actions(inputs, recurrent, columns, dense))
    assert torch.equal(best_return(x, x, x, 0.9, 0.5), best_return(dense, dense, dense, 0.9, 0.5))


def test_wrong_arguments_are_named() -> None:
    x, weight, state = draws("ieee", (6, 4), (5, 4), (4, 5))
    with pytest.raises(TypeError, match="bfloat16"):
        linear(x, weight.bfloat16())
    with pytest.raises(ValueError, match="do not match"):
        linear(x, weight[:, 1:])
    with pytest.raises(ValueError, match="rows per state"):
        linear_tanh(x, weight, None, state)
    with pytest.raises(ValueError, match="expected \\(6, 4\\)"):
        best_return(x, x[:, :3], x, 0.9, 0.5)
    with pytest.raises(ValueError, match="do not match"):
        gru_actions(x, x, x, x)
    with pytest.raises(dispatch.Refused, match="float64"):
        linear(x.double(), weight.double())


def parts(seed: int) -> Any:
    from tests.helpers import small_config, small_models, vector_spec

    config = small_config(
        forward={"layers": 4, "units": 35, "recurrent": 18},
        termination={"layers": 3, "units": 21},
        value={"layers": 4, "units": 37, "networks": 2, "discount": 0.9},
    )
    models = small_models(config, vector_spec(13, 6), seed).float()
    weight = torch.randn(14, 35, generator=torch.Generator().manual_seed(seed)) / 5
    return models, models.forward_model.sampled(weight)


@pytest.mark.parametrize(("count", "steps"), [(1, 1), (11, 1), (2, 3)])
def test_lookahead(count: int, steps: int) -> None:
    """The composition, for acting (6 rows) and planning (66 rows)."""
    from psdrl.agents.psdrl.oracle import lookahead
    from tests.helpers import fast_lookahead

    latents, hidden = draws("ieee", (count, 13), (count, 18))
    models, sample = parts(1)
    models.value.lookahead = steps
    with torch.no_grad():
        result = fast_lookahead(models, sample, models.value, latents, hidden)
        eager = lookahead(models, sample, models.value, latents, hidden, steps)
        sample.weight, sample.bias = sample.weight.double(), sample.bias.double()
        models.double()
        exact = lookahead(models, sample, models.value, latents.double(), hidden.double(), steps)
    assert error(result.returns, exact.returns) <= 2 * error(eager.returns, exact.returns)
    assert error(result.hidden, exact.hidden) <= 2 * error(eager.hidden, exact.hidden)


def updated(backend: dispatch.Backend, dtype: torch.dtype) -> tuple[Tensor, list[int]]:
    """An agent's parameters after one whole update on the same memory, and the actions it then takes."""
    from psdrl.agents.psdrl.agent import PsdrlAgent
    from psdrl.agents.psdrl.synthetic import add_episode
    from tests.helpers import small_config, vector_spec

    with dispatch.force(backend):
        agent = PsdrlAgent(small_config(seed=3, replay={"batch": 3, "length": 5}), vector_spec(), dtype)
        rng = np.random.default_rng(5)
        for length in (6, 5, 7):
            add_episode(agent.replay, rng, length)
        agent.update()
        actions = [int(agent.actor.act(rng.normal(size=(1, 3)).astype(np.float32), 0.0)[0]) for _ in range(5)]
    return torch.cat([p.detach().flatten() for p in agent.models.value.parameters()]), actions


def test_a_whole_update_on_every_backend() -> None:
    """Encoding to planning, then acting: the value network that each backend leads to, against float64."""
    exact, actions = updated("reference", torch.float64)
    results = {backend: updated(backend, torch.float32) for backend in dispatch.BACKENDS}
    errors = {backend: error(parameters, exact) for backend, (parameters, _) in results.items()}
    assert 0 < errors["reference"] < 1e-6, errors
    for backend in ("aten", "triton"):
        assert errors[backend] <= 2 * errors["reference"], errors
        assert results[backend][1] == actions, backend


@pytest.mark.parametrize("states", [1, 50])
def test_the_start_up_checks(precision: str, states: int) -> None:
    """They let the kernels pass, with widths that no tile divides and with strided rows."""
    from psdrl.kernels import checks
    from tests.kernels.inputs import calls

    strided = torch.empty(3 * states, 76, device="meta")[:, :68]
    chosen = [*calls(35, states), checks.Call.of("linear", strided, torch.empty(9, 68, device="meta"))]
    mode: Any = "fp32" if precision == "ieee" else precision
    findings = list(checks.check_calls(chosen, torch.device("cpu"), mode))
    assert {finding.backend for finding in findings} == {"triton"}
    assert [finding for finding in findings if finding.problem] == []


def test_a_launch_that_does_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a device has no machine code for a kernel and says nothing."""
    from psdrl.kernels import checks
    from psdrl.kernels.greedy import triton_kernel as greedy_kernel
    from psdrl.kernels.gru_actions import triton_kernel as gru_kernel
    from tests.kernels.inputs import calls

    class Idle:
        def __getitem__(self, grid: Any) -> Callable[..., None]:
            return lambda *args, **options: None

    monkeypatch.setattr(tune, "run", lambda *args, **options: None)
    monkeypatch.setattr(greedy_kernel, "kernel", Idle())
    monkeypatch.setattr(gru_kernel, "kernel", Idle())
    for states in (1, 50):
        findings = list(checks.check_calls(calls(35, states), torch.device("cpu"), "fp32"))
        assert [finding for finding in findings if not finding.problem] == []
