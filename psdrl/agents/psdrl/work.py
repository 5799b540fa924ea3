"""What each phase of the fast path does, and its memory: for the cost model, `psdrl.cost`."""

import math

import torch
from torch import Tensor, nn

from psdrl.agents.psdrl.lookahead import Lookahead
from psdrl.agents.psdrl.models import Models, make_encoder
from psdrl.agents.psdrl.networks import TanhNet
from psdrl.agents.psdrl.rollout import TABLE_BYTES
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.envs.vector import EnvSpec
from psdrl.kernels import dispatch
from psdrl.kernels.linear_tanh.aten import linear_tanh
from psdrl.runtime import work
from psdrl.runtime.work import Loop, Phase, Trial, Work, adam, count, layers, weights

# Operations, counted with a dispatch mode at the cpu preset: per GRU step with and without gradients, per call
# (FURTHER: per step that acting looks ahead beyond the first).
GRU_STEP, GRU_SCAN, PREDICT, ACT, FURTHER, SOLVE = 32, 14, 30, 66, 45, 50
# Times that an activation crosses memory, besides the products that make and read it. Training: the bias is added
# (read, written), ReLU, its gradient (two read, one written), the bias's gradient (read); compiled without the first
# two and the last. Encoding: bias and ReLU. Products: written, read; training also reads it and its gradient (twice)
# and writes the gradient.
ELEMENTWISE = {"train": 8, "compiled": 5, "encode": 4}
PRODUCTS = {"train": 6, "encode": 2}
EPISODE = 1000  # steps of the longest episode, which the posterior's GRU walks through one by one


class PsdrlWorkload(work.Workload):
    """PSDRL's work, with the multiply-adds per row that its networks make on the meta device."""

    @torch.no_grad()
    def __init__(self, config: PsdrlConfig, spec: EnvSpec) -> None:
        self.config, self.spec, self.capacity = config, spec, config.replay.capacity
        self.kernels = work.COMPILED if config.compile else work.KERNELS
        with torch.device("meta"), dispatch.force("reference"):  # whose products PyTorch can count
            self.models = models = Models(config, spec)
            forward_model, output = models.forward_model, models.forward_model.output
            self.outputs, self.features = output.weight.shape
            self.sampled = forward_model.fold(forward_model.sampled(None))
            self.latent, self.hidden = models.autoencoder.latent_size, forward_model.hidden_size
            z, h, action = torch.empty(1, self.latent), torch.empty(1, self.hidden), torch.zeros(1, dtype=torch.long)
            self.encoder = count(models.autoencoder.plain_latents, self._frames(1))
            if models.autoencoder.trained:
                self.autoencoder = count(models.autoencoder.plain_loss, self._frames(1))
            self.gru = count(forward_model.next_hidden, z, action, h).macs
            self.feature_network = count(forward_model.features, h, z, action).macs
            self.forward = count(forward_model, z, action, h).macs
            self.ahead = count(self.sampled.predict, z, h).macs  # of all actions
            self.termination = count(models.termination, z).macs
            self.value = count(models.value, torch.cat([z, h], 1)).macs
            rows = config.replay.batch * config.value.target_every * spec.num_actions
            plain = not (config.compile or config.precision == "bf16" or config.device.startswith("cuda"))
            narrow = forward_model.narrow(forward_model.sampled(None), rows) if plain else None
        self.width = self.latent + self.hidden if narrow is None else narrow.code.shape[1]  # of a prediction

    def _frames(self, rows: int) -> Tensor:
        return torch.zeros(rows, *self.spec.shape, dtype=getattr(torch, self.spec.dtype))

    def updates(self) -> list[int]:
        steps, step = [], self.config.update_period(0)
        while step < self.config.steps:
            steps.append(step)
            period = self.config.update_period(step)
            step = (step // period + 1) * period
        return steps

    def update(self, transitions: int) -> dict[str, Phase]:
        found = {}
        if self.models.autoencoder.trained:
            found["autoencoder"] = self._autoencoder()
            frame = Work(convolution=2 * self.encoder.macs, activations=PRODUCTS["encode"] * self.encoder.cells)
            pointwise = Work(activations=ELEMENTWISE["encode"] * self.encoder.cells)
            found["encoding"] = Phase((Loop((frame, pointwise), transitions),))
        found["forward"] = self._forward()
        found["posterior"] = self._posterior(transitions) if self.config.rule != "none" else Phase()
        found["value"] = self._value(transitions)
        return found

    def _gradient(self, flops: Work, kind: str, *networks: nn.Module) -> tuple[Work, Work]:
        """A gradient step with these operations, on networks of this kind of layers: weights are read forward and
        backward, gradients written; then Adam. In bfloat16 weights are cast, and their gradients back.

        The activations of a step on up to 500 rows, 5 MB per layer, stay in a GPU's cache (A100: 40 MB).
        """
        size, depth = sum(map(weights, networks)), sum(map(layers, networks))
        kernels = flops.launches + self.kernels[kind] * depth + self.kernels["step"] * len(networks)
        return flops._replace(weights=3 * size, casts=2 * size, launches=kernels), adam(size)

    def _autoencoder(self) -> Phase:
        r, cells = self.config.replay, self.config.replay.length * self.autoencoder.cells
        flops = Work(convolution=6 * r.length * self.autoencoder.macs, activations=PRODUCTS["train"] * cells)
        step, optimiser = self._gradient(flops, "convolution", self.models.autoencoder)
        pointwise = Work(activations=ELEMENTWISE["compiled" if self.config.compile else "train"] * cells)
        return Phase((Loop((step, pointwise, optimiser), self.config.autoencoder.iterations * r.batch, captured=True),))

    def _forward(self) -> Phase:
        """Windows of forward and termination model: forward, and twice that backward."""
        r, f = self.config.replay, self.config.forward
        windows = f.iterations * -(-r.length // f.window)
        rows = r.batch * r.length * f.iterations / windows
        flops = Work(gradient=6 * rows * (self.forward + self.termination), launches=GRU_STEP * f.window)
        step = self._gradient(flops, "layer", self.models.forward_model, self.models.termination)
        return Phase((Loop(step, windows, captured=True),))

    def _posterior(self, transitions: int) -> Phase:
        """The GRU through the longest episode, then features of all transitions and their sums in float64 (of the Gram
        matrix one triangle), then factor, mean and sample."""
        k, outputs, rows = self.features, self.outputs, self.models.forward_model.rows_per_state
        scan = Loop((Work(launches=GRU_SCAN),), min(transitions, EPISODE))
        features = Work(flops=2 * (self.gru + self.feature_network))
        widened = Work(bytes=rows * (4 + 8 + 8) * (k + outputs))  # read in float32, written and read again in float64
        sums = Work(flops64=rows * 2 * k * (k / 2 + outputs))
        solve = Work(flops64=2 * k**3 + 6 * k * k * outputs, bytes=8 * 4 * k * k, launches=SOLVE)
        return Phase((scan, Loop((features, widened, sums), transitions), Loop((solve,))))

    def _value(self, transitions: int) -> Phase:
        """The GRU's scan; then per gradient step its share of predictions, targets and copies."""
        r, v, actions, steps = self.config.replay, self.config.value, self.spec.num_actions, self.value_steps
        drawn = r.batch * steps
        new = 1.0  # part of the drawn states that were not drawn before in the update
        if self.config.plans_within_episodes:  # states that are equal without being the same are not foreseen
            new = transitions / drawn * -math.expm1(-drawn / transitions) if transitions else 0.0
        scan = Work(flops=2 * r.batch * self.gru, launches=GRU_SCAN)
        predictions = PREDICT * new * actions * r.batch / min(self.config.chunk_rows, r.batch * r.length * actions)
        targets = 4 * layers(self.models.value) / v.target_every
        macs = new * (self.ahead + actions * self.termination) + actions * self.value
        ahead = Work(flops=2 * r.batch * macs, launches=predictions + targets)
        gradient = self._gradient(Work(gradient=6 * r.batch * self.value), "layer", self.models.value)
        copy = Work(bytes=2 * 4 * weights(self.models.value) / v.target_every)
        return Phase((Loop((scan,), steps), Loop((ahead, *gradient, copy), steps, captured=True)))

    @property
    def value_steps(self) -> int:
        """Gradient steps of the value network in one update."""
        return self.config.planning_iterations * self.config.replay.length

    @torch.no_grad()
    def act(self, rows: int) -> Loop:
        """Every weight is read once, which is what it costs."""
        models = self.models

        def decide(frames: Tensor, hidden: Tensor) -> None:
            tie_noise = torch.empty(rows, self.spec.num_actions)
            lookahead = Lookahead(self.sampled, models.termination, models.value)
            lookahead.action(models.autoencoder.encode(frames), hidden, tie_noise)

        with torch.device("meta"), dispatch.force("reference"):
            found = count(decide, self._frames(rows), torch.empty(rows, self.hidden))
        launches = ACT + FURTHER * (self.config.value.lookahead - 1)
        one = Work(flops=2 * found.macs, weights=found.weights, casts=found.weights, launches=launches)
        return Loop((one,), captured=True)

    def memory(self) -> dict[str, float]:
        config, r, k, models = self.config, self.config.replay, self.features, self.models
        slots, batch, state = r.capacity * 9 / 8, r.batch * r.length, self.latent + self.hidden
        widest = max(3 * self.hidden + k, state, config.value.units, config.termination.units)
        networks = sum(map(weights, (models.autoencoder, models.forward_model, models.termination, models.value)))
        return {
            "replay": slots * self._frames(1).nbytes,
            "latents": slots * self.latent * 4,
            "networks": 4 * 4 * networks + 4 * weights(models.value),
            "posterior": 8 * (4 * k**2 + 3 * k * self.outputs),
            "activations": 4 * 6 * min(config.chunk_rows, batch * self.spec.num_actions) * widest
            + 6 * self.grid_bytes
            + 4 * 3 * batch * state,
            "predictions": self.foreseen_bytes,
        }

    @property
    def grid_bytes(self) -> float:
        """Bytes of the widest layer of networks that look at cells, if there are any: a chunk is of cells then, but a
        time step of a batch with all actions and a window of training are never cut."""
        config, forward_model = self.config, self.models.forward_model
        widest = max(forward_model.widest, self.models.termination.widest)
        uncut = config.replay.batch * max(self.spec.num_actions, config.forward.window)
        return 4 * widest * max(uncut, config.chunk_rows // forward_model.rows_per_state)

    @property
    def foreseen_bytes(self) -> float:
        """Bytes of the predictions that planning keeps for several batches, or for one; float32."""
        if not self.config.plans_within_episodes:
            return 0.0
        r, state = self.config.replay, 4 * self.spec.num_actions * self.width
        states = min(r.batch * self.value_steps, r.capacity)
        return min(states * state, max(TABLE_BYTES, min(r.batch * r.length, states) * state))

    def trials(self) -> dict[str, Trial]:
        """Layers, gradient steps and convolutions of the run's own sizes."""
        width, r = self.config.forward.units, self.config.replay
        rows = min(self.config.chunk_rows, 4096, r.batch * self.config.value.target_every * self.spec.num_actions)
        x, w, states = torch.randn(rows, width), torch.randn(width, width), torch.randn(r.batch, width)
        x64, w64, net = x.double(), w.double(), TanhNet(width, width, 4)
        product = 2 * rows * width * width
        found = {
            "flops": Trial(product, lambda: linear_tanh(x, w)),
            "flops64": Trial(product, lambda: x64 @ w64.T),
            "gradient": Trial(6 * r.batch * weights(net), lambda: net(states).square().mean().backward()),
        }
        if self.models.autoencoder.trained:
            encoder, frames = make_encoder(self.config, self.spec), self._frames(min(40, r.length))
            found["convolution"] = Trial(
                6 * len(frames) * self.autoencoder.macs, lambda: encoder.loss(frames).backward()
            )
        return found
