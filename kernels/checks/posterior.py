"""The posterior's operations of csrc/ against their oracle, in float64."""

from typing import Any

import torch
from torch import Tensor

from psdrl.kernels.checks.lookahead import Finding
from psdrl.kernels.checks.rounding import rms
from psdrl.kernels.posterior import native, reference

ALLOWED = 1e-9  # relative error; a kernel that does nothing has one of 1e-2 or more
OUTPUTS = 5


def affordable(features: int) -> int:
    """Features of a check: at most 319, with the same remainder by all powers of two that tiles have."""
    return min(features, 256 + features % 64)


def _chain(functions: Any, k: int, device: torch.device) -> dict[str, Tensor]:
    """The results of all operations in a chain, by name."""
    generator = torch.Generator().manual_seed(k)
    shapes = (3 * k, k), (3 * k, OUTPUTS), (2, OUTPUTS, k)
    features, targets, eps = (torch.randn(shape, generator=generator).to(device) for shape in shapes)
    gram = torch.zeros(k, k, dtype=torch.float64, device=device)
    cross = torch.zeros(k, OUTPUTS, dtype=torch.float64, device=device)
    variances = torch.tensor([[1.0, 10.0], [1e-2, 1e-3]], dtype=torch.float64, device=device)
    functions.gram_accumulate_(gram, cross, features, targets, 1.0)
    factors, _, info = functions.posterior_factor(gram, variances[0], variances[1], 16)
    mean = functions.posterior_mean(factors, cross, [OUTPUTS - 1, 1], variances[1])
    sample = functions.posterior_sample(factors, mean, [OUTPUTS - 1, 1], eps.double(), 2, None)
    return {
        "gram_accumulate_": torch.cat([gram.tril(), cross], 1),
        "posterior_factor": torch.cat([factors.tril().flatten(), info.double()]),
        "posterior_mean": mean,
        "posterior_sample": sample,
    }


def check_posterior(features: int, device: torch.device, functions: Any = None) -> list[Finding]:
    """The operations with so many features, or as many as are `affordable`."""
    if native.unavailable(device) is not None:
        return []
    k = affordable(features)
    call = f"k = {k}"
    exact = _chain(reference, k, torch.device("cpu"))
    try:
        mine = {name: x.cpu() for name, x in _chain(functions or torch.ops.psdrl, k, device).items()}
    except Exception as failure:  # "no kernel image" on an older GPU, for example: the oracle serves there
        text = f"{type(failure).__name__}: {failure}"
        return [Finding("posterior", "csrc", call, "float64", float("nan"), ALLOWED, text)]
    findings = []
    for name, x in exact.items():
        error = rms(mine[name] - x) / rms(x)
        problem = None if error <= ALLOWED else f"relative error {error:.2g}, allowed {ALLOWED:.2g}"
        findings.append(Finding(name, "csrc", call, "float64", error, ALLOWED, problem))
    return findings
