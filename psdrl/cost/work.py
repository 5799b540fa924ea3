"""What each phase of the fast path does: floating-point operations, bytes, kernel launches; and memory. For the cost
model, `psdrl.cost`."""

import math
from typing import NamedTuple

from psdrl.agents.psdrl.rollout import TABLE_BYTES
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.cost.devices import COMPILED, KERNELS, Device
from psdrl.cost.sizes import Sizes, cells, grid_bytes
from psdrl.envs.vector import EnvSpec


class Work(NamedTuple):
    """Kernels of one kind: floating-point operations (two per multiply-add), what they move, how many there are."""

    flops: float = 0.0
    gradient: float = 0.0
    convolution: float = 0.0
    flops64: float = 0.0
    bytes: float = 0.0  # the same in every precision: optimiser states, copies
    weights: float = 0.0  # numbers that products read or write, in the networks' precision
    activations: float = 0.0  # the same; measured rates have their traffic in them
    casts: float = 0.0  # numbers cast between float32 and bfloat16, if that is the precision: 6 bytes each
    launches: float = 0.0

    @property
    def total(self) -> float:
        """All floating-point operations."""
        return self.flops + self.gradient + self.convolution + self.flops64

    def arithmetic(self, device: Device) -> float:
        """Seconds of computing."""
        compute = self.flops / device.flops + self.gradient / device.gradient
        return compute + self.convolution / device.convolution + self.flops64 / device.flops64

    def traffic(self, device: Device) -> float:
        """Seconds of moving data."""
        numbers = self.weights + (0.0 if device.measured else self.activations)
        casts = 6 * self.casts if device.item == 2 else 0.0
        return (self.bytes + device.item * numbers + casts) / device.bandwidth


class Loop(NamedTuple):
    """Kinds of work that take turns, `times` over; `captured` if CUDA graphs can hold it."""

    parts: tuple[Work, ...]
    times: float = 1.0
    captured: bool = False

    @property
    def launches(self) -> float:
        """Operations of one pass."""
        return sum(part.launches for part in self.parts)

    def seconds(self, device: Device) -> float:
        """Each part takes its arithmetic or its traffic, whichever is longer. A GPU runs while the next kernels are
        launched; a CPU launches first, and its caches let the traffic of one part hide behind another's arithmetic."""
        arithmetic = [part.arithmetic(device) for part in self.parts]
        traffic = [part.traffic(device) for part in self.parts]
        launching = self.launches * device.launch
        if device.measured:
            return self.times * (max(sum(arithmetic), sum(traffic)) + launching)
        busy = sum(map(max, arithmetic, traffic)) + self.launches * device.gap
        return self.times * (busy if device.graphs and self.captured else max(busy, launching))


class Phase(NamedTuple):
    """Loops, one after another."""

    loops: tuple[Loop, ...] = ()

    @property
    def total(self) -> float:
        """All floating-point operations."""
        return sum(loop.times * part.total for loop in self.loops for part in loop.parts)

    @property
    def launches(self) -> float:
        """All operations."""
        return sum(loop.times * loop.launches for loop in self.loops)

    def seconds(self, device: Device) -> float:
        """All loops."""
        return sum(loop.seconds(device) for loop in self.loops)


def _gradient(rows: float, macs: int, parameters: int, kernels: float) -> tuple[Work, Work]:
    """A gradient step: forward, and twice that backward, in which weights are read twice and gradients written once;
    Adam reads 4 and writes 3 numbers per parameter. In bfloat16 weights are cast, and their gradients back.

    The activations of a step on up to 500 rows, 5 MB per layer, stay in a GPU's cache (A100: 40 MB).
    """
    step = Work(gradient=6 * rows * macs, weights=3 * parameters, casts=2 * parameters, launches=kernels)
    return step, Work(bytes=4 * 7 * parameters)


# Times that an activation crosses memory, besides the products that make and read it. Training: the bias is added
# (read, written), ReLU, its gradient (two read, one written), the bias's gradient (read); compiled without the first
# two and the last. Encoding: bias and ReLU. Products: written, read; training also reads it and its gradient (twice)
# and writes the gradient.
ELEMENTWISE = {"train": 8, "compiled": 5, "encode": 4}
PRODUCTS = {"train": 6, "encode": 2}
EPISODE = 1000  # steps of the longest episode, which the posterior's GRU walks through one by one


def update_work(config: PsdrlConfig, spec: EnvSpec, transitions: int) -> dict[str, Phase]:
    """Work of one update with this many transitions in the buffer, by phase."""
    s, r = Sizes.of(config, spec), config.replay
    rows, p = r.batch * r.length, s.parameters
    kernels = COMPILED if config.compile else KERNELS
    layer, step = kernels["layer"], kernels["step"]
    work: dict[str, Phase] = {}
    if "autoencoder" in p:
        encoded, decoded = cells(config, spec)
        activations = r.length * (encoded + decoded)
        depth = 2 * len(config.autoencoder.channels) + 2 * bool(config.autoencoder.latent)
        one, adam = _gradient(0, 0, p["autoencoder"], kernels["convolution"] * depth + step)
        one = one._replace(convolution=6 * r.length * s.autoencoder, activations=PRODUCTS["train"] * activations)
        pointwise = Work(activations=ELEMENTWISE["compiled" if config.compile else "train"] * activations)
        steps = config.autoencoder.iterations * r.batch
        work["autoencoder"] = Phase((Loop((one, pointwise, adam), steps, captured=True),))
        frame = Work(convolution=2 * s.encoder, activations=PRODUCTS["encode"] * encoded)
        work["encoding"] = Phase((Loop((frame, Work(activations=ELEMENTWISE["encode"] * encoded)), transitions),))
    window = config.forward.window
    windows = config.forward.iterations * -(-r.length // window)
    depth = config.forward.layers + config.termination.layers
    parts = _gradient(
        rows * config.forward.iterations / windows, s.forward + s.termination, p["forward"] + p["termination"],
        layer * depth + kernels["gru_step"] * window + 2 * step,
    )  # fmt: skip
    work["forward"] = Phase((Loop(parts, windows, captured=True),))
    work["posterior"] = _posterior_work(s, transitions) if config.rule != "none" else Phase()
    steps = value_steps(config)
    depth, drawn = config.value.networks * config.value.layers, r.batch * steps
    new = 1.0  # part of the drawn states that were not drawn before in the update
    if config.plans_within_episodes:  # states that are equal without being the same are not foreseen
        new = transitions / drawn * -math.expm1(-drawn / transitions) if transitions else 0.0
    scan = Work(flops=2 * r.batch * s.gru, launches=kernels["gru_scan"])
    predictions = kernels["predict"] * new * s.actions * r.batch / min(config.chunk_rows, rows * s.actions)
    targets = 4 * depth / config.value.target_every
    predicted = s.state + s.actions * (s.forward_model.action + s.termination)
    ahead = Work(flops=2 * r.batch * (new * predicted + s.actions * s.value), launches=predictions + targets)
    parts = _gradient(r.batch, s.value, p["value"], layer * depth + step)
    copy = Work(bytes=2 * 4 * p["value"] / config.value.target_every)
    work["value"] = Phase((Loop((scan,), steps), Loop((ahead, *parts, copy), steps, captured=True)))
    return work


def value_steps(config: PsdrlConfig) -> int:
    """Gradient steps of the value network in one update."""
    return config.planning_iterations * config.replay.length


def foreseen_bytes(config: PsdrlConfig, s: Sizes) -> float:
    """Bytes of the predictions that planning keeps for several batches, or for one; float32."""
    if not config.plans_within_episodes:
        return 0.0
    state = 4 * s.actions * (s.latent + s.hidden)
    batch = config.replay.batch * config.replay.length
    states = min(config.replay.batch * value_steps(config), config.replay.capacity)
    return min(states * state, max(TABLE_BYTES, min(batch, states) * state))


def _posterior_work(s: Sizes, transitions: int) -> Phase:
    """The GRU through the longest episode, then features of all transitions and their sums in float64 (of the Gram
    matrix one triangle), then factor, mean and sample."""
    k, outputs, places = s.forward_model.features, s.forward_model.outputs, s.forward_model.places
    scan = Loop((Work(launches=KERNELS["gru_scan"]),), min(transitions, EPISODE))
    features = Work(flops=2 * (s.forward - places * k * outputs))
    widened = Work(bytes=places * (4 + 8 + 8) * (k + outputs))  # read in float32, written and read again in float64
    sums = Work(flops64=places * 2 * k * (k / 2 + outputs))
    solve = Work(flops64=2 * k**3 + 6 * k * k * outputs, bytes=8 * 4 * k * k, launches=50)
    return Phase((scan, Loop((features, widened, sums), transitions), Loop((solve,))))


def act_work(config: PsdrlConfig, spec: EnvSpec) -> Loop:
    """One action of every environment of a group: every weight is read once, which is what it costs."""
    s = Sizes.of(config, spec)
    weights = s.state + s.forward_model.action + s.termination + s.value + (s.parameters.get("autoencoder", 0) // 2)
    rows = config.num_envs // config.env_groups
    flops = 2 * rows * (s.encoder + s.state + s.actions * (s.forward_model.action + s.termination + s.value))
    return Loop((Work(flops=flops, weights=weights, casts=weights, launches=KERNELS["act"]),), captured=True)


def memory(config: PsdrlConfig, spec: EnvSpec) -> dict[str, float]:
    """Bytes at the full buffer."""
    s, r = Sizes.of(config, spec), config.replay
    slots = r.capacity * 9 / 8
    item = 1 if spec.dtype == "uint8" else 4
    frame = item
    for n in spec.shape:
        frame *= n
    k, outputs = s.forward_model.features, s.forward_model.outputs
    widest = max(3 * s.hidden + k, s.latent + s.hidden, config.value.units, config.termination.units)
    return {
        "replay": slots * frame,
        "latents": slots * s.latent * 4,
        "networks": 4 * 4 * sum(s.parameters.values()) + 4 * s.parameters["value"],
        "posterior": 8 * (4 * k**2 + 3 * k * outputs),
        "activations": 4 * 6 * min(config.chunk_rows, r.batch * r.length * s.actions) * widest
        + 6 * grid_bytes(config, s)
        + 4 * 3 * r.batch * r.length * (s.latent + s.hidden),
        "predictions": foreseen_bytes(config, s),
    }
