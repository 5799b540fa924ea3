"""What each phase of the fast path does, and its memory: for the cost model, `psdrl.cost`."""

import math
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from psdrl.agents.psdrl.lookahead import Lookahead
from psdrl.agents.psdrl.models import Models, make_encoder
from psdrl.agents.psdrl.networks import TanhNet
from psdrl.agents.psdrl.rollout import TABLE_BYTES
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.agents.psdrl.world_model import WorldModel
from psdrl.envs.vector import EnvSpec
from psdrl.kernels import dispatch
from psdrl.kernels.linear_tanh import linear_tanh as served
from psdrl.kernels.linear_tanh.aten import linear_tanh
from psdrl.runtime import work
from psdrl.runtime.work import Loop, Phase, Trial, Work, adam, count, layers, stepped, weights

# Operations, counted with a dispatch mode at the cpu preset: per GRU step with and without gradients, per call
# (FURTHER: per step that acting looks ahead beyond the first).
CUDNN_SCAN = 4  # assumed, see `cost.assumptions`
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
        self.gpu = config.device.startswith("cuda")
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
            frame = Work(
                convolution=2 * self.encoder.macs, activations=PRODUCTS["encode"] * self.encoder.cells, images=True
            )
            pointwise = Work(activations=ELEMENTWISE["encode"] * self.encoder.cells, images=True)
            found["encoding"] = Phase((Loop((frame, pointwise), transitions),))
        found["forward"] = self._forward()
        found["posterior"] = self._posterior(transitions) if self.config.rule != "none" else Phase()
        found["value"] = self._value(transitions)
        return found

    def _gradient(
        self, flops: Work, kind: str, *networks: nn.Module, rows: float = 0.0, entry: int = 0
    ) -> tuple[Work, ...]:
        """A gradient step with these operations, on networks of this kind of layers: weights are read forward and
        backward, gradients written; then Adam. In bfloat16 weights are cast, and their gradients back. On a GPU, layers
        that have taps form their gradient, over `rows`, in the kernel that steps (`descent`).

        entry: weights of first layers, whose inputs are data that no gradient is asked for.
        The activations of a step on up to 500 rows, 5 MB per layer, stay in a GPU's cache (A100: 40 MB).
        """
        size, depth = sum(map(weights, networks)), sum(map(layers, networks))
        kernels = flops.launches + self.kernels[kind] * depth + self.kernels["step"] * len(networks)
        moved, tapped = 3 * size, 0
        if self.gpu and self.measures.counted:
            flops = flops._replace(gradient=flops.gradient - 2 * rows * entry)
            moved -= entry
        if self.gpu and self.measures.one_pass:
            modules = (m for network in networks for m in network.modules() if isinstance(m, TanhNet | WorldModel))
            tapped = sum(layer.weight.numel() for module in modules for layer in module.tapped_layers())
        products = 2 * rows * tapped
        step = stepped(tapped)._replace(gradient=products)
        flops = flops._replace(
            gradient=flops.gradient - products, weights=moved - tapped, casts=2 * size - tapped, launches=kernels
        )
        return (flops, step, adam(size - tapped)) if tapped else (flops, adam(size))

    def _autoencoder(self) -> Phase:
        r, cells = self.config.replay, self.config.replay.length * self.autoencoder.cells
        flops = Work(
            convolution=6 * r.length * self.autoencoder.macs, activations=PRODUCTS["train"] * cells, images=True
        )
        step, optimiser = self._gradient(flops, "convolution", self.models.autoencoder)
        pointwise = Work(activations=ELEMENTWISE["compiled" if self.config.compile else "train"] * cells, images=True)
        return Phase((Loop((step, pointwise, optimiser), self.config.autoencoder.iterations * r.batch, captured=True),))

    def _forward(self) -> Phase:
        """Windows of forward and termination model: forward, and twice that backward."""
        r, f = self.config.replay, self.config.forward
        windows = f.iterations * -(-r.length // f.window)
        rows = r.batch * r.length * f.iterations / windows
        flops = Work(gradient=6 * rows * (self.forward + self.termination), launches=GRU_STEP * f.window)
        networks = self.models.forward_model, self.models.termination
        entry = self.models.termination.linear_layers()[0].weight.numel()
        step = self._gradient(flops, "layer", *networks, rows=rows, entry=entry)
        return Phase((Loop(step, windows, captured=True),))

    def _posterior(self, transitions: int) -> Phase:
        """The GRU through the longest episode, then features of all transitions and their sums in float64 (of the Gram
        matrix one triangle), then factor, mean and sample."""
        k, outputs, rows = self.features, self.outputs, self.models.forward_model.rows_per_state
        scan = Loop((Work(launches=self._scan),), min(transitions, EPISODE))
        features = Work(flops=2 * (self.gru + self.feature_network))
        widened = Work(bytes=rows * (4 + 8 + 8) * (k + outputs))  # read in float32, written and read again in float64
        sums = Work(flops64=rows * 2 * k * (k / 2 + outputs))
        solve = Work(flops64=2 * k**3 + 6 * k * k * outputs, bytes=8 * 4 * k * k, launches=SOLVE)
        return Phase((scan, Loop((features, widened, sums), transitions), Loop((solve,))))

    @property
    def _scan(self) -> int:
        """Kernels per step of a GRU's scan; on a GPU cuDNN's own, of which nobody has counted how many there are."""
        return CUDNN_SCAN if self.gpu and self.measures.counted else GRU_SCAN

    def _value(self, transitions: int) -> Phase:
        """The GRU's scan; then per gradient step its share of predictions, targets and copies."""
        r, v, actions, steps = self.config.replay, self.config.value, self.spec.num_actions, self.value_steps
        drawn = r.batch * steps
        new = 1.0  # part of the drawn states that were not drawn before in the update
        if self.config.plans_within_episodes:  # states that are equal without being the same are not foreseen
            new = transitions / drawn * -math.expm1(-drawn / transitions) if transitions else 0.0
        scan = Work(flops=2 * r.batch * self.gru, launches=self._scan)
        at_once = self.config.rows_at_once(self.gpu and self.measures.chunks)
        predictions = PREDICT * new * actions * r.batch / min(at_once, r.batch * r.length * actions)
        targets = 4 * layers(self.models.value) / v.target_every
        macs = new * (self.ahead + actions * self.termination) + actions * self.value
        ahead = Work(flops=2 * r.batch * macs, launches=predictions + targets)
        entry = sum(network.linear_layers()[0].weight.numel() for network in self.models.value.networks())
        steps_work = Work(gradient=6 * r.batch * self.value)
        gradient = self._gradient(steps_work, "layer", self.models.value, rows=r.batch, entry=entry)
        copy = Work(bytes=2 * 4 * weights(self.models.value) / v.target_every)
        return Phase((
            Loop((scan,), steps, captured=self.measures.counted),
            Loop((ahead, *gradient, copy), steps, captured=True),
        ))  # fmt: skip

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
        casts = self.encoder.weights  # the others once per model
        one = Work(flops=2 * found.macs, weights=found.weights, casts=casts, launches=launches)
        return Loop((one,), captured=True)

    def memory(self) -> dict[str, float]:
        config, r, k, models = self.config, self.config.replay, self.features, self.models
        at_once = config.rows_at_once(self.gpu)
        slots, batch, state = r.capacity * 9 / 8, r.batch * r.length, self.latent + self.hidden
        widest = max(3 * self.hidden + k, state, config.value.units, config.termination.units)
        networks = sum(map(weights, (models.autoencoder, models.forward_model, models.termination, models.value)))
        return {
            "replay": slots * self._frames(1).nbytes,
            "latents": slots * self.latent * 4,
            "networks": 4 * 4 * networks + 4 * weights(models.value),
            "posterior": 8 * (4 * k**2 + 3 * k * self.outputs),
            "activations": 4 * 6 * min(at_once, batch * self.spec.num_actions) * widest
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
        return 4 * widest * max(uncut, config.rows_at_once(self.gpu) // forward_model.rows_per_state)

    @property
    def foreseen_bytes(self) -> float:
        """Bytes of the predictions that planning keeps for several batches, or for one; float32."""
        if not self.config.plans_within_episodes:
            return 0.0
        r, state = self.config.replay, 4 * self.spec.num_actions * self.width
        states = min(r.batch * self.value_steps, r.capacity)
        return min(states * state, max(TABLE_BYTES, min(r.batch * r.length, states) * state))

    def trials(
        self, device: torch.device = work.CPU, images: AbstractContextManager = work.NOTHING
    ) -> dict[str, Trial]:
        """Layers, gradient steps and convolutions of the run's own sizes."""
        width, r = self.config.forward.units, self.config.replay
        rows = min(self.config.chunk_rows, 4096, r.batch * self.config.value.target_every * self.spec.num_actions)
        x, w, states = (
            torch.randn(shape, device=device) for shape in ((rows, width), (width, width), (r.batch, width))
        )
        x64, w64, net = x.double(), w.double(), TanhNet(width, width, 4).to(device)
        product = 2 * rows * width * width
        found = {
            "flops": Trial(product, lambda: (linear_tanh if x.is_cpu else served)(x, w)),
            "flops64": Trial(product, lambda: x64 @ w64.T),
            "gradient": Trial(6 * r.batch * weights(net), lambda: net(states).square().mean().backward()),
        }
        if self.models.autoencoder.trained:
            encoder = make_encoder(self.config, self.spec).to(device)
            frames = self._frames(min(40, r.length) if device.type == "cpu" else r.length).to(device)

            def convolve() -> None:
                with images:
                    loss = encoder.loss(frames)
                loss.backward()

            found["convolution"] = Trial(6 * len(frames) * self.autoencoder.macs, convolve)
        return found
