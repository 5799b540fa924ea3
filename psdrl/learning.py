"""World-model learning: autoencoder (Eq. 1), forward model (Eq. 2), termination model (Eq. 3)."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from psdrl.config import Config
from psdrl.models import Autoencoder, Models
from psdrl.replay import Batch

Sampler = Callable[[], Batch]
Optimisers = dict[str, torch.optim.Optimizer]
Losses = dict[str, Tensor]


class Latents(Protocol):
    """Latent states by replay slot: encoded anew at each use (plain) or once per update (fast)."""

    def __getitem__(self, slots: Tensor, /) -> Tensor:
        """z (..., Z) of slots (...)."""


def make_optimisers(models: Models, config: Config) -> Optimisers:
    """One Adam per network; vector observations have no autoencoder to train."""
    networks: dict[str, tuple[nn.Module, float]] = {
        "forward": (models.forward_model, config.forward.learning_rate),
        "termination": (models.termination, config.termination.learning_rate),
        "value": (models.value, config.value.learning_rate),
    }
    if isinstance(models.autoencoder, Autoencoder):
        networks["autoencoder"] = (models.autoencoder, config.autoencoder.learning_rate)
    return {name: torch.optim.Adam(net.parameters(), lr) for name, (net, lr) in networks.items()}


def gradient_step(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step down the gradient of the loss."""
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    optimiser.step()


def autoencoder_loss(autoencoder: Autoencoder, observations: Tensor, reduction: str) -> Tensor:
    """Eq. 1 for observations (n, c, 64, 64): squared error of the reconstruction, averaged over n."""
    images = autoencoder.images(observations)
    error = (autoencoder.decode(autoencoder.encoder(images)) - images).square().flatten(1)
    return (error.sum(1) if reduction == "sum" else error.mean(1)).mean()


def forward_loss(prediction: Tensor, target: Tensor, reward_weight: float, reduction: str) -> Tensor:
    """Eq. 2 for predictions and targets [z', r] (n, Z + 1): squared error, averaged over n."""
    error = (prediction - target).square()
    total = error[:, :-1].sum(1) + reward_weight * error[:, -1]
    return (total if reduction == "sum" else total / error.shape[1]).mean()
