"""Is this installation sound, and how fast is it? `python -m psdrl.doctor`

Versions, devices, which backend serves each operation and why; every kernel against its oracle at several sizes and in
every precision; whole updates in every mode and precision against the plain path; throughput. Exit code 1 if anything
is wrong, with a hint.
"""

import importlib.metadata
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table

from psdrl.agents.psdrl.kernel_calls import KernelCalls
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.agents.psdrl.synthetic import atari_spec, filled_agent
from psdrl.agents.psdrl.update_checks import PRECISIONS, compare, impossible
from psdrl.agents.registry import configure
from psdrl.envs.vector import EnvSpec
from psdrl.errors import UserError
from psdrl.kernels import checks, dispatch, posterior
from psdrl.kernels.checks import posterior as posterior_checks
from psdrl.runtime.device import resolve_device

PACKAGES = ("torch", "triton", "numpy", "gymnasium", "envpool", "ale-py")
HINTS = {
    "kernel": "training replaces it by its fallback, which is slower; report this with --json",
    "update": "train with --update-path plain, or without the mode that fails; report this with --json",
}
Status = Literal["ok", "wrong", "skipped"]


@dataclass(frozen=True)
class Doctor:
    """Check this installation on its device."""

    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    seconds: float = 60.0
    """How long to measure throughput; 0: not at all."""
    quick: bool = False
    """Small sizes only, and no torch.compile."""
    json: bool = False
    """Print JSON, for reports."""


@dataclass
class Result:
    """One line of the report."""

    kind: str
    name: str
    status: Status
    detail: str
    data: dict[str, Any] = field(default_factory=dict)


def versions() -> dict[str, str]:
    """What is installed."""
    found = {"python": platform.python_version(), "system": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    found["cuda"] = torch.version.cuda or "none (CPU build of torch)"
    return found


def devices() -> dict[str, str]:
    """What there is to compute on."""
    found = {"cpu": f"{platform.machine()}, {torch.get_num_threads()} threads"}
    for i in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(i)
        found[f"cuda:{i}"] = f"{p.name}, compute capability {p.major}.{p.minor}, {p.total_memory / 1e9:.0f} GB"
    return found


def backends(device: torch.device) -> Iterator[Result]:
    """Who serves each operation, and why not the one before."""
    served: dict[str, list[str]] = {}
    for name, choice in dispatch.explain(device).items():
        refused = "; ".join(f"{other} refused: {why}" for other, why in choice.refused.items())
        served.setdefault(choice.backend + (f" ({refused})" if refused else ""), []).append(name)
    for detail, names in served.items():
        yield Result("backend", ", ".join(names), "ok", detail)
    reason = posterior.unavailable(device)
    yield Result("backend", "posterior", "ok", "csrc" if reason is None else f"PyTorch ({reason})")


def kernels(device: torch.device, quick: bool) -> Iterator[Result]:
    """Every operation against its oracle in every precision: one line per operation with its worst call."""
    work = [KernelCalls.of(config, spec) for config, spec in workloads(quick)]
    calls = list(dict.fromkeys(call for run in work for call in run.calls))
    features = sorted({posterior_checks.affordable(run.features) for run in work})
    worst: dict[tuple[str, str, str], checks.Finding] = {}
    for precision in PRECISIONS:
        if reason := impossible(device, precision):
            yield Result("kernel", precision, "skipped", reason)
            continue
        # The posterior is float64 in all of them.
        for finding in checks.check_all(device, precision, calls, features if precision == "fp32" else []):
            key = finding.operation, finding.backend, finding.precision
            if key not in worst or _badness(finding) > _badness(worst[key]):
                worst[key] = finding
    for (name, backend, mode), f in worst.items():
        data = {"backend": backend, "precision": mode, "error": f.error, "allowed": f.allowed, "call": f.call}
        found = f"{f.problem} in {f.call}" if f.problem else f"{f.error / f.allowed:.0%} of allowed in {f.call}"
        yield Result("kernel", name, "wrong" if f.problem else "ok", f"{backend}, {mode}: {found}", data)


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
            yield Result("update", name, "wrong" if problem else "ok", text, data)


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


def examine(options: Doctor, device: torch.device) -> Iterator[Result]:
    """All checks in turn."""
    yield from backends(device)
    yield from kernels(device, options.quick)
    yield from updates(device, options.quick)
    if options.seconds > 0:
        with checks.switches(device, "tf32"):  # the preset's agent turns them, here they turn back
            yield throughput(device, options.seconds)


def run(options: Doctor) -> int:
    """`psdrl doctor`; returns the exit code."""
    if options.seconds < 0:
        raise UserError(f"--seconds is {options.seconds} but must be at least 0.")
    device = resolve_device(options.device)
    console = Console(stderr=options.json)
    results: list[Result] = []
    with console.status("examining"):
        for result in examine(options, device):
            results.append(result)
    wrong = [result for result in results if result.status == "wrong"]
    if options.json:
        report = {"versions": versions(), "devices": devices(), "device": str(device), "sound": not wrong}
        json.dump(report | {"results": [asdict(result) for result in results]}, sys.stdout, indent=2)
        print()
        return 1 if wrong else 0
    for title, facts in (("versions", versions()), ("devices", devices())):
        console.print(f"[bold]{title}[/]  " + ", ".join(f"{k} {v}" for k, v in facts.items()), highlight=False)
    table = Table("check", "of", "", "found")
    colours = {"ok": "green", "wrong": "red", "skipped": "yellow"}
    for result in results:
        table.add_row(result.kind, result.name, f"[{colours[result.status]}]{result.status}[/]", result.detail)
    console.print(table)
    if not wrong:
        console.print(f"[green]Sound[/]: everything agrees with its oracle on {device}.", highlight=False)
        return 0
    console.print(f"[red]{len(wrong)} of {len(results)} checks failed[/] on {device}:", highlight=False)
    for kind in dict.fromkeys(result.kind for result in wrong):
        names = ", ".join(dict.fromkeys(result.name for result in wrong if result.kind == kind))
        console.print(f"  {kind} {names}: {HINTS[kind]}.", highlight=False, soft_wrap=True)
    return 1
