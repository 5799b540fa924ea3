"""Acting: the greedy policy of the K-step return (Eq. 8; K = 1 in the paper), with a hidden state per environment."""

import copy
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from psdrl.agents.psdrl import oracle
from psdrl.agents.psdrl.flat_model import Folded
from psdrl.agents.psdrl.lookahead import Lookahead
from psdrl.agents.psdrl.world_model import SampledModel
from psdrl.runtime.device import is_gpu, pinned_empty, uploaded
from psdrl.runtime.graphs import Step

if TYPE_CHECKING:
    from psdrl.agents.psdrl.agent import PsdrlAgent


def greedy(returns: Tensor, generator: torch.Generator) -> Tensor:
    """Best action (n,) of returns (n, A); ties within float tolerance are broken at random."""
    best = torch.isclose(returns, returns.amax(1, keepdim=True))
    tie_noise = torch.rand(returns.shape, generator=generator, device=returns.device)
    return torch.where(best, tie_noise, -1.0).argmax(1)


class Seat:
    """From where an actor on the fast path decides: a generator, the folded model and, with CUDA graphs, the graph that
    reads both. It knows no actor, so evaluation after evaluation takes the same one (`Seat.taken`)."""

    def __init__(self, agent: "PsdrlAgent") -> None:
        self.models, self.execution, self.device = agent.models, agent.execution, agent.device
        self.generator = torch.Generator(agent.device)
        self.keep_hidden = "keep-hidden" in agent.config.released
        self.run: Step = agent.execution.captured("act", self.decide, generators=(self.generator,))
        self._model: SampledModel | None = None  # the one whose world is folded here
        self._lookahead: Lookahead | None = None

    @classmethod
    def taken(cls, agent: "PsdrlAgent", user: object) -> "Seat":
        """A seat until the user is gone; one that another has left, if graphs were captured for it."""
        if not agent.execution.graphs:
            return cls(agent)
        spare = agent.execution.spare.setdefault("act", [])
        seat = spare.pop() if spare else cls(agent)
        weakref.finalize(user, spare.append, seat)
        return seat

    def fold(self, model: SampledModel) -> None:
        """Fold a newly sampled model; into the same memory as the last one where graphs read it. Weights that autocast
        would cast in every action are cast here, once per model: 105 MB are then read per action instead of 420."""
        if model is self._model:
            return
        self._model, models = model, self.models
        world = models.forward_model.fold(model)
        new = Lookahead(world, models.termination, models.acting_value)
        if self.execution.precision == "bf16" and isinstance(world, Folded):
            networks = (copy.deepcopy(network).to(torch.bfloat16) for network in new[1:])
            new = Lookahead(world.lowered(torch.bfloat16), *networks)  # type: ignore[arg-type]
        if self._lookahead is None or not self.execution.graphs:
            own = pytree.tree_map_only(Tensor, Tensor.clone, new.world) if self.execution.graphs else new.world
            self._lookahead = new._replace(world=own)
            return
        for old, x in zip(_tensors(self._lookahead), _tensors(new), strict=True):
            if old is not x:
                old.copy_(x)

    def decide(self, observations: Tensor, hidden: Tensor, epsilon: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (N,) and h_{t+1} (N, H) for observations (N, ...) and h_t."""
        lookahead = self._lookahead
        assert lookahead is not None
        with self.execution.image_autocast():
            latents = self.models.autoencoder.encode(observations).to(hidden)
        with self.execution.autocast():
            shape = len(latents), lookahead.world.num_actions
            tie_noise = torch.rand(shape, generator=self.generator, device=self.device)
            actions, next_hidden = lookahead.action(latents, hidden, tie_noise)
        return explored(actions, hidden, next_hidden, epsilon, self.generator, self.keep_hidden)


def _tensors(lookahead: Lookahead) -> list[Tensor]:
    """Whatever a lookahead reads."""
    world = [x for x in pytree.tree_leaves(lookahead.world) if isinstance(x, Tensor)]
    return [*world, *lookahead.termination.parameters(), *lookahead.value.parameters()]


def explored(
    actions: Tensor, hidden: Tensor, next_hidden: Tensor, epsilon: Tensor, generator: torch.Generator, keep_hidden: bool
) -> tuple[Tensor, Tensor]:
    """Random actions with probability epsilon, and the hidden state of the actions taken, out of (N, A, H)."""
    count, num_actions = next_hidden.shape[:2]
    rows = torch.arange(count, device=hidden.device)
    chosen = torch.rand(count, generator=generator, device=hidden.device) < epsilon
    random = torch.randint(num_actions, (count,), generator=generator, device=hidden.device)
    actions = torch.where(chosen, random, actions)
    advanced = next_hidden[rows, actions]
    if keep_hidden:
        advanced = torch.where(chosen[:, None], hidden, advanced)
    return actions, advanced


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
        self.seat = Seat.taken(agent, self)
        self.generator = self.seat.generator.manual_seed(seed)
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
        epsilon = self._epsilon if epsilon is None else epsilon
        epsilon = self.agent.config.epsilon(self.agent.step) if epsilon is None else epsilon
        chance = torch.full((), epsilon, device=self.hidden.device)
        run: Step = self._decide_plainly  # reads the sampled model where it lies, so it cannot be captured
        if self.agent.config.update_path == "fast":
            self.seat.fold(self.model)
            run = self.seat.run
        actions, self.hidden = run(self._on_device(observations), self.hidden, chance)
        return actions.cpu().numpy()

    def state_dict(self) -> dict[str, Any]:
        """h of the running episodes."""
        return {"hidden": self.hidden}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.hidden = state["hidden"].to(self.hidden)

    def _on_device(self, observations: NDArray) -> Tensor:
        """Observations where the networks are. The staging is free again: the last `act` waited for its actions."""
        source, device = torch.from_numpy(observations), self.agent.device
        if is_gpu(device) and self._staging is None:
            self._staging = pinned_empty(tuple(source.shape), source.dtype)
        return uploaded(source, device, self._staging)

    def _decide_plainly(self, observations: Tensor, hidden: Tensor, epsilon: Tensor) -> tuple[Tensor, Tensor]:
        """The same by the oracle."""
        models = self.agent.models
        latents = models.autoencoder.encode(observations)
        value = models.acting_value
        ahead = oracle.lookahead(models, self.model, value, latents, hidden, value.lookahead)
        actions = greedy(ahead.returns, self.generator)
        return explored(actions, hidden, ahead.hidden, epsilon, self.generator, self.seat.keep_hidden)
