"""What devices can do: rates measured on this machine, or taken from a data sheet. The cost model divides by them."""

import time
from collections.abc import Callable
from typing import Literal

import torch
from torch import nn

from psdrl.config import Precision
from psdrl.cost.assumptions import BEFORE, BYTES_PER_SECOND, PEAK, assumed
from psdrl.runtime.graphs import Captured, Cuda
from psdrl.runtime.work import KERNELS, Device, Measures, Trial

FASTER = Measures()
SECONDS = 0.15  # for which a call is timed, at least


def fraction(name: str, measures: Measures) -> float:
    """An assumption, as it was before the measures that are not taken."""
    taken = {"products tf32": measures.library, "gradient": measures.parts, "products fp64": measures.counted}
    before = not taken.get(name, measures.blocks)
    return BEFORE[name] if before and name in BEFORE else assumed(name)


def data_sheet(
    name: str, precision: Precision = "tf32", graphs: bool = False, reached: float = 0.0, measures: Measures = FASTER
) -> Device:
    """A device from its data sheet: a prediction; `reached` of the peak, or what is assumed for the precision."""
    peak = PEAK[name]
    products: Literal["fp32", "tf32", "bf16"] = "tf32" if precision == "mixed" else precision
    rate = (reached or fraction(f"products {products}", measures)) * peak[products]
    convolution = 0.6 * rate  # of ordinary cores
    if products != "fp32":
        images: Literal["tf32", "bf16"] = "tf32" if precision == "tf32" else "bf16"
        convolution = fraction(f"convolutions {images}", measures) * peak[images]
    return Device(
        name, rate, fraction("gradient", measures) * rate, convolution,
        fraction("products fp64", measures) * peak["fp64"],
        assumed("bandwidth") * BYTES_PER_SECOND[name], assumed("launch"), measured=False,
        item=2 if precision == "bf16" else 4, gap=assumed("gap"), graphs=graphs, latency=assumed("latency"),
        image_item=2 if precision in ("mixed", "bf16") else 4,
    )  # fmt: skip


def calibrated(
    device: torch.device, trials: dict[str, Trial], precision: Precision = "tf32", graphs: bool = True
) -> Device:
    """A GPU with rates measured on it now; without a GPU's graphs a launch is the gap. The CPU may stand for one."""
    waits = (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else lambda: None

    def seconds(call: Callable[[], object]) -> float:
        def waited() -> None:
            call()
            waits()

        waited()  # compiles, chooses, measures its own
        return best(waited)

    one, many = torch.zeros(8, device=device), 200

    def launches() -> None:
        for _ in range(many):
            one.add_(1.0)

    launch = seconds(launches) / many
    gap = seconds(_replayed(device, launches)) / many if device.type == "cuda" and graphs else launch
    size = 1 << (28 if device.type == "cuda" else 24)
    source, target = torch.zeros(size // 4, device=device), torch.zeros(size // 4, device=device)
    bandwidth = 2 * size / seconds(lambda: target.copy_(source))
    rates = {name: trial.flops / seconds(trial.call) for name, trial in trials.items()}
    flops = rates["flops"]
    there = torch.zeros(1 << 12, dtype=torch.uint8)
    return Device(
        f"{device} (calibrated)", flops, rates.get("gradient", flops), rates.get("convolution", flops),
        rates.get("flops64", flops), bandwidth, launch, measured=False, item=2 if precision == "bf16" else 4, gap=gap,
        graphs=graphs, latency=seconds(lambda: there.to(device).cpu()),
        image_item=2 if precision in ("mixed", "bf16") else 4,
    )  # fmt: skip


def _replayed(device: torch.device, launches: Callable[[], None]) -> Callable[[], None]:
    """The same launches as a CUDA graph."""

    def step() -> tuple[torch.Tensor, ...]:
        launches()
        return ()

    captured = Captured("calibration", step, tuple, Cuda(device))
    return lambda: [*captured()].clear()


def measure_here(trials: dict[str, Trial]) -> Device:
    """This machine's CPU: the run's own pieces of work, a copy larger than the caches, a tiny operation."""
    launch = best(_tiny_step()) / 50 / (2 * KERNELS["layer"] + KERNELS["step"])

    def rate(trial: Trial) -> float:
        took = best(trial.call)
        return trial.flops / max(took - trial.launches * launch, took / 10)  # tiny networks do little but launch

    flops, gradient = rate(trials["flops"]), rate(trials["gradient"])
    convolution, flops64 = (rate(trials[name]) if name in trials else flops for name in ("convolution", "flops64"))
    source, target = torch.zeros(1 << 25), torch.zeros(1 << 25)
    bandwidth = 2 * source.nbytes / best(lambda: target.copy_(source))
    return Device("here (cpu)", flops, gradient, convolution, flops64, bandwidth, launch, measured=True)


def _tiny_step() -> Callable[[], object]:
    """A gradient step of a network too small to compute anything: what is left is the cost of its operations."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimiser = torch.optim.Adam(net.parameters(), fused=True)
    x = torch.zeros(2, 4)

    def steps() -> None:
        for _ in range(50):
            optimiser.zero_grad(set_to_none=True)
            net(x).square().mean().backward()
            optimiser.step()

    return steps


def best(call: Callable[[], object], seconds: float | None = None) -> float:
    """Shortest time of a call, over at least three of them and this long."""
    times: list[float] = []
    while len(times) < 3 or sum(times) < (SECONDS if seconds is None else seconds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
