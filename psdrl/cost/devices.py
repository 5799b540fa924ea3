"""What devices can do: rates measured on this machine, or taken from a data sheet. The cost model divides by them."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from psdrl.agents.psdrl.autoencoder import Autoencoder
from psdrl.agents.psdrl.learning import autoencoder_loss
from psdrl.agents.psdrl.networks import TanhNet
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.config import Precision
from psdrl.cost.sizes import convolutions, tanh_net
from psdrl.envs.vector import EnvSpec
from psdrl.kernels.linear_tanh.aten import linear, linear_tanh

# Operations, counted with a dispatch mode at the cpu preset: per layer and gradient step of a tanh network and of a
# convolution, besides the layers of a gradient step, per GRU step with and without gradients, per call of the rest.
KERNELS = {"layer": 9, "convolution": 5, "step": 16, "gru_step": 32, "gru_scan": 14, "predict": 30, "act": 66}
# torch.compile joins bias, activation and the rest that is elementwise. Assumed, not counted: forward a product and one
# kernel, backward two products, one kernel and a sum, so 6 per tanh layer; 4 per convolution, whose own kernels stay.
# GRU, Adam, lookahead and acting are left as they are.
COMPILED = KERNELS | {"layer": 6, "convolution": 4}


class Device(NamedTuple):
    """What a device can do. A CPU starts an operation, then computes it; a GPU computes while the next is started."""

    name: str
    flops: float  # per second, in matrix products of many rows
    gradient: float  # per second, in gradient steps on B rows
    convolution: float  # per second, in gradient steps of the autoencoder
    flops64: float  # per second, float64
    bandwidth: float  # bytes per second
    launch: float  # seconds per operation
    measured: bool
    item: int = 4  # bytes of a number in the networks' products
    gap: float = 0.0  # seconds between two kernels that were launched long before
    graphs: bool = False  # whether what can be captured is replayed as CUDA graphs: only the gaps remain
    latency: float = 0.0  # seconds to send observations, and to wait for the actions


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


def gemm_peak(width: int, rows: int) -> float:
    """Floating-point operations per second of rows x width x width products in float32 by this CPU's faster library."""
    x, w = torch.randn(rows, width), torch.randn(width, width)
    return 2 * rows * width * width / min(_best(lambda: x @ w.T), _best(lambda: linear(x, w)))


def measure_here(config: PsdrlConfig, spec: EnvSpec) -> Device:
    """This machine's CPU: layers, gradient steps and convolutions of the run's own sizes, a copy larger than the
    caches, a tiny operation."""
    width, batch = config.forward.units, config.replay.batch
    rows = min(config.chunk_rows, 4096, batch * config.value.target_every * spec.num_actions)
    x, w = torch.randn(rows, width), torch.randn(width, width)
    flops = 2 * rows * width * width / _best(lambda: linear_tanh(x, w))
    net, states = TanhNet(width, width, 4), torch.randn(batch, width)
    gradient = 6 * batch * tanh_net(width, width, 4) / _best(lambda: net(states).square().mean().backward())
    convolution = flops
    if spec.kind == "image":
        autoencoder = Autoencoder(spec.shape, config.autoencoder)
        frames = torch.zeros(min(40, config.replay.length), *spec.shape, dtype=torch.uint8)
        macs = sum(convolutions(config, spec)[:2])
        convolution = 6 * len(frames) * macs / _best(lambda: autoencoder_loss(autoencoder, frames).backward())
    x64, w64 = x.double(), w.double()
    flops64 = 2 * rows * width * width / _best(lambda: x64 @ w64.T)
    launch = _best(_tiny_step()) / 50 / (2 * KERNELS["layer"] + KERNELS["step"])
    source, target = torch.zeros(1 << 25), torch.zeros(1 << 25)
    bandwidth = 2 * source.nbytes / _best(lambda: target.copy_(source))
    return Device("here (cpu)", flops, gradient, convolution, flops64, bandwidth, launch, measured=True)


def _tiny_step() -> Callable[[], object]:
    """A gradient step of a network too small to compute anything: what is left is the cost of its operations."""
    net = TanhNet(4, 4, 2)
    optimiser = torch.optim.Adam(net.parameters(), fused=True)
    x = torch.zeros(2, 4)

    def steps() -> None:
        for _ in range(50):
            optimiser.zero_grad(set_to_none=True)
            net(x).square().mean().backward()
            optimiser.step()

    return steps


def _best(call: Callable[[], object], seconds: float = 0.15) -> float:
    """Shortest time of a call, over at least three of them."""
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
