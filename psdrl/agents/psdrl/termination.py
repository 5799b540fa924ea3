"""Termination model (Eq. 3): networks and loss, with the weight of ends and the predicted states added here."""

from collections.abc import Iterator

import torch
from torch import Tensor

from psdrl.agents.psdrl.networks import TanhLayer, TanhNet, plain_tanh
from psdrl.agents.psdrl.settings import TerminationConfig


class Termination(TanhNet):
    """Estimates omega (n,) of whether latent states (n, Z) are absorbing."""

    widest = 0  # see `WorldModel.widest`

    def __init__(self, inputs: int, config: TerminationConfig) -> None:
        super().__init__(inputs, config.units, config.layers)
        self.weight = config.weight  # of an end's squared error
        self.predicted = config.predicted  # whether predicted states are learned from too

    def weights(self, ends: Tensor) -> Tensor:
        """Of the squared errors, for delta (n,): that of ends, or 1."""
        return 1 + (self.weight - 1) * ends

    def loss(
        self,
        following: Tensor,
        ends: Tensor,
        predicted: Tensor | None = None,
        tanh_layer: TanhLayer = plain_tanh,
        share: Tensor | None = None,
    ) -> Tensor:
        """Eq. 3 for z' (n, Z) and delta (n,), and the same for predicted z^' (n, Z); `share` (n,): of each state in the
        mean, 1 / n if not given."""
        if predicted is not None:
            following, ends = torch.cat([following, predicted.to(following)]), ends.repeat(2)
            share = None if share is None else share.repeat(2) / 2
        errors = self.weights(ends) * (self(following, tanh_layer) - ends).square()
        return errors.mean() if share is None else errors @ share

    def plain_losses(self, following: Tensor, ends: Tensor, predicted: Tensor) -> Iterator[Tensor]:
        """The terms of the same loss, for the oracle."""
        states = [following, predicted] if self.predicted else [following]
        weights = torch.where(ends > 0, self.weight, 1.0)
        return ((weights * (self(z) - ends).square()).mean() / len(states) for z in states)
