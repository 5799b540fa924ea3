"""The sums that Eq. 4 needs of features and targets, in float64."""

from typing import Any

import torch
from torch import Tensor

from psdrl.kernels.posterior import gram_accumulate_, posterior_factor
from psdrl.replay.episodes import parts

SPARSE = 64  # numbers per nonzero one from which a CPU adds up Phi^T T row by row: 0.1 s instead of 0.7 in DeepSea-50
COUNTED = 512  # counted rows that a CPU weights at once: their copies are not made in fresh memory every time
SQUARED = 256  # rows that a CPU squares at once: their float64 copies stay in its cache, a fifth of the time


def sparse(targets: Tensor) -> bool:
    """Whether nearly all targets are zero. It reads them, for which a GPU would have to be waited for."""
    return bool(targets.numel() > SPARSE * targets.count_nonzero())


class Statistics:
    """All that Eq. 4 needs of the replay buffer: sums over its N transitions, in float64.

    lower (k, k) is Phi^T Phi, of which only the lower triangle is summed up, cross (k, Z + 1) is Phi^T T, squares
    (Z + 1,) the squared targets, for the residuals, rows is N."""

    shared = True  # whether latent states and reward have the same features

    def __init__(self, lower: Tensor, cross: Tensor, squares: Tensor, rows: int) -> None:
        self._sums, self.rows = (lower, cross, squares), rows

    @property
    def lower(self) -> Tensor:
        return self._sums[0]

    @property
    def cross(self) -> Tensor:
        return self._sums[1]

    @property
    def squares(self) -> Tensor:
        return self._sums[2]

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
    def add(self, features: Any, targets: Tensor, times: Tensor | None = None) -> None:
        """Add rows of features (n, k) and targets (n, Z + 1); `times` (n,): how often each occurs."""
        count, cpu = max(1, len(targets)), targets.is_cpu
        few = cpu and sparse(targets)
        if few:
            self._add_nonzero(features, targets, times)
        cross = self.cross.new_empty(len(self.lower), 0) if few else self.cross
        for rows in parts(slice(0, len(targets)), COUNTED if times is not None and cpu else count):
            phi, t = features[rows], targets[rows, :0] if few else targets[rows]
            if times is not None:
                root = times[rows].double().sqrt()[:, None]
                phi, t = phi * root, t * root
            gram_accumulate_(self.lower, cross, phi.to(t), t)
        for rows in parts(slice(0, len(targets)), SQUARED if cpu else count):
            squares = targets[rows].double().square()
            self.squares.add_(squares.sum(0) if times is None else times[rows].double() @ squares)
        self.rows += len(features) if times is None else int(times.sum())

    def _add_nonzero(self, features: Tensor, targets: Tensor, times: Tensor | None) -> None:
        """Add to Phi^T T row by row where nearly all targets are zero, as one-hot states are."""
        row, output = targets.nonzero(as_tuple=True)
        weights = targets[row, output].double() * (1 if times is None else times[row])
        sums = torch.zeros_like(self.cross.T, memory_format=torch.contiguous_format)
        for r, o, w in zip(*(x.split(SQUARED) for x in (row, output, weights)), strict=True):
            sums.index_add_(0, o, features[r].double() * w[:, None])
        self.cross.add_(sums.T)
