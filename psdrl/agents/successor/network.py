"""Local features phi, successor features psi, and w: r(s, a) = phi(s, a) . w and Q(s, a) = psi(s, a) . w."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from psdrl.agents.stacks import TargetNetworks, Torso
from psdrl.agents.successor.settings import NetworkConfig
from psdrl.envs.vector import EnvSpec

TINY = 1e-6  # added to norms: phi may be 0 [released]


class FeatureNetwork(nn.Module):
    """Torso, two linear layers with ReLU, and w (1, k). Weights start Xavier-uniform [released], biases at 0 [ours]."""

    def __init__(self, config: NetworkConfig, spec: EnvSpec, stack: int) -> None:
        super().__init__()
        self.actions, self.features = spec.num_actions, config.features
        self.joint, self.residual = config.joint_normalisation, config.residual
        self.torso = Torso(config, spec, stack)
        self.phi = nn.Linear(self.torso.size, self.actions * self.features)
        self.psi = nn.Linear(self.torso.size, (1 + self.actions) * self.features)  # the block of all actions first
        self.w = nn.Parameter(torch.empty(1, self.features))
        for p in self.parameters():
            nn.init.xavier_uniform_(p) if p.ndim > 1 else nn.init.zeros_(p)
        with torch.no_grad():
            self.w.mul_(config.initial_w)
            if self.residual:
                self.psi.weight.zero_()
        self.phi.requires_grad_(not config.fixed_phi)

    def hidden(self, stacks: Tensor) -> Tensor:
        """What both outputs share (n, F), of stacks (n, stack, *shape) of any type."""
        return self.torso(stacks.to(self.w.dtype))

    def local(self, hidden: Tensor) -> Tensor:
        """phi (n, A, k): not negative; each of norm 1, or all A k numbers together."""
        phi = F.relu(self._blocks(self.phi(hidden)))
        return phi / (phi.norm(dim=(1, 2) if self.joint else 2, keepdim=True) + TINY)

    def local_of(self, hidden: Tensor, actions: Tensor) -> Tensor:
        """phi(s, a) (n, k) of the actions (n,)."""
        if self.joint:
            return taken(self.local(hidden), actions)
        phi = F.relu(taken(self._blocks(self.phi(hidden)), actions))
        return phi / (phi.norm(dim=1, keepdim=True) + TINY)

    def successors(self, hidden: Tensor) -> Tensor:
        """psi (n, A, k): a block of each action, and one that is added to all; phi besides, if it is residual."""
        common, own = self._blocks(self.psi(hidden)).split((1, self.actions), 1)
        return common + own + self.local(hidden) if self.residual else F.relu(common) + F.relu(own)

    def successors_of(self, hidden: Tensor, actions: Tensor, phi: Tensor) -> Tensor:
        """psi(s, a) (n, k) of the actions (n,), whose phi (n, k) are known."""
        blocks = self._blocks(self.psi(hidden))
        common, own = blocks[:, 0], taken(blocks[:, 1:], actions)
        return common + own + phi if self.residual else F.relu(common) + F.relu(own)

    def _blocks(self, outputs: Tensor) -> Tensor:
        """Outputs (n, m k) as (n, m, k), in the parameters' type: bfloat16 is for products."""
        return outputs.unflatten(1, (-1, self.features)).to(self.w.dtype)


def taken(of_all: Tensor, actions: Tensor) -> Tensor:
    """Rows (n, k) of (n, A, k) that belong to actions (n,)."""
    return of_all.gather(1, actions[:, None, None].expand(-1, 1, of_all.shape[2]))[:, 0]


def dot(features: Tensor, w: Tensor) -> Tensor:
    """Features (..., k) times w (..., k), in full precision: a product in tf32 errs by 5e-4 of Q, which is more than
    draws of beta 1e-3 differ by."""
    return (features * w).sum(-1)


class Networks(TargetNetworks):
    """The trained network and its target network."""

    online: FeatureNetwork
    target: FeatureNetwork

    def __init__(self, config: NetworkConfig, spec: EnvSpec, stack: int) -> None:
        super().__init__()
        self.online, self.target = (FeatureNetwork(config, spec, stack) for _ in range(2))
        self.target.requires_grad_(False)
        self.update_target()

    def values(self, stacks: Tensor, perturbations: Tensor) -> Tensor:
        """Q (n, A) by w + perturbation, one (n, k) of them per row; zeros give the mean."""
        psi = self.online.successors(self.online.hidden(stacks))
        return dot(psi, self.online.w) + dot(psi, perturbations[:, None])
