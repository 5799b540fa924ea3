"""What a gradient step, a draw and an action do, and what they need of memory: for the cost model, `psdrl.cost`."""

from contextlib import AbstractContextManager

import torch
from torch import Tensor

from psdrl.agents.successor.learning import make_step, noise_shape, successor_losses
from psdrl.agents.successor.network import Networks
from psdrl.agents.successor.settings import SuccessorConfig
from psdrl.agents.transition_work import BATCH, OPTIMISER, TransitionWorkload
from psdrl.agents.transitions import make_optimiser
from psdrl.envs.vector import EnvSpec
from psdrl.runtime.work import CPU, NOTHING, Count, Loop, Phase, Trial, Work, count

REGRESSION = 25  # operations of regression and draws, counted with a dispatch mode


class SuccessorWorkload(TransitionWorkload):
    """SU's work: its gradient step, its regression and its actions, run on the meta device."""

    config: SuccessorConfig
    networks: Networks

    def __init__(self, config: SuccessorConfig, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        with torch.device("meta"):
            self.networks = Networks(config.network, spec, config.replay.stack)
            self.root = torch.zeros(config.network.features, config.network.features)
            self.step = count(self._gradient, *self._batch())

    def _gradient(self, *batch: Tensor) -> None:
        frames, actions, rewards, terminated, noise = batch
        learning = self.config.learning
        losses = successor_losses(self.networks, self.root, frames, actions, rewards, terminated, noise, learning)
        (losses.reward + losses.successor + losses.q).backward()

    def _batch(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        rows, features = self.config.learning.batch, self.config.network.features
        noise = torch.zeros(noise_shape(self.config.learning, features, self.spec.num_actions))
        zeros = torch.zeros(rows)
        return self.frames(rows, 1), torch.zeros(rows, dtype=torch.long), zeros, zeros, noise

    def update(self, transitions: int) -> dict[str, Phase]:
        """One gradient step, and its share of a regression."""
        return {"posterior": self._regression(), "learning": self.learning()}

    def _regression(self) -> Phase:
        """phi of all that was seen since the last draw, their sums, a factor and its inverse in float64."""
        config, k = self.config, self.config.network.features
        rows = config.exploration.draw_every * config.num_envs
        online = self.networks.online
        with torch.device("meta"), torch.no_grad():
            actions = torch.zeros(rows, dtype=torch.long)
            found = count(lambda frames: online.local_of(online.hidden(frames), actions), self.frames(rows))
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
                lambda frames: (self.networks.values(frames, perturbations) + noise).argmax(1), self.frames(rows)
            )
        work = Work(flops=2 * found.macs, weights=found.weights, casts=found.weights, launches=found.launches)
        return Loop((work,), times, captured=True)

    def memory(self) -> dict[str, float]:
        """The trained network has a gradient and Adam's two averages besides; the target network has nothing."""
        return self.taken(8 + 4 + 3, 5)

    def trials(self, device: torch.device = CPU, images: AbstractContextManager = NOTHING) -> dict[str, Trial]:
        """A gradient step, and the target network's part of it."""
        config = self.config
        networks = Networks(config.network, self.spec, config.replay.stack).to(device)
        batch = [x.to(device) for x in self._batch()]
        optimiser = make_optimiser(networks.online, config.learning.learning_rate)
        step = make_step(networks, torch.zeros(self.root.shape, device=device), optimiser, config.learning)
        gradient = Trial(2 * self.step.macs, lambda: step(*batch), self.step.launches + OPTIMISER)
        frames = batch[0][:, 1:]
        perturbations = torch.zeros(config.learning.batch, config.network.features, device=device)
        forward = torch.no_grad()(networks.values)
        found = count(self.networks.values, frames.to("meta"), perturbations.to("meta"))
        values = Trial(2 * found.macs, lambda: forward(frames, perturbations), found.launches)
        return {"flops": values, "gradient": gradient, "convolution": gradient}
