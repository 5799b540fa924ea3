"""The lookahead's operations against their oracles."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from psdrl.kernels import dispatch, tune
from psdrl.kernels.checks.calls import Argument, Call, random_inputs
from psdrl.kernels.checks.rounding import ROUNDINGS, Emulated, Precision, casting, rms, to_bf16
from psdrl.kernels.greedy.reference import one_step_returns
from psdrl.kernels.tanh_dot.aten import in_one_call

FACTOR = 2.0  # a kernel adds in another order than the emulation, and rounds as often or less
CEILING = 0.05  # of the error of a kernel that does nothing


class Finding(NamedTuple):
    """One operation in one call."""

    operation: str
    backend: str
    call: str
    precision: str
    error: float
    allowed: float
    problem: str | None  # None: as it should be


class Truth(NamedTuple):
    """What a call should give, for a few distinct states."""

    inputs: list[Any]
    exact: Tensor  # float64, (states, numbers)
    allowed: float
    compared: Callable[[Tensor, Tensor], Tensor]  # a result for these states as `exact` has it


def check_calls(calls: Iterable[Call], device: torch.device, precision: Precision) -> Iterator[Finding]:
    """Each call on this device. Calls that differ in rows or layout only share their inputs and the oracle's result."""
    groups: dict[Call, dict[Call, set[int]]] = {}
    for call in calls:
        groups.setdefault(call.distinct(), {}).setdefault(call.bounded(), set()).add(call.rows)
    for distinct, group in groups.items():
        truth = _truth(distinct, precision)
        for call, rows in group.items():
            yield _check(call, rows, truth, device, precision)


def _compared(operation: str, inputs: list[Any]) -> Callable[[Tensor, Tensor], Tensor]:
    """Results as they are; of an action its exact return, since two actions may be equally good."""
    if operation != "greedy_action":
        return lambda result, states: result.double().reshape(len(states), -1)
    rewards, omega, values, discount, threshold, _ = inputs
    returns = one_step_returns(rewards.double(), omega.double(), values.double(), discount, threshold)
    return lambda action, states: returns[states].gather(1, action[:, None])


def _truth(distinct: Call, precision: Precision) -> Truth:
    """Exact results, and the error that the mode's rounding makes of them, on the CPU."""
    entry, states = distinct.entry, torch.arange(distinct.states)
    low = precision == "bf16" and entry.product  # under autocast everything else stays in float32
    stored = torch.bfloat16 if low else torch.float32
    inputs = random_inputs(distinct)
    if low:  # what comes in is rounded by torch.autocast, before the kernel
        inputs = [to_bf16(x) if isinstance(x, Tensor) else x for x in inputs]
    compared, oracle = _compared(distinct.operation, inputs), entry.backend("reference")
    wide = [x.double() if isinstance(x, Tensor) else x for x in inputs]
    errors = []
    with torch.no_grad():
        result = oracle(*wide)
        exact = compared(result, states)
        for rounding in ROUNDINGS[precision if entry.product else "fp32"]:
            with Emulated(rounding, torch.float64, stored, everything=True, summed=True):
                rounded = oracle(*wide)
            errors.append(rms(compared(rounded, states) - exact))
        nothing = rms(compared(torch.zeros_like(result), states) - exact)
    # tanh and exp come within an ulp or two of float32, where the emulation rounds to the nearest.
    allowed = FACTOR * max(errors) + torch.finfo(torch.float32).eps * rms(exact)
    return Truth(inputs, exact, min(allowed, CEILING * nothing), compared)


def _check(call: Call, rows: set[int], truth: Truth, device: torch.device, precision: Precision) -> Finding:
    entry = call.entry
    dtype = torch.bfloat16 if precision == "bf16" and entry.product else torch.float32
    backend = dispatch.serving(device, dtype, call.operation)
    error, problem = float("nan"), None
    try:
        error = max(_errors(call, rows, truth, device, precision), key=lambda x: (x != x, x))  # NaN is the worst
        if not error <= truth.allowed:
            problem = f"error {error:.2g}, allowed {truth.allowed:.2g}"
    except Exception as failure:  # a kernel may fail in any way: it must not take the run with it
        problem = f"{type(failure).__name__}: {failure}"
    return Finding(call.operation, backend, str(call), precision, error, truth.allowed, problem)


def _errors(call: Call, rows: set[int], truth: Truth, device: torch.device, precision: Precision) -> Iterator[float]:
    """The root mean square error over all distinct states, of every way in which training may run this call, which
    there has so many rows."""
    served, count = call.entry.call, len(truth.exact)
    on_device = [
        spec.laid_out(x, device) if isinstance(spec, Argument) and i not in call.entry.rows else x
        for i, (spec, x) in enumerate(zip(call.arguments, truth.inputs, strict=True))
    ]
    ways: list[tuple[Callable[..., Tensor], int | tune.Way | None]] = [(served, None)]
    if device.type == "cuda" and tune.enabled():
        ways += [(served, n) for n in sorted(rows)]  # the way that an earlier run found to be the fastest
        if call.entry.product:
            mode = tune.precision(torch.bfloat16 if precision == "bf16" else torch.float32)
            ways += [(served, tune.LIBRARY), *((served, tile) for tile in tune.splits(mode, call.rows)[:1])]
    if call.operation == "tanh_dot" and precision != "bf16" and in_one_call(call.rows, device):
        ways.append((_as_network, None))
    for turn, (function, known) in enumerate(ways):
        differences = []
        for offset in range(0, count, call.states):
            # Each way starts with another state, so what the last one left in memory is not the truth.
            states = (torch.arange(call.states) + offset + turn) % count
            inputs = _laid_out(call, on_device, states, device)
            with torch.no_grad(), tune.pinned(known), casting(device, precision):
                result = function(*inputs)
            differences.append(truth.compared(result.cpu(), states) - truth.exact[states])
            result.fill_(torch.nan if result.is_floating_point() else -1)  # nor is what this one leaves
        yield rms(torch.cat(differences))


def _laid_out(call: Call, inputs: list[Any], states: Tensor, device: torch.device) -> list[Any]:
    """The rows of these states, repeated as often as they are asked for, where and how training has them."""
    laid = list(inputs)
    for i in call.entry.rows:
        spec = call.arguments[i] if i < len(call.arguments) else None
        if isinstance(spec, Argument):
            per = spec.shape[0] // call.states
            rows = (states[:, None] * per + torch.arange(per)).flatten()
            laid[i] = spec.laid_out(inputs[i][rows], device)
    return laid


def _as_network(x: Tensor, weight: Tensor, bias: Tensor, out_weight: Tensor, out_bias: Tensor) -> Tensor:
    """`tanh_dot` by csrc's kernel for whole networks, which acting on a CPU uses where nothing else is chosen."""
    return torch.ops.psdrl.tanh_net_rows(x, [weight, out_weight], [bias, out_bias]).squeeze(1)
