"""`psdrl doctor --calibrate`: the cost model's assumptions, measured on this device, and the forecast they correct."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from psdrl import configure
from psdrl.agents.interface import Result
from psdrl.config import Config
from psdrl.cost.assumptions import known_gpu
from psdrl.cost.devices import calibrated, data_sheet
from psdrl.cost.forecast import duration, forecast, workload
from psdrl.envs.vector import EnvSpec
from psdrl.kernels.checks import switches
from psdrl.runtime.execution import Execution
from psdrl.runtime.work import Device

PONG = EnvSpec("Pong", "image", (1, 64, 64), "uint8", 6, "none")
RATES = {  # fields of a `Device`, with a unit to print them in
    "flops": (1e12, "TFLOP/s in products"),
    "gradient": (1e12, "TFLOP/s in gradient steps"),
    "convolution": (1e12, "TFLOP/s in convolutions"),
    "flops64": (1e12, "TFLOP/s in float64"),
    "bandwidth": (1e9, "GB/s"),
    "launch": (1e-6, "us per launch"),
    "gap": (1e-6, "us per kernel of a CUDA graph"),
    "latency": (1e-6, "us to send observations and wait for actions"),
}


def calibrate(device: torch.device, config: Config | None = None, spec: EnvSpec = PONG) -> Iterator[Result]:
    """The device's rates beside those of its data sheet, then hours of a run (by default the device's own preset on
    Pong) with one environment and with 8 in 2 groups."""
    preset = "paper" if device.type == "cuda" else "cpu"
    config = config or configure(game="Pong", preset=preset, device=str(device))
    config = replace(config, device=device.type)
    execution = Execution.of(config, device)
    products: Any = "tf32" if config.precision == "mixed" else config.precision
    with switches(device, products), execution.fixed_shapes():
        trials = workload(config, spec).trials(device, execution.image_autocast())
        found = calibrated(device, trials, execution.precision, config.cuda_graphs and device.type == "cuda")
    known = known_gpu(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    sheet = data_sheet(known, execution.precision, config.cuda_graphs) if known else None
    yield rates(found, sheet)
    for num_envs, groups in ((1, 1), (8, 2)):
        run = replace(config, num_envs=num_envs, env_groups=groups)
        yield corrected(run, spec, found, sheet)


def rates(found: Device, sheet: Device | None) -> Result:
    """What was measured, and what the cost model assumes of such a device."""
    words = []
    for name, (unit, what) in RATES.items():
        beside = f" (assumed {getattr(sheet, name) / unit:.3g})" if sheet else ""
        words.append(f"{getattr(found, name) / unit:.3g} {what}{beside}")
    data = {name: getattr(found, name) for name in RATES}
    return Result("calibration", found.name, "ok", ", ".join(words), data)


def corrected(config: Config, spec: EnvSpec, found: Device, sheet: Device | None) -> Result:
    """The forecast by what was measured; compiled and captured as the configuration says."""
    work = workload(config, spec)
    now = forecast(config, spec, found, work)
    detail = f"{duration(3600 * now.hours)} by these rates"
    data = {"seconds": now.seconds}
    if sheet:
        before = forecast(config, spec, sheet, work)
        detail += f", {duration(3600 * before.hours)} by the data sheet"
        data["data_sheet"] = before.seconds
    what = f"{config.steps:,} steps of {config.env_name}, {config.num_envs} environment(s)"
    phases = ", ".join(f"{name} {duration(seconds)}" for name, seconds in now.seconds.items())
    return Result("forecast", what, "ok", f"{detail}: {phases}", data)
