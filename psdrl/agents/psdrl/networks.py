"""Networks of tanh layers with one linear output: termination model and value network."""

from itertools import pairwise
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from psdrl.kernels.tanh_dot import tanh_net


def one_hot(actions: Tensor, num_actions: int, like: Tensor) -> Tensor:
    """Actions (n,) as one-hot rows (n, A) in `like`'s dtype; F.one_hot would look at the numbers on the host."""
    return (actions[..., None] == torch.arange(num_actions, device=actions.device)).to(like.dtype)


class TanhLayer(Protocol):
    """tanh(x W^T + b), by PyTorch's operations, for training, or by the kernels without autograd."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor, /) -> Tensor: ...


def plain_tanh(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The layer by PyTorch's operations: (r, U) from x (r, k)."""
    return torch.tanh(F.linear(x, weight, bias))


class TanhNet(nn.Module):
    """Layers of `units` tanh units and a linear output of one number."""

    def __init__(self, inputs: int, units: int, layers: int) -> None:
        super().__init__()
        widths = [inputs] + [units] * (layers - 1) + [1]
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(widths))

    @classmethod
    def of(cls, layers: list[nn.Linear]) -> "TanhNet":
        """Of these layers, the output layer last."""
        network = cls.__new__(cls)
        nn.Module.__init__(network)
        network.layers = nn.ModuleList(layers)
        return network

    def linear_layers(self) -> list[nn.Linear]:
        """The layers, the output layer last."""
        return cast(list[nn.Linear], list(self.layers))

    def tapped_layers(self) -> list[nn.Linear]:
        """Those whose gradient and step may be one kernel (`descent`): all that `tanh_layer` computes."""
        return self.linear_layers()[:-1]

    def forward(self, x: Tensor, tanh_layer: TanhLayer = plain_tanh) -> Tensor:
        """(n, inputs) -> (n,)."""
        *hidden_layers, last = self.linear_layers()
        for layer in hidden_layers:
            x = tanh_layer(x, layer.weight, layer.bias)
        return last(x).squeeze(1)

    def fast(self, x: Tensor) -> Tensor:
        """The same by the kernels, without autograd."""
        layers = self.linear_layers()
        return tanh_net(x, [layer.weight for layer in layers], [layer.bias for layer in layers])
