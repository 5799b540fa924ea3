"""World-model learning by csrc/, on a CPU: the gradient steps of a whole batch in one call of each network, where that
can be done and is faster than `loop()`, the forward and backward pass of one step by PyTorch."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from psdrl.agents.psdrl.encoder import Encoder
from psdrl.agents.psdrl.models import Models
from psdrl.kernels import autoencoder_steps, tanh_net_steps, window_steps

Loop = Callable[[], object]


def train_autoencoder(encoder: Encoder, optimiser: torch.optim.Optimizer, frames: Tensor, loop: Loop) -> Tensor | None:
    """A step of Eq. 1 on each of n batches, frames (n, L, c, s, s) -> their losses (n,), or None: no step was taken."""
    net = encoder.pictures()
    if net is None or not autoencoder_steps.possible(frames, optimiser, net):
        return None
    if not autoencoder_steps.serves(frames, net, loop):
        return None
    return autoencoder_steps.autoencoder_steps_(frames, optimiser, net)


def by_window(x: Tensor, window: int) -> Iterator[Tensor]:
    """(L, B, ...) as (windows, rows, ...): the whole windows, then the last one if it is shorter."""
    whole = len(x) - len(x) % window
    if whole:
        yield x[:whole].unflatten(0, (-1, window)).flatten(1, 2)
    if whole < len(x):
        yield x[whole:].flatten(0, 1)[None]


def train_forward(
    models: Models,
    optimisers: dict[str, torch.optim.Optimizer],
    data: tuple[Tensor, ...],
    window: int,
    share: Tensor | None,
    loop: Loop,
    loop_of_ends: Loop,
) -> list[tuple[Tensor, Tensor]]:
    """A step of Eq. 2 and one of Eq. 3 on each window of z (L + 1, B, Z), actions, rewards and ends (L, B) -> both
    losses of each, or nothing: no step was taken. `share` (B,): of each transition in the mean over a single step."""
    (z, actions, rewards, ends), termination = data, models.termination
    net, parameters = models.forward_model.window_net(), list(termination.parameters())
    optimiser, of_ends = optimisers["forward"], optimisers["termination"]
    if net is None or termination.predicted or not window_steps.possible(z, optimiser):
        return []
    window = min(window, len(actions))
    following = list(by_window(z[1:], window))
    if not window_steps.serves(z, net, window, loop):
        return []
    if not tanh_net_steps.serves(following[0], parameters, 1, loop_of_ends):
        return []
    ends, weights = ends.to(z), None if share is None else (share * len(share))[None]
    forward = window_steps.window_steps_(z, actions, rewards.to(z), optimiser, net, window, weights)
    of_errors = termination.weights(ends) if weights is None else weights * termination.weights(ends)
    parts = zip(following, by_window(ends, window), by_window(of_errors, window), strict=True)
    ended = [
        tanh_net_steps.tanh_net_steps_(x, end, of_ends, parameters, 1, weight).flatten() for x, end, weight in parts
    ]
    return list(zip(forward, torch.cat(ended), strict=True))
