"""Observations to latent states: the convolutional autoencoder (Eq. 1, Fig. 1a), and none for vectors."""

from collections.abc import Iterable
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from psdrl.agents.psdrl.grid import Places
from psdrl.agents.psdrl.settings import AutoencoderConfig
from psdrl.errors import UserError
from psdrl.kernels.convolution import (
    FEW_PIXELS,
    GemmConv2d,
    GemmConvTranspose2d,
    convolved,
    from_tiles,
    tiles,
    to_tiles,
)

FEW_FRAMES = 8  # 1 frame: 167 us by oneDNN, 110 by products; 8: 323 and 266; 16: 387 and 503 (cpu preset)


class Encoder(nn.Module):
    """Observations to latent states. This one is for vectors, which are their own latent state: nothing is learned."""

    trained = False  # whether there are parameters to learn (Eq. 1)
    renewed = False  # whether something is taken from the stored observations in every update
    latent_size: int
    places: Places | None  # the grid that a latent state is, if it is one

    def __init__(self, size: int, grid: tuple[int, int, int] | None = None) -> None:
        super().__init__()
        self.latent_size = size
        self.places = Places(*grid, channels_last=True) if grid else None
        self.like: Tensor
        self.register_buffer("like", torch.zeros(()), persistent=False)  # carries device and dtype

    def encode(self, observations: Tensor) -> Tensor:
        """Latent states z (n, Z) of observations as the environment gives them."""
        return observations.to(self.like)

    def encode_plainly(self, observations: Tensor) -> Tensor:
        """The same, for the oracle."""
        return self.encode(observations)

    def reconstruct(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """What Eq. 1 compares: the observations and D(E(.)) of them."""
        latents = self.encode(observations)
        return latents, latents

    def reconstruct_plainly(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """The same, for the oracle."""
        return self.reconstruct(observations)

    def renew(self, chunks: Iterable[Tensor]) -> None:
        """Take what there is to take from the stored observations, given in chunks."""


class Autoencoder(Encoder):
    """Convolutional encoder E and decoder D for images (Fig. 1a)."""

    trained = True

    def __init__(self, shape: tuple[int, ...], config: AutoencoderConfig) -> None:
        nn.Module.__init__(self)
        channels, height, width = shape
        if height != width:
            raise UserError(f"Images of {height}x{width} are not supported: they must be square.")
        sizes = [height]
        layers: list[nn.Module] = []
        for inputs, outputs, kernel, stride in zip(
            (channels, *config.channels[:-1]), config.channels, config.kernels, config.strides, strict=True
        ):
            sizes.append((sizes[-1] - kernel) // stride + 1)
            if sizes[-1] < 1:
                raise UserError(
                    f"The encoder shrinks a {height}x{height} image to nothing (sizes {sizes}): "
                    "use fewer layers or smaller --autoencoder.kernels and .strides."
                )
            conv = GemmConv2d if sizes[-1] <= FEW_PIXELS else nn.Conv2d
            layers += [conv(inputs, outputs, kernel, stride), nn.ReLU(inplace=True)]  # ReLU also after the last
        flat = (config.channels[-1], sizes[-1], sizes[-1])
        flat_size = flat[0] * flat[1] * flat[2]
        layers.append(nn.Flatten())
        back: list[nn.Module] = []
        if config.latent:
            layers.append(nn.Linear(flat_size, config.latent))
            back += [nn.Linear(config.latent, flat_size), nn.ReLU(inplace=True)]
        back.append(nn.Unflatten(1, flat))
        size = sizes[-1]
        steps = list(pairwise((*reversed(config.channels), channels)))
        for i, (inputs, outputs) in enumerate(steps):
            kernel, stride, small = config.decoder_kernels[i], config.strides[-1 - i], size
            size = (size - 1) * stride + kernel
            last = i == len(steps) - 1
            padding = height - size if last else 0  # only the last layer pads, to reach the image's size
            if last and not 0 <= padding < stride:
                raise UserError(
                    f"The decoder makes {size}x{size} images of {height}x{height} ones: change --autoencoder.decoder-"
                    f"kernels so that they end between {height - stride + 1} and {height}."
                )
            transposed = GemmConvTranspose2d if small <= FEW_PIXELS or outputs == 1 else nn.ConvTranspose2d
            back.append(transposed(inputs, outputs, kernel, stride, output_padding=padding))
            back += [] if last else [nn.ReLU(inplace=True)]
        self.encoder, self.decoder = nn.Sequential(*layers), nn.Sequential(*back)
        self.latent_size = config.latent or flat_size
        self.places = None if config.latent else Places(sizes[-1], sizes[-1], flat[0], channels_last=False)
        # First and last layer as products with the image's patches, if these tile it at both ends.
        ends = {config.kernels[0], config.strides[0], config.decoder_kernels[-1]}
        self.patch = config.strides[0] if len(ends) == 1 and height % config.strides[0] == 0 else 0
        self.normalised = self.renewed = config.mean_frame
        self.mean_frame: Tensor
        self.contrast: Tensor
        self.register_buffer("mean_frame", torch.zeros(shape))
        self.register_buffer("contrast", torch.ones(()))
        if self.patch:
            # Patches are normalised in two operations, with numbers made once per update: in acting each costs 5 us.
            self.patch_offset: Tensor
            self.patch_gain: Tensor
            self.register_buffer("patch_offset", tiles(torch.zeros(1, *shape), self.patch), persistent=False)
            self.register_buffer("patch_gain", torch.tensor(1 / 255), persistent=False)
            self.register_load_state_dict_post_hook(lambda module, _: module._derive())
        # A gradient step at the paper's sizes on 2 CPU threads: 1.52 s in the default layout, 1.05 s in this one.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def images(self, observations: Tensor) -> Tensor:
        """Observations (n, c, 64, 64) of uint8 as numbers in [0, 1]; normalised ones less their mean, in unit scale."""
        images = self._scaled(observations).to(memory_format=torch.channels_last)
        return (images - self.mean_frame) * self.contrast if self.normalised else images

    def _scaled(self, observations: Tensor) -> Tensor:
        dtype = next(self.parameters()).dtype
        return observations / 255 if dtype == torch.get_default_dtype() else observations.to(dtype) / 255

    def _patches(self, observations: Tensor) -> Tensor:
        """The same as patches."""
        patches = tiles(observations, self.patch)
        return (patches - self.patch_offset).mul_(self.patch_gain) if self.normalised else self._scaled(patches)

    @torch.no_grad()
    def renew(self, chunks: Iterable[Tensor]) -> None:
        """Take mean frame and contrast (one over the pixels' root mean square deviation) from all observations."""
        count, total, squares = 0, torch.zeros_like(self.mean_frame), torch.zeros_like(self.mean_frame)
        for observations in chunks:
            images = self._scaled(observations)
            count, total, squares = count + len(images), total + images.sum(0), squares + images.square().sum(0)
        self.mean_frame.copy_(total / count)
        variance = (squares / count - self.mean_frame.square()).mean()
        self.contrast.copy_(variance.clamp(min=1e-6).rsqrt())
        self._derive()

    @torch.no_grad()
    def _derive(self) -> None:
        """What `_patches` needs of mean frame and contrast: (x / 255 - mean) contrast = (x - offset) gain."""
        if self.patch:
            self.patch_offset.copy_(255 * tiles(self.mean_frame[None], self.patch))
            self.patch_gain.copy_(self.contrast / 255)

    def encode(self, observations: Tensor) -> Tensor:
        """Latent states z (n, Z) of observations (n, c, 64, 64)."""
        if self.patch:
            return self._encode_patches(self._patches(observations))
        return self.encoder(self.images(observations))

    def reconstruct(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Observations (n, c, 64, 64) as `images` and D(E(.)) of them, the pixels of both in the same order.

        Where patches tile the image their order is the patches' own, which saves three copies of every frame."""
        if not self.patch:
            images = self.images(observations)
            return images, self.decoder(self.encoder(images))
        patches = self._patches(observations)
        x = self._encode_patches(patches)
        *inner, last = self.decoder
        for layer in inner:
            x = layer(x)
        assert isinstance(last, nn.ConvTranspose2d)
        assert last.bias is not None
        return patches, to_tiles(x, last.weight, last.bias)

    def encode_plainly(self, observations: Tensor) -> Tensor:
        return self.encoder(self.images(observations))

    def reconstruct_plainly(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        images = self.images(observations)
        return images, self.decoder(self.encoder(images))

    def _encode_patches(self, patches: Tensor) -> Tensor:
        first, *rest = self.encoder
        if len(patches) <= FEW_FRAMES and patches.is_cpu and not torch.is_grad_enabled():
            return self._encode_few(patches)
        assert isinstance(first, nn.Conv2d)
        assert first.bias is not None
        x = from_tiles(patches, first.weight, first.bias)
        for layer in rest:
            x = layer(x)
        return x

    def _encode_few(self, patches: Tensor) -> Tensor:
        """The same for acting: channels last from end to end, every convolution a product."""
        first, *convolutions = (layer for layer in self.encoder if isinstance(layer, nn.Conv2d))
        x = from_tiles(patches, first.weight, cast(Tensor, first.bias)).permute(0, 2, 3, 1).relu_()
        for layer in convolutions:
            x = convolved(x, layer.weight, cast(Tensor, layer.bias), layer.stride[0]).relu_()
        x = x.permute(0, 3, 1, 2).flatten(1)
        last = self.encoder[-1]
        return last(x) if isinstance(last, nn.Linear) else x
