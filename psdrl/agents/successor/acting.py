"""Acting: Thompson sampling, greedy on psi . (w + perturbation); without perturbation it is greedy on the mean."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psdrl.agents.stacks import Stacks
from psdrl.agents.successor.network import Networks
from psdrl.runtime.device import uploaded
from psdrl.runtime.execution import Execution
from psdrl.runtime.graphs import Step


def make_choice(networks: Networks, execution: Execution) -> Step:
    """(stacks, perturbations (n, k), noise (n, A)) -> the actions (n,) of the largest values."""

    def choose(frames: Tensor, perturbations: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        with execution.autocast():
            values = networks.values(frames, perturbations)
        return ((values + noise).argmax(1),)

    return choose


class ThompsonActor:
    """Plays N environments, each by a draw of w of its own; a share of the actions may be random."""

    def __init__(
        self,
        choose: Step,
        stacks: Stacks,
        perturbations: Tensor,
        num_actions: int,
        random_share: Callable[[], float],
        action_noise: float,
        rng: np.random.Generator,
        redraw: Callable[[int], Tensor] | None = None,
    ) -> None:
        """perturbations (N, k) of w, written by others in training; `redraw(n)` gives new ones where episodes start.

        action_noise: standard deviation of what is added to each action's value in each step."""
        self._choose, self.stacks, self.perturbations, self.redraw = choose, stacks, perturbations, redraw
        self.num_actions, self.random_share, self.action_noise, self.rng = num_actions, random_share, action_noise, rng

    def start(self, started: NDArray[np.bool_]) -> None:
        """New episodes begin where `started` (N,)."""
        self.stacks.start(started)
        if self.redraw and started.any():
            rows = uploaded(torch.from_numpy(np.flatnonzero(started)), self.perturbations.device)
            self.perturbations[rows] = self.redraw(len(rows))

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
        count = len(observations)
        random = self.rng.random(count) < self.random_share()
        actions = self.rng.integers(self.num_actions, size=count)
        if not random.all():  # the network is not asked in the random steps: 4 ms each on a CPU
            noise = np.zeros((count, self.num_actions), np.float32)
            if self.action_noise:
                noise = self.action_noise * self.rng.standard_normal(noise.shape, np.float32)
            on_device = uploaded(torch.from_numpy(noise), self.stacks.device)
            (greedy,) = self._choose(self.stacks.on_device(), self.perturbations, on_device)
            actions = np.where(random, actions, greedy.cpu().numpy())
        return actions
