"""K dueling Q-functions on one torso, each with a prior that is never trained: Q_k = trained_k + scale * prior_k."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from psdrl.agents.bootstrap.settings import NetworkConfig
from psdrl.agents.stacks import TargetNetworks, Torso
from psdrl.envs.vector import EnvSpec


class Heads(nn.Module):
    """K dueling heads: a layer of 2 U ReLU units, half for the value, half for the advantages; Q = v + a - mean a.

    The first layer of all heads is one product, and each of the two outputs one batched product.
    """

    def __init__(self, heads: int, size: int, units: int, num_actions: int) -> None:
        super().__init__()
        self.heads, self.units = heads, units
        self.hidden = nn.Linear(size, heads * 2 * units)
        bound = units**-0.5  # of PyTorch's linear layer, as each head would have it
        self.value_weight = nn.Parameter(torch.empty(heads, units, 1).uniform_(-bound, bound))
        self.value_bias = nn.Parameter(torch.empty(heads, 1, 1).uniform_(-bound, bound))
        self.advantage_weight = nn.Parameter(torch.empty(heads, units, num_actions).uniform_(-bound, bound))
        self.advantage_bias = nn.Parameter(torch.empty(heads, 1, num_actions).uniform_(-bound, bound))

    def forward(self, features: Tensor) -> Tensor:
        """Q (K, n, A) of features (n, F)."""
        hidden = F.relu(self.hidden(features)).view(-1, self.heads, 2, self.units)
        value, advantage = hidden.permute(2, 1, 0, 3)  # (K, n, U) each
        return _dueling(
            torch.baddbmm(self.value_bias, value, self.value_weight),
            torch.baddbmm(self.advantage_bias, advantage, self.advantage_weight),
        )

    def chosen(self, features: Tensor, heads: Tensor) -> Tensor:
        """Q (n, A) of features (n, F), row i by head heads[i].

        Few rows read only their own heads' weights: one row of the paper's network takes 13 MB of them, not 116 MB.
        """
        if len(features) >= self.heads:
            return self(features)[heads, torch.arange(len(features), device=features.device)]
        weight = self.hidden.weight.view(self.heads, 2 * self.units, -1)[heads]
        bias = self.hidden.bias.view(self.heads, 2 * self.units)[heads]
        hidden = F.relu(torch.baddbmm(bias[:, :, None], weight, features[:, :, None]))[:, None, :, 0]
        value, advantage = hidden.split(self.units, 2)  # (n, 1, U) each
        return _dueling(
            torch.baddbmm(self.value_bias[heads], value, self.value_weight[heads]),
            torch.baddbmm(self.advantage_bias[heads], advantage, self.advantage_weight[heads]),
        )[:, 0]


def _dueling(value: Tensor, advantage: Tensor) -> Tensor:
    return value + advantage - advantage.mean(-1, keepdim=True)


class QNetwork(nn.Module):
    """Torso and heads."""

    def __init__(self, config: NetworkConfig, spec: EnvSpec, stack: int) -> None:
        super().__init__()
        self.torso = Torso(config, spec, stack)
        self.heads = Heads(config.heads, self.torso.size, config.units, spec.num_actions)

    def features(self, stacks: Tensor) -> Tensor:
        """Features (n, F) of stacks (n, stack, *shape) of any type."""
        return self.torso(stacks.to(self.heads.hidden.weight.dtype))

    def forward(self, stacks: Tensor) -> Tensor:
        """Q (K, n, A) of stacks (n, stack, *shape)."""
        return self.heads(self.features(stacks))

    def chosen(self, stacks: Tensor, heads: Tensor) -> Tensor:
        """Q (n, A), row i by head heads[i]."""
        return self.heads.chosen(self.features(stacks), heads)


class Networks(TargetNetworks):
    """The trained network, its target network, and the prior that both share."""

    online: QNetwork
    target: QNetwork

    def __init__(self, config: NetworkConfig, spec: EnvSpec, stack: int) -> None:
        super().__init__()
        self.prior_scale = config.prior_scale
        self.online, self.target, self.prior = (QNetwork(config, spec, stack) for _ in range(3))
        self.target.requires_grad_(False)
        self.prior.requires_grad_(False)
        self.update_target()

    @torch.no_grad()
    def scaled_prior(self, stacks: Tensor) -> Tensor:
        """What is added to the trained and to the target network (K, n, A)."""
        return self.prior_scale * self.prior(stacks)

    def q(self, stacks: Tensor) -> Tensor:
        """All heads (K, n, A) of stacks (n, stack, *shape)."""
        return self.online(stacks) + self.scaled_prior(stacks)

    def chosen(self, stacks: Tensor, heads: Tensor) -> Tensor:
        """Q (n, A), row i by head heads[i]."""
        return self.online.chosen(stacks, heads) + self.prior_scale * self.prior.chosen(stacks, heads)
