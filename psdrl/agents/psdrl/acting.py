"""Acting: the greedy policy of the K-step return (Eq. 8; K = 1 in the paper), with a hidden state per environment."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from psdrl.agents.psdrl import oracle
from psdrl.agents.psdrl.lookahead import Lookahead
from psdrl.agents.psdrl.world_model import SampledModel, SampledWorld
from psdrl.runtime.device import is_gpu, pinned_empty, uploaded
from psdrl.runtime.graphs import Step

if TYPE_CHECKING:
    from psdrl.agents.psdrl.agent import PsdrlAgent


def greedy(returns: Tensor, generator: torch.Generator) -> Tensor:
    """Best action (n,) of returns (n, A); ties within float tolerance are broken at random."""
    best = torch.isclose(returns, returns.amax(1, keepdim=True))
    tie_noise = torch.rand(returns.shape, generator=generator, device=returns.device)
    return torch.where(best, tie_noise, -1.0).argmax(1)


class Actor:
    """Plays N environments; training and evaluation have one each, so neither disturbs the other."""

    def __init__(
        self,
        agent: "PsdrlAgent",
        num_envs: int,
        seed: int,
        model: SampledModel | None = None,
        epsilon: float | None = None,
    ) -> None:
        """`model`: to play by, instead of the one the agent sampled last; `epsilon`: instead of that of the run."""
        self.agent, self._fixed, self._epsilon = agent, model, epsilon
        self.hidden = agent.models.forward_model.no_hidden(num_envs)
        self.generator = torch.Generator(agent.device).manual_seed(seed)
        self._run: Step = self._decide_plainly  # reads the sampled model where it lies, so it cannot be captured
        if agent.config.update_path == "fast":
            self._run = agent.execution.captured("act", self._decide, generators=(self.generator,))
        self._model: SampledModel | None = None  # the one whose world `_world` is
        self._world: SampledWorld | None = None
        self._staging: Tensor | None = None  # pinned host memory, from which a GPU copies while the host goes on

    @property
    def model(self) -> SampledModel:
        """What it plays by."""
        return self._fixed or self.agent.model

    def start(self, started: NDArray[np.bool_]) -> None:
        """New episodes begin where `started` (N,): h <- 0 (line 21)."""
        if started.any():
            self.hidden[torch.from_numpy(started).to(self.hidden.device)] = 0.0

    @torch.no_grad()
    def act(self, observations: NDArray, epsilon: float | None = None) -> NDArray[np.int64]:
        """Actions (N,) for observations (N, ...), and h_{t+1} for the actions taken (lines 14, 15 and 17).

        epsilon: probability of a random action, the actor's own or that of the run if not given."""
        self._fold()
        epsilon = self._epsilon if epsilon is None else epsilon
        epsilon = self.agent.config.epsilon(self.agent.step) if epsilon is None else epsilon
        chance = torch.full((), epsilon, device=self.hidden.device)
        actions, self.hidden = self._run(self._on_device(observations), self.hidden, chance)
        return actions.cpu().numpy()

    def state_dict(self) -> dict[str, Any]:
        """h of the running episodes."""
        return {"hidden": self.hidden}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.hidden = state["hidden"].to(self.hidden)

    def _fold(self) -> None:
        """Fold a newly sampled model; into the same memory as the last one where graphs read it."""
        agent = self.agent
        if self.model is self._model or agent.config.update_path != "fast":
            return
        self._model = self.model
        new = agent.models.forward_model.fold(self.model)
        if self._world is None or not agent.execution.graphs:
            self._world = pytree.tree_map_only(Tensor, Tensor.clone, new) if agent.execution.graphs else new
            return
        for old, x in zip(pytree.tree_leaves(self._world), pytree.tree_leaves(new), strict=True):
            if isinstance(x, Tensor):
                old.copy_(x)

    def _on_device(self, observations: NDArray) -> Tensor:
        """Observations where the networks are. The staging is free again: the last `act` waited for its actions."""
        source, device = torch.from_numpy(observations), self.agent.device
        if is_gpu(device) and self._staging is None:
            self._staging = pinned_empty(tuple(source.shape), source.dtype)
        return uploaded(source, device, self._staging)

    def _decide(self, observations: Tensor, hidden: Tensor, epsilon: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (N,) and h_{t+1} (N, H) for observations (N, ...) and h_t."""
        agent, models = self.agent, self.agent.models
        assert self._world is not None
        with agent.execution.autocast():
            latents = models.autoencoder.encode(observations).to(hidden)
            shape = len(latents), self._world.num_actions
            tie_noise = torch.rand(shape, generator=self.generator, device=agent.device)
            lookahead = Lookahead(self._world, models.termination, models.acting_value)
            actions, next_hidden = lookahead.action(latents, hidden, tie_noise)
        return self._explore(actions, hidden, next_hidden, epsilon)

    def _decide_plainly(self, observations: Tensor, hidden: Tensor, epsilon: Tensor) -> tuple[Tensor, Tensor]:
        """The same by the oracle."""
        models = self.agent.models
        latents = models.autoencoder.encode(observations)
        value = models.acting_value
        ahead = oracle.lookahead(models, self.model, value, latents, hidden, value.lookahead)
        return self._explore(greedy(ahead.returns, self.generator), hidden, ahead.hidden, epsilon)

    def _explore(self, actions: Tensor, hidden: Tensor, next_hidden: Tensor, epsilon: Tensor) -> tuple[Tensor, Tensor]:
        """Random actions with probability epsilon, and the hidden state of the actions taken, out of (N, A, H)."""
        count, num_actions = next_hidden.shape[:2]
        rows = torch.arange(count, device=hidden.device)
        chosen = torch.rand(count, generator=self.generator, device=hidden.device) < epsilon
        random = torch.randint(num_actions, (count,), generator=self.generator, device=hidden.device)
        actions = torch.where(chosen, random, actions)
        advanced = next_hidden[rows, actions]
        if "keep-hidden" in self.agent.config.released:
            advanced = torch.where(chosen[:, None], hidden, advanced)
        return actions, advanced
