"""The value network and its target (Eq. 5 to 7), with what this implementation adds: several networks of which the
minimum counts, a share of random actions in the targets, averaged target networks."""

import copy
from collections.abc import Callable, Iterable
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from psdrl.agents.psdrl.networks import TanhNet
from psdrl.agents.psdrl.settings import ValueConfig
from psdrl.kernels.greedy import best_return, greedy_action, one_step_returns

T = TypeVar("T")
THRESHOLD = 0.5  # omega from which a state is taken for absorbing [paper, Eq. 7]


class MinEnsemble(nn.ModuleList):
    """Value networks; V is the minimum of their values. The paper has one."""

    def __init__(self, inputs: int, config: ValueConfig) -> None:
        super().__init__(TanhNet(inputs, config.units, config.layers) for _ in range(config.networks))
        self.discount, self.lookahead = config.discount, config.lookahead
        self.units = config.networks * config.units  # that see the inputs
        self._share, self._rate, self.trace = config.random_share, config.target_rate, config.trace

    def of(self, networks: list[TanhNet]) -> "MinEnsemble":
        """The same of other networks."""
        ensemble = copy.copy(self)
        ensemble._modules = {str(i): network for i, network in enumerate(networks)}
        return ensemble

    def tensors(self) -> list[Tensor]:
        """The parameters, in their order; `parameters()` takes 70 us, a seventh of a small network's step."""
        layers = (layer for network in self.networks() for layer in network.linear_layers())
        return [p for layer in layers for p in (layer.weight, layer.bias)]

    def networks(self) -> list[TanhNet]:
        """The networks."""
        return cast(list[TanhNet], list(self))

    def forward(self, x: Tensor) -> Tensor:
        """V of states [z, h] (n, Z + H) -> (n,)."""
        return torch.stack([network(x) for network in self]).amin(0)

    def fast(self, x: Tensor) -> Tensor:
        """The same by the kernels, without autograd."""
        first, *others = (network.fast(x) for network in self.networks())
        for other in others:
            first = torch.minimum(first, other)
        return first

    def losses(self, states: Tensor, targets: Tensor) -> Tensor:
        """Eq. 5 of each network, for states [z, h] (n, Z + H) and targets (n,)."""
        errors = torch.stack([network(states) - targets for network in self])
        return errors.square().mean(1)

    def each(self, step: Callable[..., T], *arguments: Tensor) -> list[T]:
        """What `step` makes of each network and the arguments."""
        return [step(network, *arguments) for network in self.networks()]

    def backup(self, returns: Tensor) -> Tensor:
        """The targets (n,) that one-step returns (n, A) give: their maximum, with a share of their mean."""
        return (1 - self._share) * returns.amax(1) + self._share * returns.mean(1)

    def planned(self, rewards: Tensor, omega: Tensor, values: Tensor) -> Tensor:
        """The same by the kernels, from the parts (n, A) of one-step returns."""
        if not self._share:
            return best_return(rewards, omega, values, self.discount, THRESHOLD)
        returns = self.returns(rewards, omega, values)
        return torch.lerp(returns.amax(1), returns.mean(1), self._share)

    def traced(self, planned: Tensor, rewards: Tensor, ends: Tensor) -> Tensor:
        """Targets (L, B) with traces, of those that planning alone gives and of what happened (L, B), time first."""
        targets, rewards, lasting = planned.clone(), rewards.to(planned), 1 - ends.to(planned)
        for t in range(len(planned) - 2, -1, -1):
            targets[t].lerp_(rewards[t] + self.discount * lasting[t] * targets[t + 1], self.trace)
        return targets

    def returns(self, rewards: Tensor, omega: Tensor, values: Tensor) -> Tensor:
        """r^ + gamma 1[omega < 0.5] V (n, A)."""
        return one_step_returns(rewards, omega, values, self.discount, THRESHOLD)

    def best_action(self, rewards: Tensor, omega: Tensor, values: Tensor, tie_noise: Tensor) -> Tensor:
        """The action (n,) of the largest return; `tie_noise` (n, A) breaks ties, see `psdrl.kernels.greedy`."""
        return greedy_action(rewards, omega, values, self.discount, THRESHOLD, tie_noise)

    @torch.no_grad()
    def update_target(self, target: "MinEnsemble") -> None:
        """psi' <- psi' + rate (psi - psi')."""
        if self._rate == 1:
            torch._foreach_copy_(target.tensors(), self.tensors())
        else:
            torch._foreach_lerp_(target.tensors(), self.tensors(), self._rate)

    def acting(self, target: "MinEnsemble") -> "MinEnsemble":
        """The networks that act: these, or the average of their past that the target is."""
        return target if self._rate < 1 else self


def _parameters(module: nn.Module) -> list[Tensor]:
    parameters: Iterable[Tensor] = module.parameters()
    return list(parameters)


@torch.no_grad()
def copy_parameters(source: nn.Module, target: nn.Module) -> None:
    """In place, so CUDA graphs that read the target stay valid."""
    torch._foreach_copy_(_parameters(target), _parameters(source))
