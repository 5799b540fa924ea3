"""The sums that Eq. 4 needs of features and targets, in float64: of one regression, or of those of a grid."""

from typing import Any

import torch
from torch import Tensor

from psdrl.agents.psdrl.grid import Places
from psdrl.kernels.posterior import gram_accumulate_, posterior_factor


class Statistics:
    """All that Eq. 4 needs of the replay buffer: sums over its N transitions, in float64.

    lower (k, k) is Phi^T Phi, of which only the lower triangle is summed up, cross (k, Z + 1) is Phi^T T, squares
    (Z + 1,) the squared targets, for the residuals, rows is N."""

    def __init__(self, lower: Tensor, cross: Tensor, squares: Tensor, rows: int) -> None:
        self.lower, self.cross, self.squares, self.rows = lower, cross, squares, rows

    @classmethod
    def empty(cls, features: int, outputs: int, device: torch.device) -> "Statistics":
        """No data: the posterior is the prior."""
        lower = torch.zeros(features, features, dtype=torch.float64, device=device)
        return cls(lower, lower.new_zeros(features, outputs), lower.new_zeros(outputs), 0)

    def factorised(self, priors: Tensor, noises: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`posterior_factor` of each group of outputs (g,)."""
        return posterior_factor(self.lower, priors, noises)

    def rows_of(self, group: int) -> int:
        """Rows that a group's regression has."""
        return self.rows

    @torch.no_grad()
    def add(self, features: Any, targets: Tensor, weight: float = 1.0, times: Tensor | None = None) -> None:
        """Add rows of features (n, k) and targets (n, Z + 1); weight -1 takes them away again, `times` (n,) says how
        often each occurs."""
        if times is not None:
            root = times.double().sqrt()[:, None]
            features, targets = features * root, targets * root
        gram_accumulate_(self.lower, self.cross, features.to(targets), targets, weight)
        self.squares += weight * targets.double().square().sum(0)
        self.rows += round(weight) * (len(features) if times is None else int(times.sum()))


class LocalStatistics(Statistics):
    """The same for a grid of places: sums over N P places and their C outputs, and over N maxima and the reward.

    Features that are the same everywhere enter the places' sums through the others' totals: half of the work."""

    def __init__(self, places: Places, features: int, everywhere: int, device: torch.device) -> None:
        near, outputs = features - everywhere, places.channels
        self._places, self.rows = places, 0
        self.near = Statistics.empty(near, outputs, device)
        self.reward = Statistics.empty(features, 1, device)
        # Of the features that are the same everywhere: with those of the places, with themselves, with the targets.
        self._mixed, self._square, self._cross = (
            self.near.cross.new_zeros(everywhere, n) for n in (near, everywhere, outputs)
        )

    def factorised(self, priors: Tensor, noises: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of the Gram matrix of the places and of that of their maxima: the two groups never share."""
        grams = (self.lower, self.reward.lower)
        parts = [posterior_factor(gram, priors[g : g + 1], noises[g : g + 1]) for g, gram in enumerate(grams)]
        factors, jitter, info = (torch.cat(part) for part in zip(*parts, strict=True))
        return factors, jitter, info

    def rows_of(self, group: int) -> int:
        """All places of all transitions, or one row per transition."""
        return self.near.rows if group == 0 else self.rows

    @property
    def lower(self) -> Tensor:  # type: ignore[override]
        """(k, k), of which only the lower triangle is the places' Phi^T Phi."""
        near, mixed = self.near.lower, self._mixed
        return torch.cat([torch.cat([near, mixed.T], 1), torch.cat([mixed, self._square], 1)])

    @property
    def cross(self) -> Tensor:  # type: ignore[override]
        """(k, C + 1) Phi^T T of the places and of the reward."""
        return torch.cat([torch.cat([self.near.cross, self._cross]), self.reward.cross], 1)

    @property
    def squares(self) -> Tensor:  # type: ignore[override]
        """(C + 1,)."""
        return torch.cat([self.near.squares, self.reward.squares])

    @torch.no_grad()
    def add(self, features: Any, targets: Tensor, weight: float = 1.0, times: Tensor | None = None) -> None:
        """Add the features of n transitions and their targets [z', r] (n, Z + 1), as `Statistics.add` does."""
        near, own = features.near(), self._places.own(targets[:, :-1])
        each_place = None if times is None else times.repeat_interleave(self._places.count)
        self.near.add(near.flatten(0, 1), own.flatten(0, 1), weight, each_place)
        everywhere = weight * features.everywhere.double().T
        if times is not None:
            everywhere = everywhere * times
        self._mixed += everywhere @ near.sum(1, dtype=torch.float64)
        self._square += self._places.count * everywhere @ features.everywhere.double()
        self._cross += everywhere @ own.sum(1, dtype=torch.float64)
        self.reward.add(features.maxima(), targets[:, -1:].contiguous(), weight, times)
        self.rows = self.reward.rows
