"""The interface of encoders (Eq. 1): observations to latent states. `autoencoder.Autoencoder` is the one for images."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor, nn

from psdrl.kernels.autoencoder_steps import Pictures
from psdrl.replay.episodes import Slots

ROWS = 512  # at a time, in the cache
LEAST_DEVIATION = 0.1  # of the largest: pixels that hardly ever change must not become the loudest


def deviation_and_mean(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of the columns of x (n, d), over n: torch.std_mean takes 77 ms for 30,000 x 294 numbers on one thread, this 9."""
    mean = x.mean(0)
    squares = torch.zeros_like(mean, dtype=torch.float64)
    for part in x.split(ROWS):
        squares += (part - mean).square_().sum(0)
    return (squares / len(x)).sqrt().to(x.dtype), mean


class Scales(Protocol):
    """Which numbers of latent states share a scale: a world model, see `WorldModel.by_scale`."""

    def by_scale(self, latents: Tensor) -> Tensor: ...

    def of_scale(self, numbers: Tensor) -> Tensor: ...


class Encoder(nn.Module, ABC):
    """Observations to latent states z (n, Z). A new kind defines `latents`, and `loss` if there is something to learn.

    With `standardise` latent states are scaled by numbers taken from the replay buffer once per update; that is done
    here, the same for every kind."""

    trained = False  # whether there are parameters to learn (Eq. 1)
    channels_last = False  # of latent states that are pictures

    def __init__(self, latent_shape: tuple[int, ...], standardise: bool = False) -> None:
        """`latent_shape`: (Z,), or three numbers if a latent state is a picture of Z numbers."""
        super().__init__()
        self.latent_shape, self.latent_size = latent_shape, math.prod(latent_shape)
        self.standardise = standardise
        self.latent_mean: Tensor
        self.latent_scale: Tensor
        self.register_buffer("latent_mean", torch.zeros(self.latent_size))
        self.register_buffer("latent_scale", torch.ones(self.latent_size))

    @abstractmethod
    def latents(self, observations: Tensor) -> Tensor:
        """Latent states (n, Z), not yet scaled, of observations as the environment gives them."""

    def loss(self, observations: Tensor) -> Tensor:
        """Eq. 1 for observations (n, ...), averaged over n; asked for if `trained`."""
        raise NotImplementedError

    def pictures(self) -> Pictures | None:
        """The same as a network whose gradient steps csrc/ can take, if it is one."""
        return None

    def plain_latents(self, observations: Tensor) -> Tensor:
        """`latents` for the oracle, where that is computed otherwise."""
        return self.latents(observations)

    def plain_loss(self, observations: Tensor) -> Tensor:
        """`loss` for the oracle, where that is computed otherwise."""
        return self.loss(observations)

    def renew(self, frames: Iterable[Tensor]) -> None:
        """Before an update: take what there is to take from stored observations, given in chunks. Nothing here."""

    def encode(self, observations: Tensor) -> Tensor:
        """Latent states (n, Z) as all other networks see them."""
        return self.scaled(self.latents(observations))

    def scaled(self, latents: Tensor) -> Tensor:
        """Latent states (n, Z) as all other networks see them, of those that `latents` gives."""
        return (latents - self.latent_mean) * self.latent_scale if self.standardise else latents

    def decode(self, latents: Tensor) -> Tensor:
        """Observations (n, ...) of latent states (n, Z) as all other networks see them, for people to look at: pixels
        in [0, 1], or the numbers of a vector. Nothing else asks for it."""
        raise NotImplementedError

    def unscaled(self, latents: Tensor) -> Tensor:
        """The inverse of `scaled`."""
        return latents / self.latent_scale + self.latent_mean if self.standardise else latents

    @torch.no_grad()
    def renew_scale(self, latents: Callable[[], Tensor], world: Scales) -> None:
        """After its training: take the scale from all stored states (n, Z), not yet scaled."""
        if not self.standardise:
            return
        deviation, mean = deviation_and_mean(world.by_scale(latents()))
        scale = 1 / deviation.clamp(min=LEAST_DEVIATION * deviation.max())
        # What was never seen to change may change by any amount: it keeps its scale, or gets that of the largest.
        scale = torch.where(deviation > 0, scale, (1 / deviation.max()).clamp(max=1))
        self.latent_mean.copy_(world.of_scale(mean))
        self.latent_scale.copy_(world.of_scale(scale))

    def rescale_(self, table: Tensor, rows: Slots, world: Scales) -> None:
        """The same from the states at these rows (n) of a table (m, Z), which are then scaled in place."""
        if not self.standardise:
            return
        latents = table[rows]
        self.renew_scale(lambda: latents, world)
        if isinstance(rows, slice):  # a view of the table: nothing as large as that is made
            latents.sub_(self.latent_mean).mul_(self.latent_scale)
        else:
            table[rows] = self.scaled(latents)


class Identity(Encoder):
    """Vectors are their own latent state: nothing is learned."""

    channels_last = True

    def latents(self, observations: Tensor) -> Tensor:
        """The observations, on the networks' device and in their dtype."""
        return observations.to(self.latent_mean)

    def decode(self, latents: Tensor) -> Tensor:
        """The numbers of the vector."""
        return self.unscaled(latents)
