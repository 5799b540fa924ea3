"""Adam steps of tanh networks on squared errors: the oracle, by autograd and torch.optim.Adam's own step."""

import torch
from torch import Tensor


def tanh_net(x: Tensor, parameters: list[Tensor]) -> Tensor:
    """x (B, D) through layers of weight and bias, tanh between them -> (B,)."""
    *hidden, last = zip(parameters[::2], parameters[1::2], strict=True)
    for weight, bias in hidden:
        x = torch.tanh(torch.nn.functional.linear(x, weight, bias))
    return torch.nn.functional.linear(x, *last).squeeze(1)


@torch.enable_grad()
def tanh_net_steps_(
    states: Tensor,
    targets: Tensor,
    optimiser: torch.optim.Optimizer,
    parameters: list[Tensor],
    networks: int,
    weights: Tensor | None = None,
) -> Tensor:
    """A step of the optimiser for each of n batches: states (n, B, D), targets (n, B), the parameters of each network
    in turn, layer by layer -> the losses (n, networks), means of squared errors, times weights (n, B) if there are any,
    before each step."""
    weights = torch.ones_like(targets) if weights is None else weights
    size = len(parameters) // networks
    nets = [parameters[i * size : (i + 1) * size] for i in range(networks)]
    losses = []
    for x, target, weight in zip(states, targets, weights, strict=True):
        optimiser.zero_grad()
        loss = torch.stack([(weight * (tanh_net(x, net) - target).square()).mean() for net in nets])
        loss.sum().backward()
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses)
