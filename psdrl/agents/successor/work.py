"""What a gradient step, a draw and an action do, and what they need of memory: for the cost model, `psdrl.cost`."""

import torch
from torch import Tensor

from psdrl.agents.successor.learning import make_optimiser, make_step, noise_shape, successor_losses
from psdrl.agents.successor.network import Networks
from psdrl.agents.successor.settings import SuccessorConfig
from psdrl.envs.vector import EnvSpec
from psdrl.runtime.work import Count, Loop, Phase, Trial, Work, Workload, adam, count, weights

# Besides losses and gradient: clipping and Adam are 15 to 23 operations, counted with a dispatch mode; drawing a batch
# is work for the host that takes as long as 10 to 50 of them. Regression and draws: 25, counted likewise.
OPTIMISER, BATCH, REGRESSION = 20, 30, 25


class SuccessorWorkload(Workload):
    """SU's work: its gradient step, its regression and its actions, run on the meta device."""

    def __init__(self, config: SuccessorConfig, spec: EnvSpec) -> None:
        self.config, self.spec, self.capacity = config, spec, config.replay.capacity
        with torch.device("meta"):
            self.networks = Networks(config.network, spec, config.replay.stack)
            self.root = torch.zeros(config.network.features, config.network.features)
            self.step = count(self._gradient, *self._batch())

    def _gradient(self, *batch: Tensor) -> None:
        losses = successor_losses(self.networks, self.root, *batch, self.config.learning)
        (losses.reward + losses.successor + losses.q).backward()

    def _frames(self, rows: int, more: int = 0) -> Tensor:
        shape = (rows, self.config.replay.stack + more, *self.spec.shape)
        return torch.zeros(shape, dtype=getattr(torch, self.spec.dtype))

    def _batch(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        rows, features = self.config.learning.batch, self.config.network.features
        noise = torch.zeros(noise_shape(self.config.learning, features, self.spec.num_actions))
        zeros = torch.zeros(rows)
        return self._frames(rows, 1), torch.zeros(rows, dtype=torch.long), zeros, zeros, noise

    def updates(self) -> range:
        every = self.config.learning.every
        return range(max(self.config.exploration.random_steps, every), self.config.steps, every)

    def update(self, transitions: int) -> dict[str, Phase]:
        """One gradient step, whatever the buffer holds, and its share of a regression."""
        learning, size = self.config.learning, weights(self.networks.online)
        step = Work(
            gradient=2 * (self.step.macs - self.step.convolutions),
            convolution=2 * self.step.convolutions,
            weights=self.step.weights + size,  # gradients are written
            activations=2 * self.step.cells,
            casts=self.step.weights + size,
            launches=self.step.launches + OPTIMISER + BATCH,
        )
        with torch.device("meta"):
            frames = self._frames(learning.batch, 1).nbytes
        copies = 2 * frames + 2 * 4 * size * learning.every / learning.target_every
        return {
            "posterior": self._regression(),
            "learning": Phase((Loop((step, adam(size), Work(bytes=copies)), captured=True),)),
        }

    def _regression(self) -> Phase:
        """phi of all that was seen since the last draw, their sums, a factor and its inverse in float64."""
        config, k = self.config, self.config.network.features
        rows = config.exploration.draw_every * config.num_envs
        online = self.networks.online
        with torch.device("meta"), torch.no_grad():
            actions = torch.zeros(rows, dtype=torch.long)
            found = count(lambda frames: online.local_of(online.hidden(frames), actions), self._frames(rows))
        products = Work(
            flops=2 * found.macs, weights=found.weights, casts=found.weights, launches=found.launches + BATCH
        )
        regression = Work(flops64=rows * k**2 + (1 / 3 + 1) * k**3, launches=REGRESSION)
        return Phase((Loop((products, regression), config.learning.every / rows),))

    def act(self, rows: int) -> Loop:
        """The network is not asked in the random steps."""
        asked = max(0.0, 1 - self.config.exploration.random_steps / self.config.steps)
        return self._loop(rows, asked)

    def play(self) -> Loop:
        """By the mean of w."""
        return self._loop(1)

    def _loop(self, rows: int, times: float = 1.0) -> Loop:
        with torch.device("meta"), torch.no_grad():
            perturbations = torch.zeros(rows, self.config.network.features)
            noise = torch.zeros(rows, self.spec.num_actions)
            found: Count = count(
                lambda frames: (self.networks.values(frames, perturbations) + noise).argmax(1), self._frames(rows)
            )
        work = Work(flops=2 * found.macs, weights=found.weights, casts=found.weights, launches=found.launches)
        return Loop((work,), times, captured=True)

    def memory(self) -> dict[str, float]:
        """The trained network has a gradient and Adam's two averages besides; the target network has nothing."""
        replay = self.config.replay
        transition = self._frames(1).nbytes / replay.stack + 8 + 4 + 3
        return {
            "replay": 1.005 * replay.capacity * transition,
            "networks": 4 * 5 * weights(self.networks.online),
            "activations": 4 * self.step.numbers,
        }

    def trials(self) -> dict[str, Trial]:
        """A gradient step, and the target network's part of it."""
        config = self.config
        networks, batch = Networks(config.network, self.spec, config.replay.stack), self._batch()
        optimiser = make_optimiser(networks.online, config.learning.learning_rate)
        step = make_step(networks, torch.zeros(self.root.shape), optimiser, config.learning)
        gradient = Trial(2 * self.step.macs, lambda: step(*batch), self.step.launches + OPTIMISER)
        frames, perturbations = batch[0][:, 1:], torch.zeros(config.learning.batch, config.network.features)
        forward = torch.no_grad()(networks.values)
        found = count(self.networks.values, frames.to("meta"), perturbations.to("meta"))
        values = Trial(2 * found.macs, lambda: forward(frames, perturbations), found.launches)
        return {"flops": values, "gradient": gradient, "convolution": gradient}
