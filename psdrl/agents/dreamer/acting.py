"""Acting: the recurrent state follows each episode; actions are sampled from the policy, or its most likely ones."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psdrl.agents.dreamer.categorical import draw
from psdrl.agents.dreamer.networks import Networks, States
from psdrl.runtime.device import is_gpu, pinned_empty, uploaded
from psdrl.runtime.execution import Execution
from psdrl.runtime.graphs import Step

Policy = Literal["mode", "sample"]


def make_decision(networks: Networks, execution: Execution, policy: Policy) -> Step:
    """(observations, h, z, last actions, 1 where an episode goes on, noise) -> actions, h, z.

    The latent state is drawn in either policy; noise (N, G + 1) has one column more, for the action."""
    world = networks.world

    def decide(
        observations: Tensor, hidden: Tensor, sample: Tensor, last: Tensor, keep: Tensor, noise: Tensor
    ) -> tuple[Tensor, ...]:
        with execution.autocast():
            goes_on = keep[:, None]
            before = States(hidden * goes_on, sample * goes_on)
            action_input = world.recurrent.action_inputs(last) * goes_on
            embedded = world.embedded(world.inputs(observations))
            state, _ = world.recurrent.observe(before, action_input, embedded, noise[:, :-1])
            logits = networks.actor(state.features).to(hidden.dtype)
        actions = logits.argmax(-1) if policy == "mode" else draw(logits.softmax(-1), noise[:, -1])
        return actions, state.hidden, state.sample

    return decide


class LatentActor:
    """Plays N environments; a share of its actions is random, and where all are, the networks are not asked: an episode
    that is under way when they first are begins for them there, as sequences in replay do."""

    def __init__(
        self,
        networks: Networks,
        num_envs: int,
        num_actions: int,
        random_share: Callable[[], float],
        rng: np.random.Generator,
        decide: Step,
    ) -> None:
        self.num_actions, self.random_share, self.rng, self._decide = num_actions, random_share, rng, decide
        self.state = networks.world.recurrent.start(num_envs)
        self.groups, self.device = networks.world.recurrent.groups, self.state.hidden.device
        self.last = np.zeros(num_envs, np.int64)  # actions
        self.running = np.zeros(num_envs, np.float32)  # 1 where the state is that of a running episode
        self._staging: Tensor | None = None  # pinned host memory, from which a GPU copies while the host goes on

    def start(self, started: NDArray[np.bool_]) -> None:
        """New episodes begin where `started` (N,)."""
        self.running[started] = 0.0

    @torch.no_grad()
    def act(self, observations: NDArray) -> NDArray[np.int64]:
        """Actions (N,) for observations (N, *shape), and the states after them."""
        count, share = len(observations), self.random_share()
        random = self.rng.random(count) < share
        actions = self.rng.integers(self.num_actions, size=count)
        if share < 1:
            noise = torch.from_numpy(self.rng.random((count, self.groups + 1), np.float32))
            host = (torch.from_numpy(self.last), torch.from_numpy(self.running), noise)
            last, keep, noise = (uploaded(x, self.device) for x in host)
            chosen, *state = self._decide(self._on_device(observations), *self.state, last, keep, noise)
            self.state = States(*state)
            actions = np.where(random, actions, chosen.cpu().numpy())
            self.running[:] = 1.0
        self.last = actions
        return actions

    def _on_device(self, observations: NDArray) -> Tensor:
        """Observations where the networks are. The staging is free again: the last `act` waited for its actions."""
        source = torch.from_numpy(observations)
        if is_gpu(self.device) and self._staging is None:
            self._staging = pinned_empty(tuple(source.shape), source.dtype)
        return uploaded(source, self.device, self._staging)

    def state_dict(self) -> dict[str, Any]:
        """States of the running episodes."""
        return {**self.state._asdict(), "last": self.last, "running": self.running}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        last, running = np.array(state["last"]), np.array(state["running"])
        if not ((last >= 0) & (last < self.num_actions)).all() or not np.isin(running, (0, 1)).all():
            raise ValueError("an episode's last action is none of the environment's, or it neither runs nor begins")
        hidden, sample = (state[name].to(old) for name, old in self.state._asdict().items())
        self.state, self.last, self.running = States(hidden, sample), last, running
