"""Acting: one head per episode, greedily, with random actions by a schedule; or a vote of all heads."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psdrl.agents.bootstrap.network import Networks
from psdrl.agents.stacks import Stacks
from psdrl.runtime.device import uploaded
from psdrl.runtime.execution import Execution


def vote(q: Tensor) -> Tensor:
    """Actions (n,) that most heads of q (K, n, A) prefer; ties go to the lowest-numbered head among their voters."""
    preferred = q.argmax(2)
    votes = (preferred[:, None] == preferred[None]).sum(1)  # (K, n): how many agree with each head
    return preferred.gather(0, votes.argmax(0, keepdim=True))[0]  # argmax: the first of equals


class HeadActor:
    """Plays N environments in training: a head per environment, drawn when its episode starts."""

    def __init__(
        self,
        networks: Networks,
        stacks: Stacks,
        num_envs: int,
        num_actions: int,
        random_share: Callable[[], float],
        rng: np.random.Generator,
        execution: Execution,
    ) -> None:
        self.stacks, self.num_actions, self.random_share, self.rng = stacks, num_actions, random_share, rng
        self.num_heads = networks.online.heads.heads
        self.heads = np.zeros(num_envs, np.int64)

        def greedy(frames: Tensor, heads: Tensor) -> tuple[Tensor, ...]:
            with execution.autocast():
                return (networks.chosen(frames, heads).argmax(1),)

        self._greedy = execution.kept("act", greedy)  # it knows no actor: all of them share its graphs

    def start(self, started: NDArray[np.bool_]) -> None:
        """New episodes begin where `started` (N,): a new head each."""
        self.stacks.start(started)
        self.heads[started] = self.rng.integers(self.num_heads, size=int(started.sum()))

    def state_dict(self) -> dict[str, Any]:
        """Heads and frames of the running episodes."""
        return {"heads": self.heads, "stacks": self.stacks.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        heads = np.array(state["heads"])
        if not ((heads >= 0) & (heads < self.num_heads)).all():
            raise ValueError("an episode is played by a head that the agent does not have")
        self.heads = heads
        self.stacks.load_state_dict(state["stacks"])

    @torch.no_grad()
    def act(self, observations: NDArray) -> NDArray[np.int64]:
        """Actions (N,) for observations (N, *shape)."""
        self.stacks.push(observations)
        count, share = len(observations), self.random_share()
        random = self.rng.random(count) < share
        actions = self.rng.integers(self.num_actions, size=count)
        if not random.all():  # the networks are not asked in the 50,000 random steps: 30 ms each on a CPU
            heads = uploaded(torch.from_numpy(self.heads), self.stacks.device)
            (greedy,) = self._greedy(self.stacks.on_device(), heads)
            actions = np.where(random, actions, greedy.cpu().numpy())
        return actions


class VoteActor:
    """Plays N environments in evaluation: all heads vote, and with probability epsilon an action is random."""

    def __init__(
        self,
        networks: Networks,
        stacks: Stacks,
        execution: Execution,
        num_actions: int,
        epsilon: float,
        rng: np.random.Generator,
    ) -> None:
        self.stacks, self.num_actions, self.epsilon, self.rng = stacks, num_actions, epsilon, rng

        def elected(frames: Tensor) -> tuple[Tensor, ...]:
            with execution.autocast():
                return (vote(networks.q(frames)),)

        self._elected = execution.kept("vote", elected)  # a player is made for each evaluation, a graph once

    def start(self, started: NDArray[np.bool_]) -> None:
        """New episodes begin where `started` (N,)."""
        self.stacks.start(started)

    def state_dict(self) -> dict[str, Any]:
        """Frames of the running episodes."""
        return self.stacks.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.stacks.load_state_dict(state)

    @torch.no_grad()
    def act(self, observations: NDArray) -> NDArray[np.int64]:
        """Actions (N,) for observations (N, *shape)."""
        self.stacks.push(observations)
        (elected,) = self._elected(self.stacks.on_device())
        actions = elected.cpu().numpy()
        random = self.rng.random(len(actions)) < self.epsilon
        return np.where(random, self.rng.integers(self.num_actions, size=len(actions)), actions)
