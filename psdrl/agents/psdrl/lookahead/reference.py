"""The oracle: one forward-model call per action, as Eq. 6 and 7 are written."""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from psdrl.agents.psdrl.models import ForwardModel, SampledModel


class Lookahead(NamedTuple):
    """What each action leads to in the sampled model."""

    returns: Tensor  # (n, A) r^ + gamma * v^
    hidden: Tensor  # (n, A, H) h'


def lookahead(
    forward_model: "ForwardModel",
    sample: "SampledModel",
    termination: nn.Module,
    value: nn.Module,
    latents: Tensor,
    hidden: Tensor,
    discount: float,
    threshold: float = 0.5,
) -> Lookahead:
    """One-step returns of all actions from latent states (n, Z) with hidden states (n, H)."""
    returns, next_hidden = [], []
    for action in range(forward_model.num_actions):
        actions = torch.full((len(latents),), action, device=latents.device)
        h = forward_model.next_hidden(latents, actions, hidden)
        features = forward_model.features(h, latents, actions)
        prediction = forward_model.predicted(features, sample.weight, sample.bias)
        z, reward = prediction[:, :-1], prediction[:, -1]
        next_value = torch.where(termination(z) < threshold, value(torch.cat([z, h], 1)), 0.0)
        returns.append(reward + discount * next_value)
        next_hidden.append(h)
    return Lookahead(torch.stack(returns, 1), torch.stack(next_hidden, 1))
