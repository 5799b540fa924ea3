"""Is this installation sound, and how fast is it? `python -m psdrl.doctor`

Versions, devices, which backend serves each operation and why; every kernel against its oracle at several sizes; whole
updates in every mode against the plain one; throughput. Exit code 1 if anything is wrong, with a hint.
"""

import importlib.metadata
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.agents.registry import configure
from psdrl.envs.vector import EnvSpec
from psdrl.errors import UserError
from psdrl.kernels import checks, dispatch, posterior
from psdrl.runtime.device import bf16_on_cpu, resolve_device
from psdrl.runtime.execution import allow_tf32

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
    """Every operation against its oracle: one line per operation with its worst size."""
    worst: dict[tuple[str, str, str], checks.Finding] = {}
    sizes = checks.QUICK if quick else checks.LONG
    reason = bf16_on_cpu() if device.type == "cpu" else None
    if reason:
        yield Result("kernel", "bfloat16", "skipped", reason)
    for finding in checks.check_all(device, sizes, (torch.float32,) if reason else (torch.float32, torch.bfloat16)):
        key = finding.operation, finding.backend, finding.dtype
        if key not in worst or _badness(finding) > _badness(worst[key]):
            worst[key] = finding
    for (name, backend, dtype), f in worst.items():
        data = {"backend": backend, "dtype": dtype, "error": f.error, "allowed": f.allowed, "size": list(f.size)}
        where = f"{backend}, {dtype}, {len(sizes)} sizes"
        detail = f"{where}: {f.problem} at {f.size}" if f.problem else f"{where}: {f.error / f.allowed:.0%} of allowed"
        yield Result("kernel", name, "wrong" if f.problem else "ok", detail, data)


def _badness(finding: checks.Finding) -> float:
    return float("inf") if finding.problem else finding.error / finding.allowed


def _agent(config: PsdrlConfig, transitions: int) -> PsdrlAgent:
    """An agent with random frames in its buffer."""
    agent = PsdrlAgent(config, EnvSpec("doctor", "image", (1, 64, 64), "uint8", 6, "none"))
    rng, length = np.random.default_rng(0), 100
    for _ in range(transitions // length):
        frames = rng.integers(0, 256, (length + 1, 1, 64, 64), dtype=np.uint8)
        agent.replay.start(0, frames[0])
        for t in range(length):
            agent.replay.add(0, int(rng.integers(6)), float(rng.normal()), frames[t + 1], t == length - 1, False)
    return agent


MODES = {
    "eager": {},
    "compile": {"compile": True},
    "graphs": {"cuda_graphs": True},
    "compile and graphs": {"compile": True, "cuda_graphs": True},
}


def updates(device: torch.device, quick: bool) -> Iterator[Result]:
    """Two whole updates and five actions in every mode, against the plain path in the same precision."""
    base = configure(game="Pong", preset="debug", device=str(device), precision="fp32", cuda_graphs=False)

    def outcome(config: PsdrlConfig) -> tuple[torch.Tensor, float, list[str]]:
        agent = _agent(config, 300)
        start = time.perf_counter()
        for _ in range(2):
            agent.update()
        for _ in range(5):
            agent.actor.act(agent.replay.observations[:1].cpu().numpy(), 0.0)
        seconds = time.perf_counter() - start
        parameters = torch.cat([p.detach().double().cpu().flatten() for p in agent.models.parameters()])
        return parameters, seconds, agent.execution.failures

    expected, _, _ = outcome(replace(base, update_path="plain"))
    allowed = 1e-4  # float32 through two updates of Adam, which divides by small numbers
    for mode, settings in MODES.items():
        if "cuda_graphs" in settings and device.type != "cuda":
            yield Result("update", mode, "skipped", "CUDA graphs need a GPU")
            continue
        if "compile" in settings and quick:
            yield Result("update", mode, "skipped", "--quick")
            continue
        try:
            found, seconds, uncaptured = outcome(replace(base, **settings))
            distance = float((found - expected).norm() / expected.norm())
            fine = distance <= allowed and not uncaptured
            detail = f"relative distance to the plain path {distance:.1e} (allowed {allowed:.0e}), {seconds:.1f} s"
            detail += f"; not captured: {', '.join(uncaptured)}" if uncaptured else ""
            yield Result("update", mode, "ok" if fine else "wrong", detail, {"distance": distance, "seconds": seconds})
        except Exception as failure:  # whatever it is, the report must name it
            yield Result("update", mode, "wrong", f"{type(failure).__name__}: {failure}")


def throughput(device: torch.device, seconds: float) -> Result:
    """Updates and actions of the device's own preset on random frames, for this long."""
    name: Literal["paper", "cpu"] = "paper" if device.type == "cuda" else "cpu"
    agent = _agent(configure(game="Pong", preset=name, device=str(device)), 2000)
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
    rate = agent.config.policy.update_every / (update + agent.config.policy.update_every * act)
    detail = (
        f"preset {name}, 2,000 transitions: update {update:.2f} s, action {1e3 * act:.2f} ms, "
        f"{rate:.0f} steps/s without the environment"
    )
    return Result("throughput", name, "ok", detail, {"update": update, "act": act, "steps_per_second": rate})


def examine(options: Doctor, device: torch.device) -> Iterator[Result]:
    """All checks in turn."""
    allow_tf32(device, "fp32")
    yield from backends(device)
    yield from kernels(device, options.quick)
    yield from updates(device, options.quick)
    if options.seconds > 0:
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
        names = ", ".join(result.name for result in wrong if result.kind == kind)
        console.print(f"  {kind} {names}: {HINTS[kind]}.", highlight=False, soft_wrap=True)
    return 1


if __name__ == "__main__":
    from psdrl.cli import main_doctor

    main_doctor()
