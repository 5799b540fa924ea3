"""Bayesian linear regression of rewards on local features, by the operations of `psdrl.kernels.posterior`.

Only the precision is kept. The mean of w is learned by gradient steps; the regression says how sure it is.
"""

from typing import Any

import torch
from torch import Tensor

from psdrl.agents.successor.settings import PosteriorConfig
from psdrl.errors import Diverged
from psdrl.kernels.posterior import gram_accumulate_, posterior_factor, posterior_sample


def check(info: Tensor) -> None:
    """Raise if a factorisation failed; info as in `posterior_factor`."""
    if any(info.tolist()):
        raise Diverged("posterior", "the precision of w is not finite or indefinite")


class RewardPosterior:
    """Covariance beta^2 P^-1 of w (k,). P starts as ridge I; a row phi makes it (1 - forgetting) P + phi phi^T.

    P is kept as `gram` (k, k), of which only the lower triangle counts, plus what is left of the ridge.
    """

    def __init__(self, config: PosteriorConfig, features: int, device: torch.device) -> None:
        self.beta, self.kept = config.beta, 1 - config.forgetting
        self.gram = torch.zeros(features, features, dtype=torch.float64, device=device)
        self.ridge = self._ridge = config.ridge
        self.root = torch.empty(features, features, device=device)  # CUDA graphs read it: it never moves
        self._mean = self.gram.new_zeros(1, features)
        self._fit(self.gram, self.ridge)

    @torch.no_grad()
    def absorb(self, phi: Tensor) -> None:
        """Rows phi (n, k), one after another; raises before anything is changed if one is not finite."""
        ages = torch.arange(len(phi) - 1, -1, -1, dtype=torch.float64, device=phi.device)
        faded, lost = self.kept ** (ages / 2), self.kept ** len(phi)
        gram = self.gram * lost
        rows = (phi * faded[:, None]).contiguous()
        gram_accumulate_(gram, gram.new_empty(len(gram), 0), rows, rows[:, :0].contiguous())
        self._fit(gram, self.ridge * lost)

    def _fit(self, gram: Tensor, ridge: float) -> None:
        """The precision's factor L, and the root R = L^-1 of the covariance, R^T R = Sigma."""
        variance = gram.new_tensor([self.beta**2])
        factor, _, info = posterior_factor(gram, variance / ridge, variance)
        check(info)
        identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        self.gram, self.ridge, self.factor = gram, ridge, factor
        self.root.copy_(posterior_sample(factor, self._mean, [1], identity[:, None])[:, 0])

    @torch.no_grad()
    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Perturbations (n, k) of w, each N(0, Sigma)."""
        return posterior_sample(self.factor, self._mean, [1], None, count, generator)[:, 0].float()

    def deviation(self) -> float:
        """Root of the mean variance of a number of w."""
        return float(self.root.norm()) / len(self.root) ** 0.5

    def state_dict(self) -> dict[str, Any]:
        """The precision."""
        return {"gram": self.gram, "ridge": self.ridge}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        ridge = float(state["ridge"])
        if not 0 < ridge <= self._ridge:
            raise ValueError(f"the precision of w has a ridge of {ridge}, but began with {self._ridge}")
        try:
            self._fit(state["gram"].to(self.gram), ridge)
        except Diverged as problem:
            raise ValueError(problem.cause) from None
