"""Gradient and Adam's step in one pass against the oracle, for the layers that a run trains."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from psdrl.kernels import weight_step
from psdrl.kernels.checks.calls import Argument, Call
from psdrl.kernels.checks.lookahead import CEILING, FACTOR, Finding
from psdrl.kernels.checks.rounding import ROUNDINGS, Emulated, Precision, rms, to_bf16
from psdrl.kernels.weight_step import reference

ROWS = 40  # of a batch: a block and a part of one
ADAM = 1e-3, (0.9, 0.999), 1e-8


def check_weight_step(calls: Iterable[Call], device: torch.device, precision: Precision) -> Iterator[Finding]:
    """Each width of a tanh layer among the calls, where the kernel serves."""
    if not weight_step.serves(device):
        return
    weights = (call.arguments[1] for call in calls if call.operation == "linear_tanh")
    for units, inner in dict.fromkeys(w.shape for w in weights if isinstance(w, Argument)):
        yield _check(units, inner, device, precision)


def _inputs(units: int, inner: int, precision: Precision) -> list[Tensor]:
    generator = torch.Generator().manual_seed(units + inner)
    shapes = (units, inner), (units, inner), (units, inner), (ROWS, units), (ROWS, inner)
    weight, first, second, delta, x = (torch.randn(shape, generator=generator) for shape in shapes)
    factors = [to_bf16(y) if precision == "bf16" else y for y in (delta / ROWS**0.5, x)]
    return [weight, first, 1 + second.square(), torch.tensor(5.0), *factors]


def _changes(step: object, inputs: list[Tensor]) -> Tensor:
    """What a step changes of weight and averages, each in units of what it should be about: (3, numbers)."""
    weight, first, second, *rest = (x.clone() for x in inputs)
    step(weight, first, second, *rest, *ADAM)  # type: ignore[operator]
    pairs = zip((weight, first, second), inputs, (1 / ADAM[0], 1.0, 1e3), strict=False)
    return torch.stack([((after.double() - before.double()) * scale).flatten().cpu() for after, before, scale in pairs])


def _check(units: int, inner: int, device: torch.device, precision: Precision) -> Finding:
    inputs = _inputs(units, inner, precision)
    wide, call = [x.double() for x in inputs], f"weight_step_({units}x{inner}, {ROWS} rows)"
    exact, errors = _changes(reference.weight_step_, wide), []
    for rounding in ROUNDINGS[precision]:
        with Emulated(rounding, torch.float64, None, summed=True):
            errors.append(rms(_changes(reference.weight_step_, wide) - exact))
    # Differences of float32 numbers around 1, scaled by 1000: half an ulp of the weight is 3e-5 of its change.
    allowed = min(FACTOR * max(errors) + 1e3 * torch.finfo(torch.float32).eps, CEILING * rms(exact))
    error, problem = float("nan"), None
    try:
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        there = [x.to(device, dtype if i > 3 else torch.float32) for i, x in enumerate(inputs)]
        error = rms(_changes(weight_step.weight_step_, there) - exact)
        if not error <= allowed:
            problem = f"error {error:.2g}, allowed {allowed:.2g}"
    except Exception as failure:  # a kernel may fail in any way: it must not take the run with it
        problem = f"{type(failure).__name__}: {failure}"
    return Finding(weight_step.NAME, "triton", call, precision, error, allowed, problem)
