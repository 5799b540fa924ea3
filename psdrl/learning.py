"""World-model learning: autoencoder (Eq. 1), forward model (Eq. 2), termination model (Eq. 3).

The fast path. Latent states come from a table that is filled once per update. Within a window of truncated
backpropagation the parameters are fixed, so the GRU is scanned first and everything that is not recurrent runs over
all l * B rows at once.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from psdrl.compiling import compiled
from psdrl.config import Config
from psdrl.kernels.linear_tanh import linear_tanh
from psdrl.models import Autoencoder, ForwardModel, Models, TanhNet, one_hot
from psdrl.replay import Batch, Replay

Sampler = Callable[[], Batch]
Optimisers = dict[str, torch.optim.Optimizer]
Losses = dict[str, Tensor]


class Latents(Protocol):
    """Latent states by replay slot: encoded anew at each use (plain) or once per update (fast)."""

    def __getitem__(self, slots: Tensor, /) -> Tensor:
        """z (..., Z) of slots (...)."""


def make_optimisers(models: Models, config: Config, fused: bool = True) -> Optimisers:
    """One Adam per network; vector observations have no autoencoder to train."""
    networks: dict[str, tuple[nn.Module, float]] = {
        "forward": (models.forward_model, config.forward.learning_rate),
        "termination": (models.termination, config.termination.learning_rate),
        "value": (models.value, config.value.learning_rate),
    }
    if isinstance(models.autoencoder, Autoencoder):
        networks["autoencoder"] = (models.autoencoder, config.autoencoder.learning_rate)
    return {name: torch.optim.Adam(net.parameters(), lr, fused=fused) for name, (net, lr) in networks.items()}


def gradient_step(optimisers: tuple[torch.optim.Optimizer, ...], loss: Tensor) -> None:
    """One step down the gradient of the loss, for one network or for several that share no parameters."""
    for optimiser in optimisers:
        optimiser.zero_grad(set_to_none=True)
    loss.backward()
    for optimiser in optimisers:
        optimiser.step()


def autoencoder_loss(autoencoder: Autoencoder, observations: Tensor, reduction: str) -> Tensor:
    """Eq. 1 for observations (n, c, 64, 64): squared error of the reconstruction, averaged over n."""
    error = F.mse_loss(*autoencoder.reconstruct(observations), reduction=reduction)
    return error / len(observations) if reduction == "sum" else error


def forward_loss(prediction: Tensor, target: Tensor, reward_weight: float, reduction: str) -> Tensor:
    """Eq. 2 for predictions and targets [z', r] (n, Z + 1): squared error, averaged over n."""
    error = (prediction - target).square()
    total = error[:, :-1].sum(1) + reward_weight * error[:, -1]
    return (total if reduction == "sum" else total / error.shape[1]).mean()


def train_autoencoder(
    models: Models, optimisers: Optimisers, replay: Replay, sample: Sampler, config: Config
) -> Losses:
    """Line 6 of Algorithm 1: per iteration B gradient steps, each on the L observations of one sequence."""
    autoencoder = models.autoencoder
    if not isinstance(autoencoder, Autoencoder):
        return {}
    losses = []
    loss_of = compiled(autoencoder_loss, config.compile)
    for _ in range(config.autoencoder.iterations):
        for slots in sample().slots[:, :-1]:
            loss = loss_of(autoencoder, replay.frames(slots), config.loss_reduction)
            gradient_step((optimisers["autoencoder"],), loss)
            losses.append(loss.detach())
    return {"autoencoder": torch.stack(losses).mean()} if losses else {}


@torch.no_grad()
def encode_buffer(models: Models, replay: Replay, chunk_rows: int) -> Tensor:
    """Latent states (slots, Z) of all stored observations, each encoded once; unused slots are zero."""
    like = next(models.forward_model.parameters())
    table = like.new_zeros(replay.num_slots, models.autoencoder.latent_size)
    # 256 frames make 47 MB of activations in the paper's first convolution; more are no faster.
    for slots in replay.stored_slots().split(min(chunk_rows, 256)):
        table[slots] = models.encode(replay.frames(slots))
    return table


def scan(forward_model: ForwardModel, inputs: Tensor, hidden: Tensor, batch_sizes: Tensor | None = None) -> Tensor:
    """The GRU over time: inputs [z, onehot(a)] (T, B, Z + A) and h_0 (B, H) -> h_1 ... h_T (T, B, H).

    With `batch_sizes` (T,), as in a packed sequence, inputs and result are (rows, .) with fewer and fewer sequences.
    """
    gru = forward_model.gru
    weights = [gru.weight_ih, gru.weight_hh, gru.bias_ih, gru.bias_hh]
    if batch_sizes is None:
        return torch.gru(inputs, hidden[None], weights, True, 1, 0.0, False, False, False)[0]
    return torch.gru(inputs, batch_sizes, hidden[None], weights, True, 1, 0.0, False, False)[0]


class LinearTanh(torch.autograd.Function):
    """tanh(x W^T + b) by the fused kernel, and its gradient: 0.19 ms less per layer and window at the cpu preset."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = linear_tanh(x, weight, bias)
        ctx.save_for_backward(x, weight, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight, y = ctx.saved_tensors
        delta = torch.ops.aten.tanh_backward(gradient, y)
        return delta @ weight if ctx.needs_input_grad[0] else None, delta.T @ x, delta.sum(0)


def tanh_layers(layers: list[nn.Linear], x: Tensor) -> Tensor:
    """The layers in turn, each followed by tanh: rows (n, inputs) -> (n, outputs)."""
    for layer in layers:
        x = LinearTanh.apply(x, layer.weight, layer.bias)
    return x


def window_losses(
    forward_model: ForwardModel,
    termination: TanhNet,
    latents: Tensor,
    actions: Tensor,
    rewards: Tensor,
    terminated: Tensor,
    hidden: Tensor,
    reward_weight: float,
    reduction: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Eq. 2 and Eq. 3 over a window: z (l + 1, B, Z), the rest (l, B), h_0 (B, H) -> both losses and h_l (B, H)."""
    following = latents[1:].flatten(0, 1)
    inputs = torch.cat([latents[:-1], one_hot(actions, forward_model.num_actions, latents)], 2)
    states = scan(forward_model, inputs, hidden)
    *hidden_layers, last = forward_model.linear_layers()
    features = tanh_layers(hidden_layers, torch.cat([states, inputs], 2).flatten(0, 1))
    features = tanh_layers([last], features) if forward_model.tanh_features else last(features)
    target = torch.cat([following, rewards.reshape(-1, 1).to(following)], 1)
    loss = forward_loss(forward_model.output(features), target, reward_weight, reduction)
    *hidden_layers, last = termination.linear_layers()
    error = last(tanh_layers(hidden_layers, following)).squeeze(1) - terminated.flatten()
    return loss, error.square().mean(), states[-1].detach()


def train_forward(models: Models, optimisers: Optimisers, latents: Latents, sample: Sampler, config: Config) -> Losses:
    """Lines 7 and 8: windows of l steps of truncated backpropagation through time, the hidden state carried on."""
    forward_model, termination = models.forward_model, models.termination
    losses, termination_losses = [], []
    losses_of = compiled(window_losses, config.compile)
    for _ in range(config.forward.iterations):
        batch = sample()
        size, length = batch.actions.shape
        hidden = forward_model.output.weight.new_zeros(size, config.forward.recurrent)
        for start in range(0, length, config.forward.window):
            stop = min(start + config.forward.window, length)
            loss, termination_loss, hidden = losses_of(
                forward_model,
                termination,
                latents[batch.slots[:, start : stop + 1].T],  # time first
                batch.actions[:, start:stop].T,
                batch.rewards[:, start:stop].T,
                batch.terminated[:, start:stop].T,
                hidden,
                config.forward.reward_weight,
                config.loss_reduction,
            )
            # The two losses share no parameters: one backward pass serves both networks.
            gradient_step((optimisers["forward"], optimisers["termination"]), loss + termination_loss)
            losses.append(loss.detach())
            termination_losses.append(termination_loss.detach())
    if not losses:
        return {}
    return {"forward": torch.stack(losses).mean(), "termination": torch.stack(termination_losses).mean()}
