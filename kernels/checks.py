"""Every operation against its oracle on this device: at the start of a run, and at length by `psdrl.doctor`.

A result may be four times as far from float64 as plain PyTorch's in the same precision (the root of the mean square
over the tensor): kernels add in another order. An operation that fails is not used again: its fallback serves.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from psdrl.kernels import dispatch
from psdrl.kernels.greedy import best_return, greedy_action, one_step_returns
from psdrl.kernels.greedy import reference as greedy_reference
from psdrl.kernels.gru_actions import gru_actions
from psdrl.kernels.gru_actions import reference as gru_reference
from psdrl.kernels.linear_tanh import linear, linear_tanh
from psdrl.kernels.linear_tanh import reference as linear_reference
from psdrl.kernels.posterior import native
from psdrl.kernels.posterior import reference as posterior_reference
from psdrl.kernels.tanh_dot import reference as dot_reference
from psdrl.kernels.tanh_dot import tanh_dot

log = logging.getLogger("psdrl.kernels")
FACTOR = 4.0
FLOAT64 = 1e-9  # relative error allowed to the posterior's operations
DISCOUNT, THRESHOLD = 0.99, 0.5


class Size(NamedTuple):
    """States, actions, width of the layers, features of the posterior."""

    states: int
    actions: int
    width: int
    features: int


QUICK = (Size(1, 6, 33, 17), Size(50, 3, 65, 40))  # few rows, many rows; no multiple of a tile
LONG = (*QUICK, Size(1, 18, 750, 300), Size(125, 6, 2292, 600), Size(513, 4, 257, 129))


class Finding(NamedTuple):
    """One operation at one size."""

    operation: str
    backend: str
    size: Size
    dtype: str
    error: float
    allowed: float
    problem: str | None  # None: as it should be


class Case(NamedTuple):
    """How to call an operation."""

    operation: str
    call: Callable[..., Tensor]
    oracle: Callable[..., Tensor]
    inputs: Callable[[Size], list[Tensor]]


def _random(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(map(sum, shapes)))
    return [torch.randn(shape, generator=generator) for shape in shapes]


def _layer(s: Size, *more: tuple[int, ...]) -> list[Tensor]:
    x, weight, bias, *rest = _random((s.states * s.actions, s.width), (s.width + 1, s.width), (s.width + 1,), *more)
    return [x, weight / s.width**0.5, bias, *rest]


def _dot(s: Size) -> list[Tensor]:
    x, weight, bias, out, out_bias = _layer(s, (1, s.width + 1), (1,))
    return [x, weight, bias, out / s.width**0.5, out_bias]


def _returns(s: Size) -> list[Tensor]:
    return _random(*[(s.states, s.actions)] * 3)


def _constants(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda rewards, omega, values: function(rewards, omega, values, DISCOUNT, THRESHOLD)


def _action(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """The return of the chosen action: an action may differ where two are equally good."""

    def chosen(rewards: Tensor, omega: Tensor, values: Tensor) -> Tensor:
        lots = torch.linspace(0.1, 0.9, rewards.numel(), device=rewards.device).view(rewards.shape)
        action = function(rewards, omega, values, DISCOUNT, THRESHOLD, lots)
        returns = greedy_reference.one_step_returns(rewards, omega, values, DISCOUNT, THRESHOLD)
        return returns.gather(1, action[:, None])

    return chosen


LOOKAHEAD = (
    Case("gru_actions", gru_actions, gru_reference.gru_actions, lambda s: _random(
        (s.states, 3 * s.width), (s.states, 3 * s.width), (s.actions, 3 * s.width), (s.states, s.width))),
    Case("linear", linear, linear_reference.linear, _layer),
    Case("linear_tanh", linear_tanh, linear_reference.linear_tanh, lambda s: _layer(
        s, (s.states, s.width + 1), (s.actions, s.width + 1))),
    Case("tanh_dot", tanh_dot, dot_reference.tanh_dot, _dot),
    Case("one_step_returns", _constants(one_step_returns), _constants(greedy_reference.one_step_returns), _returns),
    Case("best_return", _constants(best_return), _constants(greedy_reference.best_return), _returns),
    Case("greedy_action", _action(greedy_action), _action(greedy_reference.greedy_action), _returns),
)  # fmt: skip


def _rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())


def check_lookahead(case: Case, size: Size, device: torch.device, dtype: torch.dtype) -> Finding:
    """An operation of the lookahead against float64 on the CPU; plain PyTorch on this device sets the measure."""
    backend = dispatch.choose(device, dtype, case.operation).backend
    given = [x.to(dtype) for x in case.inputs(size)]
    exact, here = case.oracle(*(x.double() for x in given)), [x.to(device) for x in given]
    allowed = FACTOR * _rms(case.oracle(*here).cpu().double() - exact) + torch.finfo(dtype).eps * _rms(exact)
    error, problem = float("nan"), None
    try:
        error = _rms(case.call(*here).cpu().double() - exact)
        if not error <= allowed:
            problem = f"error {error:.2g}, allowed {allowed:.2g}"
    except Exception as failure:  # a kernel may fail in any way: it must not take the run with it
        problem = f"{type(failure).__name__}: {failure}"
    return Finding(case.operation, backend, size, str(dtype).removeprefix("torch."), error, allowed, problem)


def _posterior(functions: Any, size: Size, device: torch.device) -> dict[str, Tensor]:
    """The results of all operations in a chain, by name."""
    k, outputs = size.features, 5
    features, targets, eps = (x.to(device) for x in _random((3 * k, k), (3 * k, outputs), (2, outputs, k)))
    gram = torch.zeros(k, k, dtype=torch.float64, device=device)
    cross = torch.zeros(k, outputs, dtype=torch.float64, device=device)
    variances = torch.tensor([[1.0, 10.0], [1e-2, 1e-3]], dtype=torch.float64, device=device)
    functions.gram_accumulate_(gram, cross, features, targets, 1.0)
    factors, _, info = functions.posterior_factor(gram, variances[0], variances[1], 16)
    mean = functions.posterior_mean(factors, cross, [outputs - 1, 1], variances[1])
    sample = functions.posterior_sample(factors, mean, [outputs - 1, 1], eps.double(), 2, None)
    updated = factors[0].clone()
    functions.chol_update_(updated, features[:3].double(), 0.5)
    return {
        "gram_accumulate_": torch.cat([gram.tril(), cross], 1),
        "posterior_factor": torch.cat([factors.tril().flatten(), info.double()]),
        "posterior_mean": mean,
        "posterior_sample": sample,
        "chol_update_": updated.tril(),
    }


def check_posterior(size: Size, device: torch.device) -> list[Finding]:
    """The operations of csrc/ against the oracle on the CPU, in float64."""
    if native.unavailable(device) is not None:
        return []
    exact = _posterior(posterior_reference, size, torch.device("cpu"))
    try:
        mine = {name: x.cpu() for name, x in _posterior(torch.ops.psdrl, size, device).items()}
    except Exception as failure:
        text = f"{type(failure).__name__}: {failure}"
        return [Finding("posterior", "csrc", size, "float64", float("nan"), FLOAT64, text)]
    findings = []
    for name, x in exact.items():
        error = _rms(mine[name] - x) / _rms(x)
        problem = None if error <= FLOAT64 else f"relative error {error:.2g}, allowed {FLOAT64:.2g}"
        findings.append(Finding(name, "csrc", size, "float64", error, FLOAT64, problem))
    return findings


def check_all(device: torch.device, sizes: tuple[Size, ...], dtypes: tuple[torch.dtype, ...]) -> Iterator[Finding]:
    """Every operation at every size."""
    for size in sizes:
        for dtype in dtypes:
            for case in LOOKAHEAD:
                yield check_lookahead(case, size, device, dtype)
        yield from check_posterior(size, device)


def start_up(device: torch.device, dtype: torch.dtype = torch.float32) -> list[Finding]:
    """Check what a run will use, and put fallbacks in the place of what fails; returns the failures."""
    dispatch.explain(device)  # imports all operations
    failures = [finding for finding in check_all(device, QUICK, (dtype,)) if finding.problem]
    for finding in failures:
        reason = f"failed its start-up check on {device} ({finding.problem})"
        log.warning("%s by %s %s: the fallback serves instead", finding.operation, finding.backend, reason)
        if finding.backend == "csrc":
            native.disable(device, reason)
        else:
            dispatch.disable(finding.operation, device, reason)
    return failures
