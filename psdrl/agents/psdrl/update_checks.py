"""Whole updates in every mode that `psdrl.train` can run in, against the plain path: a part of `psdrl.doctor`.

Distances between parameters are measured by how far the plain path's updates move them: updates that do nothing are at
1. In float32 all modes compute the same numbers up to the order of additions. tf32 and bf16 are compared with float32
too, loosely: Adam divides by the root of its squared gradients, so parameters whose gradients are all rounding error
go either way. They may be twice as far from float32 as their rounding, emulated on the CPU, puts them. CUDA graphs
replay the kernels of the eager mode: in the same precision they must reproduce its result as closely as float32 does.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch

from psdrl.agents.psdrl.kernel_calls import of_products
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.agents.psdrl.synthetic import atari_spec, filled_agent
from psdrl.agents.registry import configure
from psdrl.config import Precision
from psdrl.kernels import checks
from psdrl.kernels.checks.rounding import Emulated, cut_to_tf32, to_bf16, to_tf32
from psdrl.runtime.device import bf16_on_cpu

MODES: dict[str, dict[str, bool]] = {
    "eager": {},
    "compile": {"compile": True},
    "graphs": {"cuda_graphs": True},
    "compile and graphs": {"compile": True, "cuda_graphs": True},
}
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "mixed", "bf16")
FLOAT32 = 1e-4  # of the way; fast and plain path on a CPU: up to 2.4e-6 (seeds 0 to 2)
MOST = 0.25  # of the way, whatever the emulation says
SEEDS = (0, 1, 2)  # of the emulation: its distances vary tenfold, and the largest counts
EMULATIONS = {
    "tf32": (lambda: Emulated(to_tf32, torch.float32), lambda: Emulated(cut_to_tf32, torch.float32)),
    "bf16": (lambda: Emulated(to_bf16, torch.float32, torch.bfloat16),),
    "mixed": (lambda: Emulated(to_bf16, torch.float32, torch.bfloat16),),  # an upper bound: half of it is tf32
}


class Outcome(NamedTuple):
    """What updates did to an agent's parameters."""

    before: torch.Tensor
    after: torch.Tensor
    seconds: float
    uncaptured: list[str]

    def distance(self, other: "Outcome") -> float:
        """From the other's parameters, as a part of the way that the other went."""
        return float((self.after - other.after).norm() / (other.after - other.before).norm())


class Comparison(NamedTuple):
    """One mode in one precision."""

    name: str
    problem: str | None
    skipped: str | None
    detail: str
    data: dict[str, Any]


def impossible(device: torch.device, precision: Precision) -> str | None:
    """Why this precision cannot be checked on this device; None: it can."""
    if device.type == "cpu" and precision in ("tf32", "mixed"):
        return f"a CPU computes {precision} in fp32"
    return bf16_on_cpu() if device.type == "cpu" and precision == "bf16" else None


def outcome(config: PsdrlConfig, arithmetic: AbstractContextManager | None = None) -> Outcome:
    """Two whole updates and five actions; PyTorch's switches are afterwards as they were."""

    def parameters() -> torch.Tensor:
        return torch.cat([p.detach().double().cpu().flatten() for p in agent.models.parameters()])

    device = torch.device(config.device)
    with checks.switches(device, of_products(device, config.precision)), arithmetic or nullcontext():
        agent = filled_agent(config, atari_spec(6), [100] * 3)
        before, start = parameters(), time.perf_counter()
        for _ in range(2):
            agent.update()
        for _ in range(5):
            agent.actor.act(agent.replay.observations[:1].cpu().numpy(), 0.0)
        seconds = time.perf_counter() - start
        return Outcome(before, parameters(), seconds, agent.execution.failures)


def base(device: str) -> PsdrlConfig:
    """Small networks, no mode."""
    return configure(game="Pong", preset="debug", device=device, precision="fp32", cuda_graphs=False)


@cache
def allowance(precision: Precision) -> float:
    """How far from float32 a precision may lead: twice as far as its emulated rounding does."""
    if precision == "fp32":
        return FLOAT32
    distances = []
    for seed in SEEDS:
        config = replace(base("cpu"), seed=seed)
        exact = outcome(config)
        distances += [outcome(config, emulation()).distance(exact) for emulation in EMULATIONS[precision]]
    return min(2 * max(distances), MOST)


def compare(device: torch.device, quick: bool) -> Iterator[Comparison]:
    """Every mode in every precision."""
    config = base(str(device))
    expected = outcome(replace(config, update_path="plain"))
    for precision in PRECISIONS:
        if reason := impossible(device, precision):
            yield Comparison(precision, None, reason, "", {})
            continue
        eager: Outcome | None = None
        for mode, settings in MODES.items():
            name = f"{mode} {precision}"
            if "cuda_graphs" in settings and device.type != "cuda":
                yield Comparison(name, None, "CUDA graphs need a GPU", "", {})
            elif "compile" in settings and quick:
                yield Comparison(name, None, "--quick", "", {})
            else:
                try:
                    found = outcome(replace(config, precision=precision, **settings))  # type: ignore[arg-type]
                    yield _comparison(name, found, expected, allowance(precision), eager if mode == "graphs" else None)
                    eager = found if mode == "eager" else eager
                except Exception as failure:  # whatever it is, the report must name it
                    yield Comparison(name, f"{type(failure).__name__}: {failure}", None, "", {})


def _comparison(name: str, found: Outcome, expected: Outcome, allowed: float, eager: Outcome | None) -> Comparison:
    distance = found.distance(expected)
    problems = [] if distance <= allowed else ["too far"]
    detail = f"{distance:.1e} of the way from the plain path in fp32 (allowed {allowed:.0e}), {found.seconds:.1f} s"
    data = {"distance": distance, "allowed": allowed, "seconds": found.seconds}
    if eager is not None:
        data["from_eager"] = apart = found.distance(eager)
        detail += f"; {apart:.1e} from the same eagerly (allowed {FLOAT32:.0e})"
        problems += [] if apart <= FLOAT32 else ["not what it is eagerly"]
    if found.uncaptured:
        problems.append(f"not captured: {', '.join(found.uncaptured)}")
    return Comparison(name, "; ".join(problems) or None, None, detail, data)
