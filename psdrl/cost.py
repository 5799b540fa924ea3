"""Cost model: `python -m psdrl.cost --preset paper --game Pong --device a100` predicts hours and memory of a run.

Counts floating-point operations, bytes and kernel launches of each phase of the fast path and divides by what a device
can do. `here` measures this machine; the figures of devices nobody measured are predictions from their data sheets.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from psdrl.config import Config, Precision, Preset
from psdrl.envs.vector import EnvSpec
from psdrl.errors import UserError
from psdrl.learning import autoencoder_loss
from psdrl.models import Autoencoder, TanhNet
from psdrl.presets import preset
from psdrl.sizes import Sizes, convolutions, tanh_net


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


# Data sheets (dense): A100 SXM 40 GB, H100 SXM. Half of the peak is assumed to be reached; a launch costs 4 us from
# Python, of which CUDA graphs leave about a tenth. Nobody here has measured either device.
_PEAK = {
    "a100": {"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12},
    "h100": {"fp32": 67e12, "tf32": 495e12, "bf16": 989e12},
}
_PEAK64 = {"a100": 19.5e12, "h100": 67e12}
_BANDWIDTH = {"a100": 1.555e12, "h100": 3.35e12}
REACHED = 0.5
LAUNCH = 4e-6


def data_sheet(name: str, precision: Precision = "tf32") -> Device:
    """A device from its data sheet: a prediction."""
    peak, peak64 = _PEAK[name][precision], _PEAK64[name]
    rate = REACHED * peak
    return Device(name, rate, rate, rate, REACHED * peak64, 0.8 * _BANDWIDTH[name], LAUNCH, measured=False)


def gemm_peak(width: int, rows: int) -> float:
    """Floating-point operations per second of rows x width x width products in float32, on this CPU."""
    x, w = torch.randn(rows, width), torch.randn(width, width)
    return 2 * rows * width * width / _best(lambda: x @ w.T)


def measure_here(config: Config, spec: EnvSpec) -> Device:
    """This machine's CPU: layers, gradient steps and convolutions of the run's own sizes, a copy larger than the
    caches, a tiny operation."""
    width, batch = config.forward.units, config.replay.batch
    rows = min(config.chunk_rows, 4096, batch * config.value.target_every * spec.num_actions)
    x, w = torch.randn(rows, width), torch.randn(width, width)
    flops = 2 * rows * width * width / _best(lambda: (x @ w.T).tanh_())
    net, states = TanhNet(width, width, 4), torch.randn(batch, width)
    gradient = 6 * batch * tanh_net(width, width, 4) / _best(lambda: net(states).square().mean().backward())
    convolution = flops
    if spec.kind == "image":
        autoencoder = Autoencoder(spec.shape, config.autoencoder)
        frames = torch.zeros(min(40, config.replay.length), *spec.shape, dtype=torch.uint8)
        macs = sum(convolutions(config, spec)[:2])
        convolution = 6 * len(frames) * macs / _best(lambda: autoencoder_loss(autoencoder, frames, "sum").backward())
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


class Work(NamedTuple):
    """Floating-point operations (two per multiply-add), bytes moved, kernels launched."""

    flops: float = 0.0
    gradient: float = 0.0
    convolution: float = 0.0
    flops64: float = 0.0
    bytes: float = 0.0
    launches: float = 0.0

    def __add__(self, other: tuple) -> "Work":
        return Work(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def total(self) -> float:
        """All floating-point operations."""
        return self.flops + self.gradient + self.convolution + self.flops64

    def times(self, count: float) -> "Work":
        """This work `count` times over."""
        return Work(*(a * count for a in self))

    def seconds(self, device: Device) -> float:
        """Arithmetic or memory, whichever takes longer; launches add to it on a CPU and hide behind it on a GPU."""
        compute = self.flops / device.flops + self.gradient / device.gradient
        compute += self.convolution / device.convolution + self.flops64 / device.flops64
        work, launches = max(compute, self.bytes / device.bandwidth), self.launches * device.launch
        return work + launches if device.measured else max(work, launches)


def _gradient(rows: float, macs: int, parameters: int, kernels: float) -> Work:
    """A gradient step: forward, and twice that backward; Adam reads 4 and writes 3 numbers per parameter."""
    return Work(gradient=6 * rows * macs, bytes=4 * parameters * (7 + 3), launches=kernels)


# Operations, counted with a dispatch mode at the cpu preset: per layer and gradient step of a tanh network and of a
# convolution, besides the layers of a gradient step, per GRU step with and without gradients, per call of the rest.
KERNELS = {"layer": 9, "convolution": 5, "step": 16, "gru_step": 32, "gru_scan": 14, "predict": 30, "act": 66}
EPISODE = 1000  # steps of the longest episode, which the posterior's GRU walks through one by one
ENVIRONMENT = {"image": 1e-3, "vector": 4e-5}  # seconds per step of one environment: Pong, DeepSea (bench/RESULTS.md)


def update_work(config: Config, spec: EnvSpec, transitions: int) -> dict[str, Work]:
    """Work of one update with this many transitions in the buffer, by phase."""
    s, r = Sizes.of(config, spec), config.replay
    rows, p = r.batch * r.length, s.parameters
    layer, step = KERNELS["layer"], KERNELS["step"]
    work: dict[str, Work] = {}
    if "autoencoder" in p:
        steps = config.autoencoder.iterations * r.batch
        depth = 2 * len(config.autoencoder.channels) + 2 * bool(config.autoencoder.latent)
        kernels = KERNELS["convolution"] * depth + step
        one = Work(0, 0, 6 * r.length * s.autoencoder, 0, 4 * p["autoencoder"] * (7 + 3), kernels)
        work["autoencoder"] = one.times(steps)
        work["encoding"] = Work(convolution=2 * s.encoder * transitions)
    window = config.forward.window
    windows = config.forward.iterations * -(-r.length // window)
    depth = config.forward.layers + config.termination.layers
    gru = KERNELS["gru_step"] * window
    work["forward"] = _gradient(
        rows * config.forward.iterations / windows, s.forward + s.termination, p["forward"] + p["termination"],
        layer * depth + gru + 2 * step,
    ).times(windows)  # fmt: skip
    k, outputs = s.features, s.latent + 1
    features = s.forward - k * outputs
    scan = KERNELS["gru_scan"] * min(transitions, EPISODE)
    sums = 2 * transitions * k * (k / 2 + outputs)  # one triangle
    gram = Work(flops=2 * features * transitions, flops64=sums, launches=scan)
    solve = Work(flops64=2 * k**3 + 6 * k * k * outputs, bytes=8 * 4 * k * k, launches=50)
    work["posterior"] = gram + solve if config.rule != "none" else Work()
    steps = config.value.iterations * r.length * (4 if config.algo == "fresh-value" else 1)
    ahead = 2 * r.batch * (s.state + s.actions * (s.action + s.termination + s.value))
    predictions = KERNELS["predict"] * s.actions * r.batch / min(config.chunk_rows, rows * s.actions)
    targets = 4 * config.value.layers / config.value.target_every
    gradient = _gradient(r.batch, s.value, p["value"], layer * config.value.layers + step)
    work["value"] = (Work(flops=ahead, launches=predictions + targets) + gradient).times(steps)
    return work


def act_work(config: Config, spec: EnvSpec) -> Work:
    """One action of every environment: every weight is read once, which is what it costs."""
    s = Sizes.of(config, spec)
    weights = s.state + s.action + s.termination + s.value + (s.parameters.get("autoencoder", 0) // 2)
    flops = 2 * config.num_envs * (s.encoder + s.state + s.actions * (s.action + s.termination + s.value))
    return Work(flops=flops, bytes=4 * weights, launches=KERNELS["act"])


def memory(config: Config, spec: EnvSpec) -> dict[str, float]:
    """Bytes at the full buffer."""
    s, r = Sizes.of(config, spec), config.replay
    slots = r.capacity * 9 / 8
    item = 1 if spec.dtype == "uint8" else 4
    frame = item
    for n in spec.shape:
        frame *= n
    widest = max(3 * s.hidden + s.features, s.latent + s.hidden, config.value.units, config.termination.units)
    return {
        "replay": slots * frame,
        "latents": slots * s.latent * 4,
        "networks": 4 * 4 * sum(s.parameters.values()) + 4 * s.parameters["value"],
        "posterior": 8 * (4 * s.features**2 + 3 * s.features * (s.latent + 1)),
        "activations": 4 * 6 * min(config.chunk_rows, r.batch * r.length * s.actions) * widest
        + 4 * 3 * r.batch * r.length * (s.latent + s.hidden),
    }


def largest_tensor(config: Config, spec: EnvSpec) -> float:
    """Bytes of the largest tensor an update may make, float32: a chunk at its widest (posterior chunks are float64),
    a batch of B * L states, the table of latent states, or the Gram matrix."""
    s, r = Sizes.of(config, spec), config.replay
    chunk = 4 * config.chunk_rows * max(3 * s.hidden + s.features, 2 * (s.latent + 1), 2 * s.features)
    batch = 4 * r.batch * (r.length + 1) * max(s.latent + max(s.hidden, s.actions), 3 * s.hidden)
    return max(chunk, batch, 4 * r.capacity * 9 / 8 * s.latent, 8 * s.features * max(s.features, s.latent + 1))


def update_steps(config: Config) -> Iterator[int]:
    """Steps at which updates happen."""
    step = config.update_period(0)
    while step < config.steps:
        yield step
        period = config.update_period(step)
        step = (step // period + 1) * period


class Forecast(NamedTuple):
    """Predicted seconds of a whole run by phase, and bytes."""

    seconds: dict[str, float]
    bytes: dict[str, float]

    @property
    def hours(self) -> float:
        """The whole run."""
        return sum(self.seconds.values()) / 3600


def forecast(config: Config, spec: EnvSpec, device: Device, episode: int = 2000) -> Forecast:
    """The whole run; evaluation episodes are taken to last `episode` steps."""
    seconds: dict[str, float] = {}
    # Work is linear in the buffer: two points give every update.
    capacity = config.replay.capacity
    empty, full = update_work(config, spec, 0), update_work(config, spec, capacity)
    fills = [min(step, capacity) / capacity for step in update_steps(config)]
    for name in full:
        a, b = empty[name].seconds(device), full[name].seconds(device)
        seconds[name] = sum(a + (b - a) * fill for fill in fills)
    act = act_work(config, spec).seconds(device)
    seconds["acting"] = act * config.steps / config.num_envs
    seconds["environment"] = ENVIRONMENT[spec.kind] * config.steps
    if config.eval_every:
        one = act_work(replace(config, num_envs=1), spec).seconds(device) + ENVIRONMENT[spec.kind]
        seconds["evaluation"] = one * config.steps / config.eval_every * config.eval_episodes * episode
    return Forecast(seconds, memory(config, spec))


def duration(seconds: float) -> str:
    """Seconds as a person says them: 40 s, 12 min, 1.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def device_for(name: str, config: Config, spec: EnvSpec, precision: Precision = "tf32") -> Device:
    """`here`, measured at the run's own width; or a data sheet."""
    if name == "here":
        return measure_here(config, spec)
    if name not in _PEAK:
        raise UserError(f"No figures for device {name!r}: use here, a100 or h100.")
    return data_sheet(name, precision)


@dataclass(frozen=True)
class Question:
    """Predict the cost of a run."""

    game: str | None = None
    """Atari game."""
    env: str | None = None
    """Any other environment, as for psdrl.train."""
    preset: Preset = "auto"
    """Preset, as for psdrl.train."""
    device: Literal["here", "a100", "h100"] = "here"
    """here: measured; a100, h100: predicted from data sheets."""
    precision: Precision = "tf32"
    """Precision of the networks on a GPU; `here` computes in fp32."""
    actions: int = 0
    """Number of actions; 0: those of the environment."""
    steps: int = 0
    """Environment steps; 0: those of the preset."""


def run(question: Question) -> None:
    """`psdrl cost`."""
    from psdrl.envs import make_env

    config = preset(Config(game=question.game, env=question.env, preset=question.preset))
    config = replace(config, steps=question.steps or config.steps)
    config.check()
    env = make_env(config)
    env.close()
    spec = replace(env.spec, num_actions=question.actions or env.spec.num_actions)
    device = device_for(question.device, config, spec, question.precision)
    report(Console(), config, spec, device, question.precision if question.device != "here" else "fp32")


def report(console: Console, config: Config, spec: EnvSpec, device: Device, precision: str) -> None:
    """Print the forecast as a table."""
    f = forecast(config, spec, device)
    word = "measured rates" if device.measured else f"PREDICTION from the data sheet, {REACHED:.0%} of peak assumed"
    table = Table(title=f"{config.env_name}, preset {config.preset}, {precision} on {device.name} ({word})")
    for column in ("phase", "seconds per update, full buffer", "hours per run", "TFLOP per update", "launches"):
        table.add_column(column, justify="left" if column == "phase" else "right")
    work = update_work(config, spec, config.replay.capacity)
    for name, seconds in f.seconds.items():
        if name in work:
            w = work[name]
            cells = (f"{w.seconds(device):.3g}", f"{w.total / 1e12:.3g}", f"{w.launches:.0f}")
        else:
            cells = ("", "", "")
        table.add_row(name, cells[0], f"{seconds / 3600:.3g}", cells[1], cells[2])
    total = sum((w for w in work.values()), Work())
    per_update = sum(w.seconds(device) for w in work.values())
    table.add_row("total", f"{per_update:.3g}", f"{f.hours:.3g}", f"{total.total / 1e12:.3g}", "")
    console.print(table)
    parts = ", ".join(f"{name} {size / 1e9:.2g}" for name, size in f.bytes.items())
    console.print(f"memory: {sum(f.bytes.values()) / 1e9:.2g} GB ({parts})", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    from psdrl.cli import main_cost

    main_cost()
