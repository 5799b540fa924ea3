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
        agent = self.agent
        latents = agent.models.encode(torch.from_numpy(observations).to(agent.device))
        decide = self._decide if agent.config.update_path == "fast" else self._decide_plainly
        actions, next_hidden = decide(latents)
        count, num_actions = next_hidden.shape[:2]
        rows = torch.arange(count, device=agent.device)
        lots = torch.rand(count, generator=self.generator, device=agent.device) < epsilon
        random = torch.randint(num_actions, (count,), generator=self.generator, device=agent.device)
        actions = torch.where(lots, random, actions)
        advanced = next_hidden[rows, actions]
        if agent.config.policy.random_action_hidden == "keep":
            advanced = torch.where(lots[:, None], self.hidden, advanced)
        self.hidden = advanced
        return actions.cpu().numpy()

    def _decide(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Greedy actions (N,) and h' of all actions (N, A, H) for latent states (N, Z)."""
        agent, models, config = self.agent, self.agent.models, self.agent.config
        model = factored.folded(models.forward_model, agent.model)
        ahead = factored.predict(
            model, models.termination, latents, self.hidden, config.termination.threshold, models.bounds
        )
        lots = torch.rand(ahead.rewards.shape, generator=self.generator, device=agent.device)
        return ahead.action(models.value, config.value.discount, lots), ahead.latents_hidden[..., latents.shape[1] :]

    def _decide_plainly(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """The same by the oracle."""
        agent, models, config = self.agent, self.agent.models, self.agent.config
        ahead = reference.lookahead(
            models.forward_model,
            agent.model,
            models.termination,
            models.value,
            latents,
            self.hidden,
            config.value.discount,
            config.termination.threshold,
            models.bounds,
        )
        return greedy(ahead.returns, self.generator), ahead.hidden
