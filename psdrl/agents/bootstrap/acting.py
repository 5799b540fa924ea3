"""Acting: one head per episode, greedily, with random actions by a schedule; or a vote of all heads."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psdrl.agents.bootstrap.network import Networks
from psdrl.agents.stacks import StackActor, Stacks
from psdrl.runtime.device import uploaded
from psdrl.runtime.execution import Execution


def vote(q: Tensor) -> Tensor:
    """Actions (n,) that most heads of q (K, n, A) prefer; ties go to the lowest-numbered head among their voters."""
    preferred = q.argmax(2)
    votes = (preferred[:, None] == preferred[None]).sum(1)  # (K, n): how many agree with each head
    return preferred.gather(0, votes.argmax(0, keepdim=True))[0]  # argmax: the first of equals


class HeadActor(StackActor):
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
        super().__init__(stacks, num_actions, random_share, rng)
        self.num_heads = networks.online.heads.heads
        self.heads = np.zeros(num_envs, np.int64)

        def greedy(frames: Tensor, heads: Tensor) -> tuple[Tensor, ...]:
            with execution.autocast():
                return (networks.chosen(frames, heads).argmax(1),)

        self._greedy = execution.kept("act", greedy)  # it knows no actor: all of them share its graphs

    def start(self, started: NDArray[np.bool_]) -> None:
        """New episodes begin where `started` (N,): a new head each."""
        super().start(started)
        self.heads[started] = self.rng.integers(self.num_heads, size=int(started.sum()))

    def state_dict(self) -> dict[str, Any]:
        """Heads and frames of the running episodes."""
        return {"heads": self.heads, "stacks": super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        heads = np.array(state["heads"])
        if not ((heads >= 0) & (heads < self.num_heads)).all():
            raise ValueError("an episode is played by a head that the agent does not have")
        self.heads = heads
        super().load_state_dict(state["stacks"])

    def chosen(self, stacks: Tensor) -> Tensor:
        """The best actions by each environment's head."""
        return self._greedy(stacks, uploaded(torch.from_numpy(self.heads), self.stacks.device))[0]


class VoteActor(StackActor):
    """Plays N environments in evaluation: all heads vote."""

    def __init__(
        self,
        networks: Networks,
        stacks: Stacks,
        num_actions: int,
        random_share: Callable[[], float],
        rng: np.random.Generator,
        execution: Execution,
    ) -> None:
        super().__init__(stacks, num_actions, random_share, rng)

        def elected(frames: Tensor) -> tuple[Tensor, ...]:
            with execution.autocast():
                return (vote(networks.q(frames)),)

        self._elected = execution.kept("vote", elected)  # a player is made for each evaluation, a graph once

    def chosen(self, stacks: Tensor) -> Tensor:
        """What most heads prefer."""
        return self._elected(stacks)[0]
