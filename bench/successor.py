"""Updates per second of Successor Uncertainties at the paper's sizes, beside a plain eager version of the same agent:

    python -m bench.successor [--preset paper] [--actions 18] [--repeat 5]

Plain: PyTorch as one would write it first. phi and psi of all actions are formed where those of the actions taken
suffice, Adam runs parameter by parameter, the covariance's root is formed anew in every gradient step though it changes
every 250 steps, frames are stacked twice. Both start from the
same weights and do the same steps on the same batches; if the results differ no speed is reported.
"""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bench import gradient_steps
from psdrl.agents.successor.agent import SuccessorAgent


class Plain:
    """The same gradient step, written plainly."""

    def __init__(self, agent: SuccessorAgent) -> None:
        self.config, self.networks = agent.config.learning, copy.deepcopy(agent.networks)
        gram = agent.posterior.gram
        identity = torch.eye(len(gram), dtype=gram.dtype)
        self.precision = gram.tril() + gram.tril(-1).T + agent.posterior.ridge * identity
        self.beta = agent.posterior.beta
        self.optimiser = torch.optim.Adam(self.networks.online.parameters(), self.config.learning_rate, foreach=False)

    def step(self, frames: Tensor, actions: Tensor, rewards: Tensor, terminated: Tensor, noise: Tensor) -> Tensor:
        """Losses (3,) of a batch."""
        online, target, rows = self.networks.online, self.networks.target, torch.arange(len(actions))
        root = torch.linalg.inv(torch.linalg.cholesky(self.precision / self.beta**2)).float()
        with torch.no_grad():
            hidden = target.hidden(frames[:, 1:].clone())
            psi, w = target.successors(hidden), online.w[0]
            values = (psi @ w)[:, :, None] + psi @ (noise @ root).T
            best = F.one_hot(values.argmax(1), psi.shape[1]).float().mean(1)
            ahead = self.config.discount * (1 - terminated)[:, None] * (best[:, :, None] * psi).sum(1)
        hidden = online.hidden(frames[:, :-1].clone())
        phi, psi = online.local(hidden)[rows, actions], online.successors(hidden)[rows, actions]
        losses = torch.stack(
            [
                F.huber_loss(phi @ online.w[0], rewards),
                F.huber_loss(psi, phi + ahead),
                F.huber_loss(psi @ online.w[0], rewards + ahead @ online.w[0].detach()),
            ]
        )
        self.optimiser.zero_grad()
        losses.sum().backward()
        torch.nn.utils.clip_grad_norm_(online.parameters(), self.config.clip)
        self.optimiser.step()
        return losses.detach()


def batches(agent: SuccessorAgent) -> list[tuple[Tensor, ...]]:
    """The same for both."""
    rng, generator = np.random.default_rng(1), torch.Generator().manual_seed(1)
    shape = (agent.config.learning.draws, agent.config.network.features)
    return [
        (*agent.replay.sample(agent.config.learning.batch, rng)[:4], torch.randn(shape, generator=generator))
        for _ in range(gradient_steps.STEPS)
    ]


def main() -> None:
    """Measure in turn, print medians, the ratio and the forecast for an A100."""
    chosen = gradient_steps.options(__doc__)
    agent: Any = gradient_steps.filled_agent("successor", chosen.preset, chosen.actions)
    agent._draw()  # its posterior has seen the buffer
    ours = lambda *batch: torch.stack(agent.gradient_step(*batch))[:3]  # noqa: E731
    gradient_steps.compare(chosen, agent, ours, Plain(agent).step, batches(agent))
    gradient_steps.predict("successor", chosen.actions)


if __name__ == "__main__":
    main()
