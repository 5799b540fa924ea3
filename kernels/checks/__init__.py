"""Every operation against its oracle on the device that trains: at the start of a run, and at length by `psdrl.doctor`.

A result may be twice as far from float64 as the mode's own rounding is (`rounding`), and never further than 5 % of what
a kernel that does nothing is wrong by. An operation that fails is not used again: its fallback serves.
"""

import logging
from collections.abc import Iterable, Iterator

import torch

from psdrl.errors import UserError
from psdrl.kernels import dispatch
from psdrl.kernels.checks.calls import Argument, Call, recorded
from psdrl.kernels.checks.lookahead import Finding, check_calls
from psdrl.kernels.checks.posterior import check_posterior
from psdrl.kernels.checks.rounding import Precision, casting, switches
from psdrl.kernels.checks.weight_step import check_weight_step
from psdrl.kernels.posterior import native

__all__ = [
    "Argument", "Call", "Finding", "Precision", "casting", "check_all", "check_calls", "check_posterior",
    "check_weight_step", "recorded", "start_up", "switches",
]  # fmt: skip
log = logging.getLogger("psdrl.kernels")


def check_all(
    device: torch.device, precision: Precision, calls: Iterable[Call], features: Iterable[int]
) -> Iterator[Finding]:
    """These calls of the lookahead in this precision, and the posterior's operations with so many features."""
    calls = list(calls)
    with switches(device, precision):
        yield from check_calls(calls, device, precision)
        yield from check_weight_step(calls, device, precision)
    for k in features:
        yield from check_posterior(k, device)


def start_up(device: torch.device, precision: Precision, calls: Iterable[Call], features: int) -> list[Finding]:
    """Check what a run will use, and put fallbacks in the place of what fails; returns the failures.

    calls: those that the run makes (`psdrl.kernel_calls`); features: k of the posterior. PyTorch's switches are left as
    they were, nothing is drawn from its generators, and no tile is measured."""
    dispatch.explain(device)  # imports all operations
    failures = [finding for finding in check_all(device, precision, calls, [features]) if finding.problem]
    for finding in failures:
        reason = f"failed its start-up check on {device} ({finding.problem})"
        log.warning("%s by %s %s: the fallback serves instead", finding.operation, finding.backend, reason)
        if finding.backend == "csrc":
            native.disable(device, reason)
        else:
            dispatch.disable(finding.operation, device, reason)
    if failures and (problem := _unusable(device)):
        names = ", ".join(sorted({finding.operation for finding in failures}))
        raise UserError(
            f"{device} refuses all work ({problem}) since a start-up check failed ({names}: {failures[0].problem}): "
            "start again with --device cpu or another GPU, and report this with `python -m psdrl.doctor --json`."
        )
    return failures


def _unusable(device: torch.device) -> str | None:
    """Why a device computes nothing any more, as after an illegal address: no fallback can serve there then."""
    try:
        if int(torch.ones(3, device=device).sum()) == 3:
            return None
    except Exception as failure:
        return f"{type(failure).__name__}: {str(failure).splitlines()[0]}"
    return "it cannot add"
