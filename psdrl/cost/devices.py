"""What devices can do: rates measured on this machine, or taken from a data sheet. The cost model divides by them."""

import time
from collections.abc import Callable

import torch
from torch import nn

from psdrl.config import Precision
from psdrl.runtime.work import KERNELS, Device, Trial

# Data sheets (dense): A100 SXM 40 GB, H100 SXM; float64 on tensor cores. Nobody here has measured either device.
_PEAK = {
    "a100": {"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12},
    "h100": {"fp32": 67e12, "tf32": 495e12, "bf16": 989e12},
}
_PEAK64 = {"a100": 19.5e12, "h100": 67e12}
_BANDWIDTH = {"a100": 1.555e12, "h100": 3.35e12}
GPUS = tuple(_PEAK)
# Assumptions. REACHED of the peak in products of thousands of rows: ordinary cores are easier to feed than tensor ones,
# and rows of 2292 bfloat16 are aligned to 8 bytes, not to the 16 that the fastest kernels want. Gradient steps reach
# 0.7 of that: 125 rows of 2292 units are 72 tiles of 64 x 64 for the A100's 108 multiprocessors. Convolutions of 1 to
# 384 channels reach 0.6 of it. A launch from Python takes 4 us, and a GPU needs a tenth of that between two kernels,
# which is what CUDA graphs leave.
REACHED = {"fp32": 0.8, "tf32": 0.5, "bf16": 0.35}
REACHED64 = 0.5
GRADIENT, CONVOLUTION = 0.7, 0.6
BANDWIDTH = 0.8
LAUNCH = 4e-6
GAP = 0.1 * LAUNCH
LATENCY = 2e-5


def data_sheet(name: str, precision: Precision = "tf32", graphs: bool = False, reached: float = 0.0) -> Device:
    """A device from its data sheet: a prediction; `reached` of the peak, or what is assumed for the precision."""
    rate = (reached or REACHED[precision]) * _PEAK[name][precision]
    return Device(
        name, rate, GRADIENT * rate, CONVOLUTION * rate, REACHED64 * _PEAK64[name], BANDWIDTH * _BANDWIDTH[name],
        LAUNCH, measured=False, item=2 if precision == "bf16" else 4, gap=GAP, graphs=graphs, latency=LATENCY,
    )  # fmt: skip


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


def best(call: Callable[[], object], seconds: float = 0.15) -> float:
    """Shortest time of a call, over at least three of them."""
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
