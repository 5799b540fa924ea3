"""What a gradient step and an action do, and what they need of memory: for the cost model, `psdrl.cost`."""

from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor

from psdrl.agents.bootstrap.acting import vote
from psdrl.agents.bootstrap.learning import bootstrap_loss, make_optimiser, make_step
from psdrl.agents.bootstrap.network import Networks
from psdrl.agents.bootstrap.settings import BootstrapConfig
from psdrl.envs.vector import EnvSpec
from psdrl.replay.frames import Transitions
from psdrl.runtime.work import CPU, NOTHING, Count, Loop, Phase, Trial, Work, Workload, adam, count, weights

# Besides loss and gradient: clipping and Adam are 15 to 23 operations, counted with a dispatch mode; drawing a batch is
# work for the host that takes as long as 10 to 50 of them.
OPTIMISER, BATCH = 20, 30


class BootstrapWorkload(Workload):
    """B+P's work: its gradient step and its actions, run on the meta device."""

    def __init__(self, config: BootstrapConfig, spec: EnvSpec) -> None:
        self.config, self.spec, self.capacity = config, spec, config.replay.capacity
        with torch.device("meta"):
            self.networks = Networks(config.network, spec, config.replay.stack)
            self.step = count(self._gradient, self._batch())

    def _gradient(self, batch: Transitions) -> None:
        bootstrap_loss(self.networks, *batch, self.config.learning.discount)[0].backward()

    def _frames(self, rows: int, more: int = 0) -> Tensor:
        shape = (rows, self.config.replay.stack + more, *self.spec.shape)
        return torch.zeros(shape, dtype=getattr(torch, self.spec.dtype))

    def _batch(self) -> Transitions:
        rows, heads = self.config.learning.batch, self.config.network.heads
        actions = torch.zeros(rows, dtype=torch.long)
        return Transitions(
            self._frames(rows, 1), actions, torch.zeros(rows), torch.zeros(rows), torch.ones(rows, heads)
        )

    def updates(self) -> range:
        every = self.config.learning.every
        return range(max(self.config.exploration.random_steps, every), self.config.steps, every)

    def update(self, transitions: int) -> dict[str, Phase]:
        """One gradient step, whatever the buffer holds."""
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
        return {"learning": Phase((Loop((step, adam(size), Work(bytes=copies)), captured=True),))}

    def act(self, rows: int) -> Loop:
        """The networks are not asked where all actions are random."""
        steps = np.linspace(0, self.config.steps, 1000)
        asked = 1 - float(np.mean([self.config.random_share(int(step)) ** rows for step in steps]))
        with torch.device("meta"):
            heads = torch.zeros(rows, dtype=torch.long)
            found = count(lambda frames: self.networks.chosen(frames, heads).argmax(1), self._frames(rows))
        return self._loop(found, asked)

    def play(self) -> Loop:
        """All heads vote."""
        with torch.device("meta"):
            return self._loop(count(lambda frames: vote(self.networks.q(frames)), self._frames(1)))

    def _loop(self, found: Count, times: float = 1.0) -> Loop:
        """Weights are read; a few rows gather their heads' weights first, which reads, writes and reads them."""
        moved = found.weights + 3 * found.numbers
        work = Work(flops=2 * found.macs, weights=moved, casts=found.weights, launches=found.launches)
        return Loop((work,), times, captured=True)

    def memory(self) -> dict[str, float]:
        """The trained network has a gradient and Adam's two averages besides; target and prior have nothing."""
        replay = self.config.replay
        transition = self._frames(1).nbytes / replay.stack + 8 + 4 + 3 + -(-self.config.network.heads // 8)
        return {
            "replay": 1.005 * replay.capacity * transition,
            "networks": 4 * 6 * weights(self.networks.online),
            "activations": 4 * self.step.numbers,
        }

    def trials(self, device: torch.device = CPU, images: AbstractContextManager = NOTHING) -> dict[str, Trial]:
        """A gradient step, and the same networks without one."""
        config = self.config
        networks = Networks(config.network, self.spec, config.replay.stack).to(device)
        batch = Transitions(*(x.to(device) for x in self._batch()))
        step = make_step(networks, make_optimiser(networks, config.learning.learning_rate), config.learning)
        gradient = Trial(2 * self.step.macs, lambda: step(*batch), self.step.launches + OPTIMISER)
        frames, forward = batch.frames[:, 1:], torch.no_grad()(networks.q)
        found = count(self.networks.q, frames.to("meta"))
        values = Trial(2 * found.macs, lambda: forward(frames), found.launches)
        return {"flops": values, "gradient": gradient, "convolution": gradient}
