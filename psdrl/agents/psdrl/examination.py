"""The part of `psdrl.doctor` that is PSDRL's: every kernel against its oracle at several sizes and in every precision,
whole updates in every mode and precision against the plain path, throughput."""

import time
from collections.abc import Callable, Iterator
from typing import Literal

import torch

from psdrl.agents.interface import Result
from psdrl.agents.psdrl.kernel_calls import KernelCalls
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.agents.psdrl.synthetic import atari_spec, filled_agent
from psdrl.agents.psdrl.update_checks import PRECISIONS, compare, impossible
from psdrl.agents.registry import configure
from psdrl.envs.vector import EnvSpec
from psdrl.kernels import checks
from psdrl.kernels.checks import posterior as posterior_checks
from psdrl.runtime.device import is_gpu

HINTS = {
    "kernel": "training replaces it by its fallback, which is slower; report this with --json",
    "update": "train with --update-path plain, or without the mode that fails; report this with --json",
}


def examine(device: torch.device, quick: bool, seconds: float) -> Iterator[Result]:
    """All checks in turn; throughput for so many seconds."""
    yield from kernels(device, quick)
    yield from updates(device, quick)
    if seconds > 0:
        with checks.switches(device, "tf32"):  # the preset's agent turns them, here they turn back
            yield throughput(device, seconds)


def kernels(device: torch.device, quick: bool) -> Iterator[Result]:
    """Every operation against its oracle in every precision: one line per operation with its worst call."""
    work = [KernelCalls.of(config, spec, is_gpu(device)) for config, spec in workloads(quick)]
    calls = list(dict.fromkeys(call for run in work for call in run.calls))
    features = sorted({posterior_checks.affordable(run.features) for run in work})
    worst: dict[tuple[str, str, str], checks.Finding] = {}
    for precision in PRECISIONS:
        if reason := impossible(device, precision):
            yield Result("kernel", precision, "skipped", reason)
            continue
        # The posterior is float64 in all of them.
        if precision == "mixed":
            continue  # its products are tf32
        for finding in checks.check_all(device, precision, calls, features if precision == "fp32" else []):
            key = finding.operation, finding.backend, finding.precision
            if key not in worst or _badness(finding) > _badness(worst[key]):
                worst[key] = finding
    for (name, backend, mode), f in worst.items():
        data = {"backend": backend, "precision": mode, "error": f.error, "allowed": f.allowed, "call": f.call}
        found = f"{f.problem} in {f.call}" if f.problem else f"{f.error / f.allowed:.0%} of allowed in {f.call}"
        yield Result(
            "kernel", name, "wrong" if f.problem else "ok", f"{backend}, {mode}: {found}", data, HINTS["kernel"]
        )


def workloads(quick: bool) -> Iterator[tuple[PsdrlConfig, EnvSpec]]:
    """Whose calls are checked: small networks, also of widths that no tile divides; the paper's and the CPU's."""
    odd: dict[str, dict[str, float]] = {
        "forward": {"units": 65, "recurrent": 33},
        "termination": {"units": 21},
        "value": {"units": 47, "random_share": 0.1},
    }
    yield configure(game="Pong", preset="debug", device="cpu"), atari_spec(6)
    yield configure(game="Pong", preset="debug", device="cpu", **odd), atari_spec(3)
    if not quick:
        yield configure(game="Pong", preset="paper", device="cpu"), atari_spec(6)
        yield configure(game="Pong", preset="paper", device="cpu", num_envs=16), atari_spec(18)
        yield configure(game="Pong", preset="cpu", device="cpu"), atari_spec(4)


def _badness(finding: checks.Finding) -> float:
    return float("inf") if finding.problem else finding.error / finding.allowed


def updates(device: torch.device, quick: bool) -> Iterator[Result]:
    """Two whole updates and five actions in every mode and precision."""
    for name, problem, skipped, detail, data in compare(device, quick):
        if skipped:
            yield Result("update", name, "skipped", skipped)
        else:
            text = "; ".join(part for part in (problem, detail) if part)
            yield Result("update", name, "wrong" if problem else "ok", text, data, HINTS["update"])


def throughput(device: torch.device, seconds: float) -> Result:
    """Updates and actions of the device's own preset on random frames, for this long."""
    name: Literal["paper", "cpu"] = "paper" if device.type == "cuda" else "cpu"
    config = configure(game="Pong", preset=name, device=str(device))
    agent = filled_agent(config, atari_spec(6), [100] * 20)
    frame = agent.replay.observations[:1].cpu().numpy()
    end = time.monotonic() + seconds

    def best(call: Callable[[], object], share: float) -> float:
        stop = time.monotonic() + share * seconds
        times: list[float] = []
        while not times or (time.monotonic() < min(stop, end)):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return sorted(times)[len(times) // 2]

    agent.update()  # compiles and captures
    update, act = best(agent.update, 0.8), best(lambda: agent.actor.act(frame, 0.0), 0.2)
    period = config.update_period(config.steps)
    rate = period / (update + period * act)
    detail = (
        f"preset {name}, 2,000 transitions: update {update:.2f} s, action {1e3 * act:.2f} ms, "
        f"{rate:.0f} steps/s without the environment"
    )
    return Result("throughput", name, "ok", detail, {"update": update, "act": act, "steps_per_second": rate})
