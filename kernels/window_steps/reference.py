"""Adam steps of a world model on windows of truncated backpropagation: the oracle, by autograd and Adam's own step."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class WindowNet(NamedTuple):
    """A world model's trained parameters, and how they belong together."""

    gru: list[Tensor]  # weights from [z, a] and from h, their biases; empty: h stays zero
    layers: list[Tensor]  # weight and bias of each feature layer, then of the output layer
    hidden: int  # H
    bends: bool  # the last feature layer has tanh
    with_inputs: bool  # the output layer sees [h', z, a] beside the features
    reward_weight: Tensor  # () of the reward's squared error
    mean: bool  # squared errors are averaged over dimensions, not summed up

    @property
    def parameters(self) -> list[Tensor]:
        """All of them, in the order in which csrc takes them."""
        return [*self.gru, *self.layers]


def features(net: WindowNet, x: Tensor) -> Tensor:
    """What the output layer sees of x = [h', z, a] (n, H + Z + A)."""
    *hidden, last = zip(net.layers[:-2:2], net.layers[1:-2:2], strict=True)
    phi = x
    for weight, bias in hidden:
        phi = torch.tanh(F.linear(phi, weight, bias))
    phi = F.linear(phi, *last)
    phi = torch.tanh(phi) if net.bends else phi
    return torch.cat([phi, x], 1) if net.with_inputs else phi


@torch.enable_grad()
def window_steps_(
    latents: Tensor,
    actions: Tensor,
    rewards: Tensor,
    optimiser: torch.optim.Optimizer,
    net: WindowNet,
    window: int,
    weights: Tensor | None = None,
) -> Tensor:
    """A step of the optimiser for each window of at most `window` of L steps, from h = 0 on: latents (L + 1, B, Z),
    actions and rewards (L, B), the weights (L, B) of the transitions, 1 if not given -> the losses before each step
    (Eq. 2): the mean over transitions of the weighted squared errors of [z', r]."""
    length, batch = actions.shape
    num_actions = net.layers[0].shape[1] - net.hidden - latents.shape[2]
    weights = torch.ones_like(rewards) if weights is None else weights
    hidden, losses = latents.new_zeros(batch, net.hidden), []
    for first in range(0, length, window):
        total, steps = latents.new_zeros(()), range(first, min(first + window, length))
        hidden = hidden.detach()
        for t in steps:
            inputs = torch.cat([latents[t], F.one_hot(actions[t], num_actions).to(latents)], 1)
            hidden = torch.gru_cell(inputs, hidden, *net.gru) if net.gru else hidden
            prediction = F.linear(features(net, torch.cat([hidden, inputs], 1)), *net.layers[-2:])
            error = (prediction - torch.cat([latents[t + 1], rewards[t][:, None]], 1)).square()
            error = error[:, :-1].sum(1) + net.reward_weight * error[:, -1]
            total = total + (weights[t] * error).sum() / (prediction.shape[1] if net.mean else 1)
        loss = total / (len(steps) * batch)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses)
