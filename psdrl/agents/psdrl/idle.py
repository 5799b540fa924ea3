"""Planning with fewer inputs.

V learns from stored states only. An input that is zero in all of them gets no gradient, and where Adam remembers none
either its weights stay as they are: what such inputs add to V' of a prediction is the same in all of an update and is
formed once. In DeepSea-N nobody can reach half of the N^2 cells, but draws put something there in every prediction."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from psdrl.agents.psdrl.lookahead import Predictions
from psdrl.agents.psdrl.networks import TanhNet
from psdrl.agents.psdrl.value import MinEnsemble
from psdrl.kernels.tanh_actions import tanh_actions
from psdrl.kernels.tanh_actions.reference import Layers

SIZES = 64  # inputs come in multiples of it: libraries are chosen, by measurement, for every size of a product


def first_layers(networks: MinEnsemble) -> list[nn.Linear]:
    """Those that see the inputs."""
    return [network.linear_layers()[0] for network in networks.networks()]


def shrunk(networks: MinEnsemble, inputs: Tensor) -> MinEnsemble:
    """The same with these inputs (m,) only: first layers are copies, the others are shared."""
    fewer = []
    for network in networks.networks():
        first, *rest = network.linear_layers()
        layer = nn.Linear(len(inputs), first.out_features, device="meta")
        layer.weight = nn.Parameter(first.weight[:, inputs].detach().contiguous(), first.weight.requires_grad)
        layer.bias = first.bias
        small = TanhNet.of([layer, *rest])
        fewer.append(small)
    return networks.of(fewer)


class Idle(NamedTuple):
    """V, its target and its optimiser without the inputs that are idle in an update."""

    inputs: Tensor  # (m,) the others
    value: MinEnsemble
    target: MinEnsemble
    optimiser: torch.optim.Optimizer
    unused: Tensor  # (D - m,)
    of_unused: Tensor  # (networks U, D - m) weights of the target

    @classmethod
    @torch.no_grad()
    def found(
        cls, value: MinEnsemble, target: MinEnsemble, optimiser: torch.optim.Optimizer, used: Tensor
    ) -> "Idle | None":
        """If there are enough of them to pay; used (D,): inputs that are not always zero."""
        (group,) = optimiser.param_groups
        layers = list(zip(first_layers(value), first_layers(target), strict=True))
        least = sum(len(layer.weight) for layer, _ in layers)  # of what they add there are as many numbers
        if not isinstance(optimiser, torch.optim.Adam) or group["weight_decay"] or len(used) <= least:
            return None
        for layer, other in layers:
            state = optimiser.state[layer.weight]
            for moved in (state["exp_avg"] != 0, state["exp_avg_sq"] != 0, layer.weight != other.weight):
                used = used | moved.any(0)
        order = used.int().argsort(descending=True, stable=True)
        count = -(-int(used.sum()) // SIZES) * SIZES
        if count + least >= len(used):
            return None
        inputs, unused = order[:count].sort().values, order[count:].sort().values
        small, small_target = shrunk(value, inputs), shrunk(target, inputs)
        others = {name: setting for name, setting in group.items() if name != "params"}
        adam = torch.optim.Adam([{"params": list(small.parameters()), **others}])
        for p, own in zip(value.parameters(), small.parameters(), strict=True):
            state = optimiser.state[p]
            cut = own is not p
            adam.state[own] = {
                name: x[:, inputs].contiguous() if cut and name != "step" else x for name, x in state.items()
            }
        of_unused = torch.cat([layer.weight[:, unused] for _, layer in layers])
        return cls(inputs, small, small_target, adam, unused, of_unused)

    @property
    def width(self) -> int:
        """Numbers that a prediction has."""
        return len(self.inputs) + len(self.of_unused)

    def of(self, predictions: Predictions) -> Predictions:
        """The predictions with [inputs, what the others add to each network's first layer] in the place of [z^, h']."""
        rows = predictions.latents_hidden.flatten(0, 1)
        rows = torch.cat([rows[:, self.inputs], F.linear(rows[:, self.unused], self.of_unused)], 1)
        return predictions._replace(latents_hidden=rows.view(*predictions.rewards.shape, -1))

    def values(self, predictions: Predictions) -> Tensor:
        """V'(z^, h') (n, A)."""
        rows = predictions.latents_hidden.flatten(0, 1)
        inputs, added = rows[:, : len(self.inputs)], rows[:, len(self.inputs) :]
        first, *others = self._each(inputs, added)
        for other in others:
            first = torch.minimum(first, other)
        return first.view_as(predictions.rewards)

    def _each(self, inputs: Tensor, added: Tensor) -> Iterator[Tensor]:
        networks = self.target.networks()
        for network, part in zip(networks, added.chunk(len(networks), 1), strict=True):
            first, *rest = network.linear_layers()
            layers: Layers = [(layer.weight, layer.bias) for layer in rest]
            yield tanh_actions(inputs, first.weight, part.contiguous(), first.bias[None], layers, True)

    @torch.no_grad()
    def give_back(self, value: MinEnsemble, target: MinEnsemble, optimiser: torch.optim.Optimizer) -> None:
        """What has changed, to the networks and the optimiser with all inputs."""
        pairs = [(value, self.value), (target, self.target)]
        for whole, small in (p for a, b in pairs for p in zip(first_layers(a), first_layers(b), strict=True)):
            whole.weight[:, self.inputs] = small.weight
        for whole, small in zip(first_layers(value), first_layers(self.value), strict=True):
            for name in ("exp_avg", "exp_avg_sq"):
                optimiser.state[whole.weight][name][:, self.inputs] = self.optimiser.state[small.weight][name]
