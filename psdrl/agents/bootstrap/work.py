"""What a gradient step and an action do, and what they need of memory: for the cost model, `psdrl.cost`."""

from contextlib import AbstractContextManager

import numpy as np
import torch

from psdrl.agents.bootstrap.acting import vote
from psdrl.agents.bootstrap.learning import bootstrap_loss, make_step
from psdrl.agents.bootstrap.network import Networks
from psdrl.agents.bootstrap.settings import BootstrapConfig
from psdrl.agents.transition_work import OPTIMISER, TransitionWorkload
from psdrl.agents.transitions import make_optimiser
from psdrl.envs.vector import EnvSpec
from psdrl.replay.frames import Transitions
from psdrl.runtime.work import CPU, NOTHING, Count, Loop, Phase, Trial, Work, count


class BootstrapWorkload(TransitionWorkload):
    """B+P's work: its gradient step and its actions, run on the meta device."""

    config: BootstrapConfig
    networks: Networks

    def __init__(self, config: BootstrapConfig, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        with torch.device("meta"):
            self.networks = Networks(config.network, spec, config.replay.stack)
            self.step = count(self._gradient, self._batch())

    def _gradient(self, batch: Transitions) -> None:
        bootstrap_loss(self.networks, *batch, self.config.learning.discount)[0].backward()

    def _batch(self) -> Transitions:
        rows, heads = self.config.learning.batch, self.config.network.heads
        actions = torch.zeros(rows, dtype=torch.long)
        return Transitions(self.frames(rows, 1), actions, torch.zeros(rows), torch.zeros(rows), torch.ones(rows, heads))

    def update(self, transitions: int) -> dict[str, Phase]:
        """One gradient step."""
        return {"learning": self.learning()}

    def act(self, rows: int) -> Loop:
        """The networks are not asked where all actions are random."""
        steps = np.linspace(0, self.config.steps, 1000)
        asked = 1 - float(np.mean([self.config.random_share(int(step)) ** rows for step in steps]))
        with torch.device("meta"):
            heads = torch.zeros(rows, dtype=torch.long)
            found = count(lambda frames: self.networks.chosen(frames, heads).argmax(1), self.frames(rows))
        return self._loop(found, asked)

    def play(self) -> Loop:
        """All heads vote."""
        with torch.device("meta"):
            return self._loop(count(lambda frames: vote(self.networks.q(frames)), self.frames(1)))

    def _loop(self, found: Count, times: float = 1.0) -> Loop:
        """Weights are read; a few rows gather their heads' weights first, which reads, writes and reads them."""
        moved = found.weights + 3 * found.numbers
        work = Work(flops=2 * found.macs, weights=moved, casts=found.weights, launches=found.launches)
        return Loop((work,), times, captured=True)

    def memory(self) -> dict[str, float]:
        """The trained network has a gradient and Adam's two averages besides; target and prior have nothing."""
        return self.taken(8 + 4 + 3 + -(-self.config.network.heads // 8), 6)

    def trials(self, device: torch.device = CPU, images: AbstractContextManager = NOTHING) -> dict[str, Trial]:
        """A gradient step, and the same networks without one."""
        config = self.config
        networks = Networks(config.network, self.spec, config.replay.stack).to(device)
        batch = Transitions(*(x.to(device) for x in self._batch()))
        step = make_step(networks, make_optimiser(networks.online, config.learning.learning_rate), config.learning)
        gradient = Trial(2 * self.step.macs, lambda: step(*batch), self.step.launches + OPTIMISER)
        frames, forward = batch.frames[:, 1:], torch.no_grad()(networks.q)
        found = count(self.networks.q, frames.to("meta"))
        values = Trial(2 * found.macs, lambda: forward(frames), found.launches)
        return {"flops": values, "gradient": gradient, "convolution": gradient}
