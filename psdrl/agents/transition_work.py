"""What agents that learn from single transitions share of their work, for the cost model, `psdrl.cost`."""

import torch
from torch import Tensor

from psdrl.agents.stacks import TargetNetworks
from psdrl.agents.transitions import TransitionConfig
from psdrl.envs.vector import EnvSpec
from psdrl.runtime.work import Count, Loop, Phase, Work, Workload, adam, weights

# Besides losses and gradient: clipping and Adam are 15 to 23 operations, counted with a dispatch mode; drawing a batch
# is work for the host that takes as long as 10 to 50 of them.
OPTIMISER, BATCH = 20, 30


class TransitionWorkload(Workload):
    """What a gradient step does on the meta device; `step` counts it."""

    config: TransitionConfig
    networks: TargetNetworks
    step: Count

    def __init__(self, config: TransitionConfig, spec: EnvSpec) -> None:
        self.config, self.spec, self.capacity = config, spec, config.replay.capacity

    def frames(self, rows: int, more: int = 0) -> Tensor:
        """Stacks, with so many frames more."""
        shape = (rows, self.config.replay.stack + more, *self.spec.shape)
        return torch.zeros(shape, dtype=getattr(torch, self.spec.dtype))

    def updates(self) -> range:
        """The steps at which a gradient step is due."""
        every = self.config.learning.every
        return range(max(self.config.exploration.random_steps, every), self.config.steps, every)

    def learning(self) -> Phase:
        """One gradient step, whatever the buffer holds, and its share of a copy into the target network."""
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
            frames = self.frames(learning.batch, 1).nbytes
        copies = 2 * frames + 2 * 4 * size * learning.every / learning.target_every
        return Phase((Loop((step, adam(size), Work(bytes=copies)), captured=True),))

    def taken(self, transition: float, networks: int) -> dict[str, float]:
        """Bytes, with so many of a transition besides its frame, and so many times the trained network's weights."""
        replay = self.config.replay
        return {
            "replay": 1.005 * replay.capacity * (self.frames(1).nbytes / replay.stack + transition),
            "networks": 4 * networks * weights(self.networks.online),
            "activations": 4 * self.step.numbers,
        }
