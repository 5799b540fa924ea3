"""The convolutional autoencoder (Eq. 1, Fig. 1a): images to latent states."""

from collections.abc import Iterable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from psdrl.agents.psdrl.encoder import Encoder
from psdrl.agents.psdrl.settings import AutoencoderConfig
from psdrl.errors import UserError
from psdrl.kernels.autoencoder_steps import Pictures
from psdrl.kernels.convolution import (
    FEW_PIXELS,
    GemmConv2d,
    GemmConvTranspose2d,
    encode_tiles,
    encodes,
    from_tiles,
    head,
    shuffles,
    stem,
    tiles,
    to_tiles,
)

KERNEL = 4  # of every convolution but the decoder's last [released]
SMALL = 8  # the encoder's result is at most this high and wide


class Layer(NamedTuple):
    """A convolution of the encoder, or a transposed one of the decoder."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    size: int  # height and width of what it makes
    padding: int = 0  # of the output


def layers(images: int, height: int, channels: tuple[int, ...]) -> tuple[list[Layer], list[Layer]]:
    """Encoder and decoder for `images` planes of height x height pixels.

    Every convolution halves the picture but the first, whose stride brings it down to SMALL; the decoder goes back, its
    last kernel just large enough. The released code's (2, 2, 2, 2), and 5 for the last kernel, at four layers and 64
    pixels; (4, 2), and 4, at two."""
    first = max(2, -(-height // (SMALL * 2 ** (len(channels) - 1))))
    encoder, decoder, size = [], [], height
    for i, (inputs, outputs) in enumerate(zip((images, *channels), channels, strict=False)):
        stride = 2 if i else first
        size = (size - KERNEL) // stride + 1
        encoder.append(Layer(inputs, outputs, KERNEL, stride, size))
    if size < 1:
        sizes = [height, *(layer.size for layer in encoder)]
        raise UserError(
            f"The encoder shrinks a {height}x{height} image to nothing (sizes {sizes}): use fewer "
            "--autoencoder.channels."
        )
    for i, layer in enumerate(reversed(encoder)):
        rest, kernel = 0, KERNEL
        if i == len(encoder) - 1:  # only the last layer pads, to reach the image's size
            missing = height - (size - 1) * layer.stride - kernel
            rest = min(missing, layer.stride - 1)
            kernel += missing - rest
        size = (size - 1) * layer.stride + kernel + rest
        decoder.append(Layer(layer.outputs, layer.inputs, kernel, layer.stride, size, rest))
    return encoder, decoder


class Autoencoder(Encoder):
    """Convolutional encoder E and decoder D (Fig. 1a). With `standardise` images are normalised too: less their mean,
    in unit scale."""

    trained = True

    def __init__(
        self, shape: tuple[int, ...], config: AutoencoderConfig, standardise: bool = False, reduction: str = "sum"
    ) -> None:
        """`reduction` of the squared errors over pixels: sum [paper] or mean."""
        channels, height, width = shape
        if height != width:
            raise UserError(f"Images of {height}x{width} are not supported: they must be square.")
        forth, back = layers(channels, height, config.channels)
        last, modules = forth[-1], list[nn.Module]()
        flat = (last.outputs, last.size, last.size)
        flat_size = last.outputs * last.size**2
        super().__init__((config.latent,) if config.latent else flat, standardise)
        for layer in forth:
            conv = GemmConv2d if layer.size <= FEW_PIXELS else nn.Conv2d
            modules += [conv(*layer[:4]), nn.ReLU(inplace=True)]  # ReLU also after the last
        modules.append(nn.Flatten())
        inverse = list[nn.Module]()
        if config.latent:
            modules.append(nn.Linear(flat_size, config.latent))
            inverse += [nn.Linear(config.latent, flat_size), nn.ReLU(inplace=True)]
        inverse.append(nn.Unflatten(1, flat))
        size = last.size
        for layer in back:
            transposed = GemmConvTranspose2d if size <= FEW_PIXELS or layer.outputs == 1 else nn.ConvTranspose2d
            inverse += [transposed(*layer[:4], output_padding=layer.padding), nn.ReLU(inplace=True)]
            size = layer.size
        self.encoder, self.decoder = nn.Sequential(*modules), nn.Sequential(*inverse[:-1])  # no ReLU after the last
        self.reduction = reduction
        # First and last layer as products with the image's patches, if these tile it at both ends.
        stride = forth[0].stride
        tiled = {KERNEL, back[-1].kernel} == {stride} and height % stride == 0
        self.patch = stride if tiled else 0
        self._blocks = 0 if tiled or not shuffles(self._first, self._last, height) else stride  # see `shuffled`
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
        images = self._in_unit(observations).to(memory_format=torch.channels_last)
        return (images - self.mean_frame) * self.contrast if self.standardise else images

    def _in_unit(self, observations: Tensor) -> Tensor:
        dtype = next(self.parameters()).dtype
        return observations / 255 if dtype == torch.get_default_dtype() else observations.to(dtype) / 255

    def _patches(self, observations: Tensor) -> Tensor:
        """The same as patches."""
        patches = tiles(observations, self.patch)
        if not self.standardise:
            return self._in_unit(patches)
        return (patches - self.patch_offset).mul_(self.patch_gain)

    @torch.no_grad()
    def renew(self, chunks: Iterable[Tensor]) -> None:
        """Take mean frame and contrast (one over the pixels' root mean square deviation) from the observations."""
        if not self.standardise:
            return
        count, total, squares = 0, torch.zeros_like(self.mean_frame), torch.zeros_like(self.mean_frame)
        for observations in chunks:
            images = self._in_unit(observations)
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

    @property
    def _first(self) -> nn.Conv2d:
        return cast(nn.Conv2d, self.encoder[0])

    @property
    def _last(self) -> nn.ConvTranspose2d:
        return cast(nn.ConvTranspose2d, self.decoder[-1])

    def shuffled(self, observations: Tensor) -> bool:
        """Whether blocks of pixels are the channels at both ends: on a GPU, see `kernels.convolution.shuffled`."""
        return bool(self._blocks) and observations.is_cuda

    def _encode_blocks(self, blocks: Tensor) -> Tensor:
        assert self._first.bias is not None
        return self.encoder[1:](stem(blocks, self._first.weight, self._first.bias, self._blocks))

    def latents(self, observations: Tensor) -> Tensor:
        """Latent states z (n, Z) of observations (n, c, 64, 64), not yet scaled."""
        if self.shuffled(observations):
            return self._encode_blocks(tiles(self.images(observations), self._blocks))
        if not self.patch:
            return self.encoder(self.images(observations))
        convolutions = [layer for layer in self.encoder if isinstance(layer, nn.Conv2d)]
        if not encodes(observations, convolutions[0].weight):
            return self._encode_patches(self._patches(observations))
        flat, last = encode_tiles(observations, self.mean_frame, self.contrast, convolutions), self.encoder[-1]
        return last(flat) if isinstance(last, nn.Linear) else flat

    def reconstruct(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Observations (n, c, 64, 64) as `images` and D(E(.)) of them, the pixels of both in the same order.

        Where patches tile the image their order is the patches' own, which saves three copies of every frame."""
        if self.shuffled(observations):
            blocks = tiles(self.images(observations), self._blocks)
            assert self._last.bias is not None
            x = self.decoder[:-1](self._encode_blocks(blocks))
            return blocks, head(x, self._last.weight, self._last.bias, self._blocks)
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

    def decode(self, latents: Tensor) -> Tensor:
        """D(z) (n, c, 64, 64) of latent states (n, Z) as all other networks see them: pixels in [0, 1]."""
        images = self.decoder(self.unscaled(latents))
        images = images / self.contrast + self.mean_frame if self.standardise else images
        return images.clamp(0, 1)

    def loss(self, observations: Tensor) -> Tensor:
        """Eq. 1 for observations (n, c, 64, 64): squared error of the reconstruction, averaged over n."""
        error = F.mse_loss(*self.reconstruct(observations), reduction=self.reduction)
        return error / len(observations) if self.reduction == "sum" else error

    def pictures(self) -> Pictures | None:
        forth = [layer for layer in self.encoder if isinstance(layer, nn.Conv2d)]
        linear = isinstance(self.encoder[-1], nn.Linear)
        if type(self) is not Autoencoder or not self.patch or linear:  # a class derived from this may compute otherwise
            return None
        strides = [layer.stride[0] for layer in forth]
        return Pictures(list(self.parameters()), strides, self.mean_frame, self.contrast, self.reduction == "mean")

    def plain_latents(self, observations: Tensor) -> Tensor:
        return self.encoder(self.images(observations))

    def plain_loss(self, observations: Tensor) -> Tensor:
        images = self.images(observations)
        error = (self.decoder(self.encoder(images)) - images).square().flatten(1)
        return (error.sum(1) if self.reduction == "sum" else error.mean(1)).mean()

    def _encode_patches(self, patches: Tensor) -> Tensor:
        first, *rest = self.encoder
        assert isinstance(first, nn.Conv2d)
        assert first.bias is not None
        x = from_tiles(patches, first.weight, first.bias)
        for layer in rest:
            x = layer(x)
        return x
