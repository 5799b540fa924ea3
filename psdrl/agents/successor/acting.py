"""Acting: Thompson sampling, greedy on psi . (w + perturbation); without perturbation it is greedy on the mean."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psdrl.agents.stacks import StackActor, Stacks
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


class ThompsonActor(StackActor):
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
        super().__init__(stacks, num_actions, random_share, rng)
        self._choose, self.perturbations, self.action_noise, self.redraw = choose, perturbations, action_noise, redraw

    def start(self, started: NDArray[np.bool_]) -> None:
        """New episodes begin where `started` (N,)."""
        super().start(started)
        if self.redraw and started.any():
            rows = uploaded(torch.from_numpy(np.flatnonzero(started)), self.perturbations.device)
            self.perturbations[rows] = self.redraw(len(rows))

    def chosen(self, stacks: Tensor) -> Tensor:
        """The best actions by each environment's draw of w."""
        noise = np.zeros((len(stacks), self.num_actions), np.float32)
        if self.action_noise:
            noise = self.action_noise * self.rng.standard_normal(noise.shape, np.float32)
        return self._choose(stacks, self.perturbations, uploaded(torch.from_numpy(noise), self.stacks.device))[0]
