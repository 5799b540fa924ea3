"""One-step lookahead over all actions (Eq. 6 and 7): what acting and planning ask of the sampled model, in bulk.

`oracle.lookahead` gives the same numbers with one forward-model call per action."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from psdrl.agents.psdrl.termination import Termination
from psdrl.agents.psdrl.value import MinEnsemble
from psdrl.agents.psdrl.world_model import SampledWorld


class Predictions(NamedTuple):
    """What each action leads to, as far as it does not depend on the value network."""

    latents_hidden: Tensor  # (n, A, Z + H) [z^, h'], the value network's input
    rewards: Tensor  # (n, A)
    omega: Tensor  # (n, A) termination estimates

    def at(self, rows: slice | Tensor) -> "Predictions":
        """The predictions of some of the states."""
        return Predictions(self.latents_hidden[rows], self.rewards[rows], self.omega[rows])

    def values(self, value: MinEnsemble) -> Tensor:
        """V(z^, h') (n, A)."""
        return value.fast(self.latents_hidden.flatten(0, 1)).view_as(self.rewards)

    def returns(self, value: MinEnsemble) -> Tensor:
        """r^ + gamma 1[omega < 0.5] V(z^, h') (n, A)."""
        return value.returns(self.rewards, self.omega, self.values(value))

    def planned(self, value: MinEnsemble) -> Tensor:
        """The targets (n,) of planning."""
        return value.planned(self.rewards, self.omega, self.values(value))

    def action(self, value: MinEnsemble, tie_noise: Tensor) -> Tensor:
        """The best action (n,), for acting; `tie_noise` (n, A) breaks ties, see `psdrl.kernels.greedy`."""
        return value.best_action(self.rewards, self.omega, self.values(value), tie_noise)


def joined(parts: Iterable[Predictions]) -> Predictions:
    """Predictions of several groups of states as one."""
    return Predictions(*map(torch.cat, zip(*parts, strict=True)))


def predict(world: SampledWorld, termination: Termination, latents: Tensor, hidden: Tensor) -> Predictions:
    """All actions from latent states (n, Z) and hidden states (n, H): n * A rows in bulk."""
    latent, shape = latents.shape[1], (len(latents), world.num_actions)
    prediction, rows = world.predict(latents, hidden)
    # The termination network reads z^ from here, not from `prediction`: rows of 2292 start at multiples of 16 bytes,
    # rows of 1537 do not, and a GPU would load them 4 bytes at once.
    following = prediction[:, :latent]
    joint = torch.cat([following, rows], 1)
    omega = termination.fast(joint[:, :latent])
    rewards = prediction[:, latent].to(joint.dtype)
    return Predictions(joint.view(*shape, joint.shape[1]), rewards.view(shape), omega.to(joint).view(shape))
