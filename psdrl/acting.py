"""Acting: the greedy policy of the one-step return (Eq. 8), with a hidden state per environment."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psdrl.kernels.lookahead import factored, reference

if TYPE_CHECKING:
    from psdrl.agent import Agent


def greedy(returns: Tensor, generator: torch.Generator) -> Tensor:
    """Best action (n,) of returns (n, A); ties within float tolerance are broken at random."""
    best = torch.isclose(returns, returns.amax(1, keepdim=True))
    lots = torch.rand(returns.shape, generator=generator, device=returns.device)
    return torch.where(best, lots, -1.0).argmax(1)


class Actor:
    """Plays N environments; training and evaluation have one each, so neither disturbs the other."""

    def __init__(self, agent: "Agent", num_envs: int, seed: int) -> None:
        self.agent = agent
        self.hidden = torch.zeros(num_envs, agent.config.forward.recurrent, device=agent.device, dtype=agent.dtype)
        self.generator = torch.Generator(agent.device).manual_seed(seed)

    def start(self, started: NDArray[np.bool_]) -> None:
        """New episodes begin where `started` (N,): h <- 0 (line 21)."""
        if started.any():
            self.hidden[torch.from_numpy(started).to(self.hidden.device)] = 0.0

    @torch.no_grad()
    def act(self, observations: NDArray, epsilon: float) -> NDArray[np.int64]:
        """Actions (N,) for observations (N, ...), and h_{t+1} for the actions taken (lines 14, 15 and 17)."""
        agent, models = self.agent, self.agent.models
        latents = models.encode(torch.from_numpy(observations).to(agent.device))
        lookahead = factored.lookahead if agent.config.update_path == "fast" else reference.lookahead
        ahead = lookahead(
            models.forward_model,
            agent.model,
            models.termination,
            models.value,
            latents,
            self.hidden,
            agent.config.value.discount,
            agent.config.termination.threshold,
        )
        count, num_actions = ahead.returns.shape
        actions = greedy(ahead.returns, self.generator)
        rows = torch.arange(count, device=agent.device)
        lots = torch.rand(count, generator=self.generator, device=agent.device) < epsilon
        random = torch.randint(num_actions, (count,), generator=self.generator, device=agent.device)
        actions = torch.where(lots, random, actions)
        advanced = ahead.hidden[rows, actions]
        if agent.config.policy.random_action_hidden == "keep":
            advanced = torch.where(lots[:, None], self.hidden, advanced)
        self.hidden = advanced
        return actions.cpu().numpy()
