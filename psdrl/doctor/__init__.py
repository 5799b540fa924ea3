"""Is this installation sound, and how fast is it? `python -m psdrl.doctor`

Versions, devices, which backend serves each operation and why; every kernel against its oracle at several sizes and in
every precision; whole updates in every mode and precision against the plain path; throughput. Exit code 1 if anything
is wrong, with a hint.
"""

import importlib.metadata
import importlib.util
import json
import pkgutil
import platform
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from psdrl import agents
from psdrl.agents.interface import Result
from psdrl.doctor import calibration
from psdrl.errors import UserError
from psdrl.kernels import choice, dispatch, posterior, tune
from psdrl.runtime.device import resolve_device

PACKAGES = ("torch", "triton", "numpy", "gymnasium", "envpool", "ale-py")


@dataclass(frozen=True)
class Doctor:
    """Check this installation on its device."""

    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    seconds: float = 60.0
    """How long to measure throughput; 0: not at all."""
    quick: bool = False
    """Small sizes only, and no torch.compile."""
    calibrate: bool = False
    """Instead of checking, measure what the cost model assumes of this device, and print the corrected forecast."""
    json: bool = False
    """Print JSON, for reports."""


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
    for name, serving in dispatch.explain(device).items():
        refused = "; ".join(f"{other} refused: {why}" for other, why in serving.refused.items())
        served.setdefault(serving.backend + (f" ({refused})" if refused else ""), []).append(name)
    for detail, names in served.items():
        yield Result("backend", ", ".join(names), "ok", detail)
    reason = posterior.unavailable(device)
    yield Result("backend", "posterior", "ok", "csrc" if reason is None else f"PyTorch ({reason})")


def examinations() -> Iterator[Any]:
    """The module `examination` of every agent that has one."""
    for folder in pkgutil.iter_modules(agents.__path__, "psdrl.agents."):
        name = f"{folder.name}.examination"
        if folder.ispkg and importlib.util.find_spec(name):
            yield importlib.import_module(name)


def products() -> Result:
    """Which libraries form the products that the checks have asked for on this CPU, and what that holds for."""
    found = Counter((key.split(" ")[0], library) for key, library in choice.state().items())
    served = ", ".join(f"{operation} by {library} ({n})" for (operation, library), n in sorted(found.items()))
    detail = f"{choice.machine()}: {served or 'nothing was chosen'}; kept in {choice.choices().path}"
    return Result("backend", "products", "ok", detail, {"choices": choice.state()})


def measured_ways(device: torch.device) -> Result:
    """Which way of forming a product was the fastest on this GPU, for each shape that was asked for."""
    card = torch.cuda.get_device_name(device)
    chosen = {key: tune.named(way) for key, way in tune.tuner().known.items() if f" {card} " in key}
    found = Counter((key.split(" ")[0], way) for key, way in chosen.items())
    served = ", ".join(f"{operation} by {way} ({n})" for (operation, way), n in sorted(found.items()))
    detail = f"{served or 'nothing was measured'}; kept in {tune.tuner().path}"
    return Result("backend", "products", "ok", detail, {"choices": chosen})


def examine(options: Doctor, device: torch.device) -> Iterator[Result]:
    """All checks in turn, or the calibration."""
    if options.calibrate:
        yield from calibration.calibrate(device)
        return
    yield from backends(device)
    for agent in examinations():
        yield from agent.examine(device, options.quick, options.seconds)
    if device.type == "cpu":
        yield products()
    elif dispatch.choose(device, torch.float32).backend == "triton":
        yield measured_ways(device)


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
    if not wrong and options.calibrate:
        console.print("Measured now, on this device; evaluation included.", highlight=False)
        return 0
    if not wrong:
        console.print(f"[green]Sound[/]: everything agrees with its oracle on {device}.", highlight=False)
        return 0
    console.print(f"[red]{len(wrong)} of {len(results)} checks failed[/] on {device}:", highlight=False)
    for kind, hint in dict.fromkeys((result.kind, result.hint) for result in wrong):
        names = ", ".join(dict.fromkeys(result.name for result in wrong if result.kind == kind))
        console.print(f"  {kind} {names}: {hint}.", highlight=False, soft_wrap=True)
    return 1
