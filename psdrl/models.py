"""The networks of Section 3.2: autoencoder, forward model, termination model; and the value network."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from psdrl.config import AutoencoderConfig, Config, ForwardConfig
from psdrl.envs.vector import EnvSpec
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


class Autoencoder(nn.Module):
    """Convolutional encoder E and decoder D for images (Fig. 1a)."""

    def __init__(self, shape: tuple[int, ...], config: AutoencoderConfig) -> None:
        super().__init__()
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
        # First and last layer as products with the image's patches, if these tile it at both ends.
        ends = {config.kernels[0], config.strides[0], config.decoder_kernels[-1]}
        self.patch = config.strides[0] if len(ends) == 1 and height % config.strides[0] == 0 else 0
        self.normalised = config.mean_frame
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
    def refresh(self, chunks: Iterable[Tensor]) -> None:
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

    def decode(self, latents: Tensor) -> Tensor:
        """Images (n, c, 64, 64) in [0, 1] from latent states (n, Z)."""
        images = self.decoder(latents)
        return images / self.contrast + self.mean_frame if self.normalised else images


class Identity(nn.Module):
    """For vector observations: the observation is the latent state; there is nothing to train."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.latent_size = size
        self.like: Tensor
        self.register_buffer("like", torch.zeros(()), persistent=False)  # carries device and dtype

    def encode(self, observations: Tensor) -> Tensor:
        """Latent states z (n, Z) of observations (n, Z)."""
        return observations.to(self.like)


def one_hot(actions: Tensor, num_actions: int, like: Tensor) -> Tensor:
    """Actions (n,) as one-hot rows (n, A) in `like`'s dtype; F.one_hot would look at the numbers on the host."""
    return (actions[..., None] == torch.arange(num_actions, device=actions.device)).to(like.dtype)


class ForwardModel(nn.Module):
    """Forward model f (Fig. 1b): GRU cell, feature map phi on [h', z, onehot(a)], linear output layer W."""

    def __init__(self, latent: int, num_actions: int, config: ForwardConfig) -> None:
        super().__init__()
        self.latent_size, self.num_actions = latent, num_actions
        self.tanh_features = config.feature_activation == "tanh"
        self.gru = nn.GRUCell(latent + num_actions, config.recurrent)
        widths = [config.recurrent + latent + num_actions] + [config.units] * (config.layers - 1)
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(widths))
        with torch.no_grad():
            next(self.layers[0].parameters()).mul_(config.gain)
        self.skip = config.skip
        features = config.units + (widths[0] if config.skip else 0)
        self.output = nn.Linear(features, latent + 1)  # the bias serves only the no-sampling ablations

    def linear_layers(self) -> list[nn.Linear]:
        """The feature network's layers."""
        return cast(list[nn.Linear], list(self.layers))

    def next_hidden(self, latents: Tensor, actions: Tensor, hidden: Tensor) -> Tensor:
        """h' (n, H) after actions (n,) in z (n, Z) with h (n, H)."""
        return self.gru(torch.cat([latents, one_hot(actions, self.num_actions, latents)], 1), hidden)

    def features(self, next_hidden: Tensor, latents: Tensor, actions: Tensor) -> Tensor:
        """Feature vectors phi(z, a, h) (n, k); h enters through h'."""
        return self.feature_layers(torch.cat([next_hidden, latents, one_hot(actions, self.num_actions, latents)], 1))

    def feature_layers(self, x: Tensor) -> Tensor:
        """Feature vectors phi (n, k) from x = [h', z, onehot(a)] (n, H + Z + A); with `skip` they end with x."""
        *hidden_layers, last = self.layers
        phi = x
        for layer in hidden_layers:
            phi = torch.tanh(layer(phi))
        phi = torch.tanh(last(phi)) if self.tanh_features else last(phi)
        return torch.cat([phi.to(x.dtype), x], 1) if self.skip else phi

    def forward(self, latents: Tensor, actions: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Prediction [z', r] (n, Z + 1) with the trained output layer, and h' (n, H)."""
        hidden = self.next_hidden(latents, actions, hidden)
        return self.output(self.features(hidden, latents, actions)), hidden


class TanhNet(nn.Module):
    """Layers of `units` tanh units and a linear output of one number: termination model and value network."""

    def __init__(self, inputs: int, units: int, layers: int) -> None:
        super().__init__()
        widths = [inputs] + [units] * (layers - 1) + [1]
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(widths))

    def linear_layers(self) -> list[nn.Linear]:
        """The layers, the output layer last."""
        return cast(list[nn.Linear], list(self.layers))

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs) -> (n,)."""
        *hidden_layers, last = self.layers
        for layer in hidden_layers:
            x = torch.tanh(layer(x))
        return last(x).squeeze(1)


class Smallest(nn.ModuleList):
    """Value networks that are asked together: the smallest of their values."""

    def __init__(self, count: int, inputs: int, units: int, layers: int) -> None:
        super().__init__(TanhNet(inputs, units, layers) for _ in range(count))

    def networks(self) -> list[TanhNet]:
        """The networks."""
        return cast(list[TanhNet], list(self))

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs) -> (n,)."""
        return torch.stack([network(x) for network in self]).amin(0)


def value_of(value: nn.Module, latents: Tensor, hidden: Tensor) -> Tensor:
    """V(z, h) (n,)."""
    return value(torch.cat([latents, hidden], 1))


@dataclass
class SampledModel:
    """An output layer for the forward model: a draw W~ from the posterior, or the trained W with its bias."""

    weight: Tensor  # (Z + 1, k)
    bias: Tensor  # (Z + 1,), zero for a draw: the posterior has no bias
    folded: Any = field(default=None, repr=False)  # filled by psdrl.kernels.lookahead.factored at first use


LEAST_DEVIATION = 0.1  # of the largest: pixels that hardly ever change must not become the loudest
NO_BOUND = torch.finfo(torch.float32).max


class Models(nn.Module):
    """All networks of the agent."""

    def __init__(self, config: Config, spec: EnvSpec) -> None:
        super().__init__()
        self.autoencoder: Autoencoder | Identity = (
            Autoencoder(spec.shape, config.autoencoder) if spec.kind == "image" else Identity(spec.shape[0])
        )
        latent, hidden = self.autoencoder.latent_size, config.forward.recurrent
        self.forward_model = ForwardModel(latent, spec.num_actions, config.forward)
        self.termination = TanhNet(latent, config.termination.units, config.termination.layers)
        size = (config.value.networks, latent + hidden, config.value.units, config.value.layers)
        self.value = Smallest(*size)
        self.target = Smallest(*size).requires_grad_(False)
        self.target.load_state_dict(self.value.state_dict())
        self.averaged = config.value.target_rate < 1
        self.options, self.automatic_weight = config.latent, config.forward.reward_weight == 0
        self.latent_mean: Tensor
        self.latent_scale: Tensor
        self.latent_low: Tensor
        self.latent_high: Tensor
        self.reward_weight: Tensor
        self.register_buffer("latent_mean", torch.zeros(latent))
        self.register_buffer("latent_scale", torch.ones(latent))
        self.register_buffer("latent_low", torch.full((latent,), -NO_BOUND))
        self.register_buffer("latent_high", torch.full((latent,), NO_BOUND))
        self.register_buffer("reward_weight", torch.tensor(config.forward.reward_weight or 1.0))

    def encode(self, observations: Tensor) -> Tensor:
        """Latent states (n, Z) of observations as the environment gives them."""
        return self.scaled(self.autoencoder.encode(observations))

    def scaled(self, latents: Tensor) -> Tensor:
        """Latent states (n, Z) in the scale that all other networks see."""
        return (latents - self.latent_mean) * self.latent_scale if self.options.standardise else latents

    @torch.no_grad()
    def refresh(self, latents: Tensor, rewards: Tensor) -> None:
        """Take scales and ranges from the replay buffer: latents (n, Z) as encoded, rewards (N,) as stored."""
        if self.options.standardise:
            self.latent_mean.copy_(latents.mean(0))
            deviation = latents.std(0, correction=0)
            self.latent_scale.copy_(1 / deviation.clamp(min=LEAST_DEVIATION * deviation.max()))
        if self.options.clamp:
            self.latent_low.copy_(self.scaled(latents.amin(0)))
            self.latent_high.copy_(self.scaled(latents.amax(0)))
        if self.automatic_weight:
            self.reward_weight.copy_((3 / rewards.double().var(correction=0)).clamp(1, 1000))

    @property
    def needs_refresh(self) -> bool:
        """Whether any option takes something from the replay buffer."""
        return self.options.standardise or self.options.clamp or self.automatic_weight

    @property
    def bounds(self) -> tuple[Tensor, Tensor] | None:
        """Smallest and largest latent state (Z,) for predictions, if they are clamped."""
        return (self.latent_low, self.latent_high) if self.options.clamp else None

    @property
    def acting_value(self) -> Smallest:
        """The value networks that act: V, or the average of its past that the target network is."""
        return self.target if self.averaged else self.value

    def counts(self) -> Iterator[tuple[str, int]]:
        """Parameters of each network."""
        for name in ("autoencoder", "forward_model", "termination", "value"):
            yield name, sum(p.numel() for p in getattr(self, name).parameters())
