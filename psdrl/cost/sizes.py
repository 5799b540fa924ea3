"""Multiply-adds and weights of the networks that `psdrl.agents.psdrl.models` builds, for the cost model."""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from psdrl.agents.psdrl.autoencoder import layers
from psdrl.agents.psdrl.grid import Grid
from psdrl.agents.psdrl.settings import ForwardConfig, PsdrlConfig
from psdrl.envs.vector import EnvSpec


@dataclass(frozen=True)
class Sizes:
    """Multiply-adds per row and parameters of each network."""

    latent: int
    hidden: int
    actions: int
    encoder: int  # multiply-adds per frame
    autoencoder: int
    gru: int  # multiply-adds per row
    forward_model: "ForwardSizes"
    termination: int
    value: int
    grid: (
        int  # numbers of the widest layer of a network that looks at places, for one state and action; 0: there is none
    )
    parameters: dict[str, int]

    @property
    def forward(self) -> int:
        """Multiply-adds per row of the whole forward model."""
        return self.gru + self.forward_model.network

    @property
    def state(self) -> int:
        """Of the factored lookahead, once per state: projections of z and h."""
        return 3 * self.hidden * (self.latent + self.hidden) + self.forward_model.state

    @classmethod
    def of(cls, config: PsdrlConfig, spec: EnvSpec) -> "Sizes":
        """Count what `psdrl.agents.psdrl.models` builds."""
        encoder, decoder, latent, ae_parameters = convolutions(config, spec)
        hidden, actions, places = config.forward.hidden, spec.num_actions, places_of(config, spec)
        gru = 3 * hidden * (latent + actions + hidden)
        forward = whole_state(config.forward, latent, actions)
        if places and config.grid:
            forward = each_place(config.forward, places, actions)
        t, v = config.termination, config.value
        termination = weights = tanh_net(latent, t.units, t.layers)
        grid = (places.count + 1) * max(places.seen, forward.features) if places and config.grid else 0
        if places and config.grid:
            grid = max(grid, places.count * max(places.seen, t.units))
            one = tanh_net(places.seen, t.units, t.layers)
            termination, weights = places.count * (one - t.units) + t.units, one + places.count * t.units
        value = v.networks * tanh_net(latent + hidden, v.units, v.layers)
        parameters = {"forward": gru + forward.weights, "termination": weights, "value": value}
        if ae_parameters:
            parameters["autoencoder"] = ae_parameters
        return cls(
            latent, hidden, actions, encoder, encoder + decoder, gru, forward, termination, value, grid, parameters
        )  # fmt: skip


class ForwardSizes(NamedTuple):
    """Multiply-adds per row, of a state and an action, of feature network and output layer; and their weights."""

    features: int  # k
    outputs: int  # rows w_j of the output layer
    places: int  # rows of the regression per transition, besides that of the reward if there are several
    network: int
    state: int  # in the factored lookahead: once per state
    action: int  # per state and action
    weights: int


def whole_state(f: ForwardConfig, latent: int, actions: int) -> ForwardSizes:
    """Features of the whole state. Factored: z enters once per state, h' once per action; a last linear layer is folded
    into the output layer."""
    inner, skips = [f.units * f.units] * (f.layers - 2), f.features == "tanh+inputs"
    inputs = f.hidden + latent + actions
    features, direct = f.units + (inputs if skips else 0), latent + 1 if skips else 0
    network = inputs * f.units + sum(inner) + features * (latent + 1)
    if f.features == "linear":
        inner = inner[1:]  # folded; if there is none, the first layer is
    action = f.hidden * (f.units + direct) + sum(inner) + f.units * (latent + 1)
    return ForwardSizes(features, latent + 1, 1, network, latent * (f.units + direct), action, network)


def each_place(f: ForwardConfig, places: Grid, actions: int) -> ForwardSizes:
    """The same features at every place; h' and the action enter once for all of them."""
    p, c, u = places.count, places.channels, f.units
    skips = f.features == "tanh+inputs"
    inner, everywhere = (f.layers - 2) * u * u, (f.hidden + actions) * u
    features = u + (f.hidden + c + actions if skips else 0)
    network = p * (places.seen * u + inner + features * c) + features - (c if skips else 0) + everywhere
    state = p * (places.seen * u + (c * c if skips else 0))
    action = f.hidden * (u + (c + 1 if skips else 0)) + p * (inner + u * c) + u
    weights = places.seen * u + everywhere + inner + features * (c + 1) + (p + actions) * u
    return ForwardSizes(features, c + 1, p, network, state, action, weights)


def places_of(config: PsdrlConfig, spec: EnvSpec) -> Grid | None:
    """The grid that a latent state is, if it is one."""
    if spec.kind == "vector":
        return Grid(*spec.grid, channels_last=True) if spec.grid else None
    last = layers(spec.shape[0], spec.shape[1], config.autoencoder.channels)[0][-1]
    return None if config.autoencoder.latent else Grid(last.size, last.size, last.outputs, channels_last=False)


def tanh_net(inputs: int, units: int, layers: int) -> int:
    """Multiply-adds per row, and weights, of a tanh network with one output."""
    widths = [inputs] + [units] * (layers - 1) + [1]
    return sum(a * b for a, b in pairwise(widths))


def convolutions(config: PsdrlConfig, spec: EnvSpec) -> tuple[int, int, int, int]:
    """Multiply-adds per frame of encoder and decoder, the latent size, and parameters."""
    if spec.kind == "vector":
        return 0, 0, spec.shape[0], 0
    c, (forth, back) = config.autoencoder, layers(spec.shape[0], spec.shape[1], config.autoencoder.channels)
    encoder = decoder = parameters = 0
    for layer in forth:
        weights = layer.inputs * layer.outputs * layer.kernel**2
        encoder, parameters = encoder + layer.size**2 * weights, parameters + weights
    size = forth[-1].size
    flat = forth[-1].outputs * size * size
    if c.latent:
        encoder, decoder, parameters = encoder + flat * c.latent, flat * c.latent, parameters + 2 * flat * c.latent
    for layer in back:
        weights = layer.inputs * layer.outputs * layer.kernel**2
        decoder, parameters = decoder + size * size * weights, parameters + weights  # a cell spreads over a kernel
        size = layer.size
    return encoder, decoder, c.latent or flat, parameters


def cells(config: PsdrlConfig, spec: EnvSpec) -> tuple[int, int]:
    """Activations per frame that the convolutions of encoder and decoder make."""
    both = layers(spec.shape[0], spec.shape[1], config.autoencoder.channels)
    encoder, decoder = (sum(layer.outputs * layer.size**2 for layer in part) for part in both)
    return encoder, decoder


def grid_bytes(config: PsdrlConfig, s: Sizes) -> float:
    """Bytes of the widest layer of networks that look at places, if there are any: a chunk is of places then, but a
    time step of a batch with all actions and a window of training are never cut."""
    batch = config.replay.batch
    uncut = batch * max(s.actions, config.forward.window)
    return 4 * s.grid * max(uncut, config.chunk_rows // s.forward_model.places)
