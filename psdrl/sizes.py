"""Multiply-adds and weights of the networks that `psdrl.models` builds, for the cost model."""

from dataclasses import dataclass
from itertools import pairwise

from psdrl.config import Config
from psdrl.envs.vector import EnvSpec


@dataclass(frozen=True)
class Sizes:
    """Multiply-adds per row and parameters of each network."""

    latent: int
    hidden: int
    features: int
    actions: int
    encoder: int  # multiply-adds per frame
    autoencoder: int
    forward: int  # multiply-adds per row, GRU included
    gru: int  # of these: the GRU
    state: int  # of these: once per state in the factored lookahead
    action: int  # per state and action in the folded lookahead
    termination: int
    value: int
    parameters: dict[str, int]

    @classmethod
    def of(cls, config: Config, spec: EnvSpec) -> "Sizes":
        """Count what `psdrl.models` builds."""
        encoder, decoder, latent, ae_parameters = convolutions(config, spec)
        f, hidden, actions = config.forward, config.forward.recurrent, spec.num_actions
        widths = [hidden + latent + actions] + [f.units] * (f.layers - 1)
        inner = [a * b for a, b in pairwise(widths)]
        gru = 3 * hidden * (latent + actions + hidden)
        direct = latent + 1 if f.skip else 0
        features = f.units + (widths[0] if f.skip else 0)
        output = features * (latent + 1)
        linear_tail = f.feature_activation == "linear"
        # Factored: projections of z and h once per state; per action h' enters the first layer; the last linear
        # layer is folded into the output layer.
        state = 3 * hidden * (latent + hidden) + latent * (f.units + direct)
        action = hidden * (f.units + direct) + sum(inner[1 : len(inner) - linear_tail]) + f.units * (latent + 1)
        termination = tanh_net(latent, config.termination.units, config.termination.layers)
        value = config.value.networks * tanh_net(latent + hidden, config.value.units, config.value.layers)
        parameters = {"forward": gru + sum(inner) + output, "termination": termination, "value": value}
        if ae_parameters:
            parameters["autoencoder"] = ae_parameters
        return cls(
            latent, hidden, features, actions, encoder, encoder + decoder, gru + sum(inner) + output, gru, state,
            action, termination, value, parameters,
        )  # fmt: skip


def tanh_net(inputs: int, units: int, layers: int) -> int:
    """Multiply-adds per row, and weights, of a tanh network with one output."""
    widths = [inputs] + [units] * (layers - 1) + [1]
    return sum(a * b for a, b in pairwise(widths))


def convolutions(config: Config, spec: EnvSpec) -> tuple[int, int, int, int]:
    """Multiply-adds per frame of encoder and decoder, the latent size, and parameters."""
    if spec.kind == "vector":
        return 0, 0, spec.shape[0], 0
    c, size, channels = config.autoencoder, spec.shape[1], spec.shape[0]
    encoder = decoder = parameters = 0
    for outputs, kernel, stride in zip(c.channels, c.kernels, c.strides, strict=True):
        size = (size - kernel) // stride + 1
        encoder += size * size * outputs * channels * kernel * kernel
        parameters += outputs * channels * kernel * kernel
        channels = outputs
    flat = channels * size * size
    if c.latent:
        encoder, decoder, parameters = encoder + flat * c.latent, flat * c.latent, parameters + 2 * flat * c.latent
    for inputs, outputs, kernel, stride in zip(
        reversed(c.channels), [*reversed(c.channels[:-1]), spec.shape[0]], c.decoder_kernels, reversed(c.strides),
        strict=True,
    ):  # fmt: skip
        decoder += size * size * inputs * outputs * kernel * kernel  # each input cell spreads over a kernel
        size = (size - 1) * stride + kernel
        parameters += inputs * outputs * kernel * kernel
    return encoder, decoder, c.latent or flat, parameters


def cells(config: Config, spec: EnvSpec) -> tuple[int, int]:
    """Activations per frame that the convolutions of encoder and decoder make."""
    c, size = config.autoencoder, spec.shape[1]
    encoder = decoder = 0
    for outputs, kernel, stride in zip(c.channels, c.kernels, c.strides, strict=True):
        size = (size - kernel) // stride + 1
        encoder += outputs * size * size
    inner = zip(reversed(c.channels[:-1]), c.decoder_kernels[:-1], tuple(reversed(c.strides))[:-1], strict=True)
    for outputs, kernel, stride in inner:
        size = (size - 1) * stride + kernel
        decoder += outputs * size * size
    return encoder, decoder + spec.shape[0] * spec.shape[1] * spec.shape[2]  # the last makes the picture
