"""The networks of Section 3.2 beside the autoencoder: forward model, termination model; and the value network."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from psdrl.agents.psdrl.encoder import Autoencoder, Encoder
from psdrl.agents.psdrl.grid import Places, maximum
from psdrl.agents.psdrl.lookahead import factored, grid
from psdrl.agents.psdrl.regression import LocalStatistics, Statistics
from psdrl.agents.psdrl.settings import ForwardConfig, PsdrlConfig
from psdrl.envs.vector import EnvSpec
from psdrl.errors import UserError


def one_hot(actions: Tensor, num_actions: int, like: Tensor) -> Tensor:
    """Actions (n,) as one-hot rows (n, A) in `like`'s dtype; F.one_hot would look at the numbers on the host."""
    return (actions[..., None] == torch.arange(num_actions, device=actions.device)).to(like.dtype)


class TanhLayer(Protocol):
    """tanh(x W^T + b), to which rows of `state` and `columns` are added as in `psdrl.kernels.linear_tanh`."""

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor: ...


def plain_tanh(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None = None, columns: Tensor | None = None
) -> Tensor:
    """The layer by PyTorch's operations: y (r, U) from x (r, k), state (n, U), columns (r / n, U)."""
    y = F.linear(x, weight, bias)
    if state is not None:
        y = (y.view(len(state), -1, y.shape[1]) + state[:, None]).flatten(0, 1)
    if columns is not None:
        y = (y.view(-1, *columns.shape) + columns).flatten(0, 1)
    return torch.tanh(y)


class ForwardModel(nn.Module):
    """Forward model f (Fig. 1b): GRU cell, feature map phi on [h', z, onehot(a)], linear output layer W."""

    places: Places | None = None

    def __init__(
        self, latent: int, num_actions: int, config: ForwardConfig, seen: int | None = None, own: int | None = None
    ) -> None:
        """`seen` numbers of z enter the feature map, `own` ones are predicted: all, if not said otherwise."""
        super().__init__()
        seen, own = seen or latent, own or latent
        self.latent_size, self.num_actions = latent, num_actions
        self.tanh_features = config.feature_activation == "tanh"
        self.gru = nn.GRUCell(latent + num_actions, config.hidden)
        self.memoryless = not config.recurrent
        if self.memoryless:  # 0.5 tanh(0) + 0.5 h: h stays zero
            self.gru.requires_grad_(False)
            for parameter in self.gru.parameters():
                parameter.zero_()
        widths = [config.hidden + seen + num_actions] + [config.units] * (config.layers - 1)
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(widths))
        with torch.no_grad():
            next(self.layers[0].parameters()).mul_(config.gain)
        self.skip = config.skip
        features = config.units + (config.hidden + own + num_actions if config.skip else 0)
        self.output = nn.Linear(features, own + 1)  # the bias serves only the no-sampling ablations

    @property
    def rows_per_state(self) -> int:
        """Rows that the feature network sees of each state and action."""
        return self.places.count if self.places else 1

    def linear_layers(self) -> list[nn.Linear]:
        """The feature network's layers."""
        return cast(list[nn.Linear], list(self.layers))

    def next_hidden(self, latents: Tensor, actions: Tensor, hidden: Tensor) -> Tensor:
        """h' (n, H) after actions (n,) in z (n, Z) with h (n, H)."""
        return self.gru(torch.cat([latents, one_hot(actions, self.num_actions, latents)], 1), hidden)

    def features(self, next_hidden: Tensor, latents: Tensor, actions: Tensor) -> Tensor:
        """Feature vectors phi(z, a, h) (n, k); h enters through h'."""
        return self.feature_layers(torch.cat([next_hidden, latents, one_hot(actions, self.num_actions, latents)], 1))

    def feature_layers(self, x: Tensor, tanh_layer: TanhLayer = plain_tanh) -> Tensor:
        """Feature vectors phi (n, k) from x = [h', z, onehot(a)] (n, H + Z + A); with `skip` they end with x."""
        phi = self._inner_layers(self.linear_layers(), x, tanh_layer)
        return torch.cat([phi.to(x.dtype), x], 1) if self.skip else phi

    def _inner_layers(self, layers: list[nn.Linear], phi: Tensor, tanh_layer: TanhLayer) -> Tensor:
        *hidden_layers, last = layers
        for layer in hidden_layers:
            phi = tanh_layer(phi, layer.weight, layer.bias)
        return tanh_layer(phi, last.weight, last.bias) if self.tanh_features else last(phi)

    def predicted(self, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Prediction [z', r] (n, Z + 1) by an output layer."""
        return F.linear(features, weight, bias)

    def statistics(self, device: torch.device) -> Statistics:
        """Of no data yet, for this model's features and outputs."""
        outputs, features = self.output.weight.shape
        return Statistics.empty(features, outputs, device)

    def fold(self, sample: "SampledModel") -> Any:
        """A sampled model, prepared for the predictions of all actions: `predicted(latents, hidden)`. Made once per
        sample, which belongs to the forward model as it was when it was drawn."""
        sample.folded = sample.folded or factored.fold(self, sample)
        return sample.folded

    def forward(self, latents: Tensor, actions: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Prediction [z', r] (n, Z + 1) with the trained output layer, and h' (n, H)."""
        hidden = self.next_hidden(latents, actions, hidden)
        features = self.features(hidden, latents, actions)
        return self.predicted(features, self.output.weight, self.output.bias), hidden


class LocalForwardModel(ForwardModel):
    """The same for a grid of places (`--forward.local`): one feature network and one output layer for all of them.

    A place's features see h', its neighbourhood and the action; its part of z' is linear in them, with the same rows
    w_1 ... w_C everywhere. The reward is linear in each unit's maximum over the places; the place's own numbers are no
    features of it, for their maxima are constant until something appears anywhere, and draws would promise or forbid it
    by the size of its number (docs/experiments.md, What a draw may promise). Each action has a gate: a factor on what
    the units of the first layer see, so that what an action does to what is there is to be seen before any training."""

    def __init__(self, places: Places, num_actions: int, config: ForwardConfig) -> None:
        size = places.count * places.channels
        super().__init__(size, num_actions, config, seen=places.seen, own=places.channels)
        self.places: Places = places
        self.place_bias = nn.Parameter(torch.zeros(places.count, config.units))  # walls and edges
        self.gates = nn.Parameter(torch.randn(num_actions, config.units))

    def statistics(self, device: torch.device) -> Statistics:
        everywhere = self.gru.hidden_size + self.num_actions if self.skip else 0
        return LocalStatistics(self.places, self.output.in_features, everywhere, device)

    def fold(self, sample: "SampledModel") -> Any:
        sample.folded = sample.folded or grid.fold(self, sample)
        return sample.folded

    def parts(self, weight: Tensor) -> tuple[Tensor, ...]:
        """Columns of the first feature layer for h', the neighbourhood and the action."""
        return weight.split([self.gru.hidden_size, self.places.seen, self.num_actions], 1)

    def feature_layers(self, x: Tensor, tanh_layer: TanhLayer = plain_tanh) -> "LocalFeatures":  # type: ignore[override]
        """Features of all places from x = [h', z, onehot(a)] (n, H + Z + A)."""
        hidden, latents, actions = x.split([self.gru.hidden_size, self.latent_size, self.num_actions], 1)
        first, *layers = self.linear_layers()
        of_hidden, of_seen, of_action = self.parts(first.weight)
        state = F.linear(hidden, of_hidden, first.bias) + F.linear(actions, of_action)
        latents = latents.detach()  # data; x asks for gradients because of h', which here would be wasted
        seen = self.places.look(latents, of_seen.contiguous())
        gated = torch.addcmul(state[:, None] + self.place_bias, seen, F.linear(actions, self.gates.T)[:, None])
        phi = torch.tanh(gated).flatten(0, 1)
        for layer in layers:
            phi = tanh_layer(phi, layer.weight, layer.bias)
        phi = phi.view(len(x), self.places.count, -1)
        if not self.skip:
            return LocalFeatures(phi, latents[:, None, :0], latents[:, :0])
        return LocalFeatures(phi.to(x.dtype), self.places.own(latents), torch.cat([hidden, actions], 1))

    def predicted(self, features: "LocalFeatures", weight: Tensor, bias: Tensor) -> Tensor:  # type: ignore[override]
        """Prediction [z', r] (n, Z + 1) by an output layer of C + 1 rows."""
        sizes = [part.shape[-1] for part in features]
        of_units, of_own, of_everywhere = weight.split(sizes, 1)
        everywhere = F.linear(features.everywhere, of_everywhere, bias)
        own = F.linear(features.units, of_units[:-1]) + F.linear(features.own, of_own[:-1]) + everywhere[:, None, :-1]
        most = F.linear(maximum(features.units), of_units[-1:])
        return torch.cat([self.places.flat(own), most + everywhere[:, -1:]], 1)


class LocalFeatures(NamedTuple):
    """phi of every place: tanh units, and with `skip` the place's own numbers and, the same everywhere, [h', a]."""

    units: Tensor  # (n, P, U)
    own: Tensor  # (n, P, C); (n, 1, 0) without skip
    everywhere: Tensor  # (n, H + A); (n, 0) without skip

    def near(self) -> Tensor:
        """What differs between places (n, P, U + C)."""
        return torch.cat([self.units, self.own], 2) if self.own.shape[2] else self.units

    def maxima(self) -> Tensor:
        """The reward's features (n, k): each unit's maximum over the places, nothing of their own numbers."""
        return torch.cat([maximum(self.units), torch.zeros_like(self.own[:, 0]), self.everywhere], 1)


class TanhNet(nn.Module):
    """Layers of `units` tanh units and a linear output of one number: termination model and value network."""

    def __init__(self, inputs: int, units: int, layers: int) -> None:
        super().__init__()
        widths = [inputs] + [units] * (layers - 1) + [1]
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(widths))

    def linear_layers(self) -> list[nn.Linear]:
        """The layers, the output layer last."""
        return cast(list[nn.Linear], list(self.layers))

    def forward(self, x: Tensor, tanh_layer: TanhLayer = plain_tanh) -> Tensor:
        """(n, inputs) -> (n,)."""
        *hidden_layers, last = self.linear_layers()
        for layer in hidden_layers:
            x = tanh_layer(x, layer.weight, layer.bias)
        return last(x).squeeze(1)

    def fast(self, x: Tensor) -> Tensor:
        """The same by the kernels, without autograd."""
        return factored.tanh_net(self, x)


class LocalTanhNet(TanhNet):
    """The same network at every place (`--termination.local`); the output is linear in the maximum over the places."""

    def __init__(self, places: Places, units: int, layers: int) -> None:
        super().__init__(places.seen, units, layers)
        self.places = places
        self.place_bias = nn.Parameter(torch.zeros(places.count, units))

    def forward(self, x: Tensor, tanh_layer: TanhLayer = plain_tanh) -> Tensor:
        """(n, Z) -> (n,)."""
        first, *hidden_layers, last = self.linear_layers()
        y = torch.tanh(self.places.look(x, first.weight) + (self.place_bias + first.bias)).flatten(0, 1)
        for layer in hidden_layers:
            y = tanh_layer(y, layer.weight, layer.bias)
        return last(maximum(y.view(len(x), self.places.count, -1))).squeeze(1)

    def fast(self, x: Tensor) -> Tensor:
        return grid.tanh_net(self, x)


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
    folded: Any = field(default=None, repr=False)  # filled by `ForwardModel.fold`


LEAST_DEVIATION = 0.1  # of the largest: pixels that hardly ever change must not become the loudest


class Models(nn.Module):
    """All networks of the agent."""

    def __init__(self, config: PsdrlConfig, spec: EnvSpec) -> None:
        super().__init__()
        self.autoencoder: Encoder = (
            Autoencoder(spec.shape, config.autoencoder) if spec.kind == "image" else Encoder(spec.shape[0], spec.grid)
        )
        latent, hidden = self.autoencoder.latent_size, config.forward.hidden
        places = self.autoencoder.places
        if places is None and (config.forward.local or config.termination.local):
            raise UserError(
                f"{spec.name} has no grid of places, which --forward.local and --termination.local need: MinAtar's "
                "observations are one, and what an autoencoder with --autoencoder.latent 0 makes of images."
            )
        self.forward_model = (
            LocalForwardModel(places, spec.num_actions, config.forward)
            if places and config.forward.local
            else ForwardModel(latent, spec.num_actions, config.forward)
        )
        depth = (config.termination.units, config.termination.layers)
        self.termination = (
            LocalTanhNet(places, *depth) if places and config.termination.local else TanhNet(latent, *depth)
        )
        size = (config.value.networks, latent + hidden, config.value.units, config.value.layers)
        self.value = Smallest(*size)
        self.target = Smallest(*size).requires_grad_(False)
        self.target.load_state_dict(self.value.state_dict())
        self.averaged = config.value.target_rate < 1
        self.options, self.automatic_weight = config.latent, config.forward.reward_weight == 0
        self.latent_mean: Tensor
        self.latent_scale: Tensor
        self.reward_weight: Tensor
        self.register_buffer("latent_mean", torch.zeros(latent))
        self.register_buffer("latent_scale", torch.ones(latent))
        self.register_buffer("reward_weight", torch.tensor(config.forward.reward_weight or 1.0))

    def encode(self, observations: Tensor) -> Tensor:
        """Latent states (n, Z) of observations as the environment gives them."""
        return self.scaled(self.autoencoder.encode(observations))

    def scaled(self, latents: Tensor) -> Tensor:
        """Latent states (n, Z) in the scale that all other networks see."""
        return (latents - self.latent_mean) * self.latent_scale if self.options.standardise else latents

    @torch.no_grad()
    def refresh(self, latents: Tensor, rewards: Tensor) -> None:
        """Take scales from the replay buffer: latents (n, Z) as encoded, rewards (N,) as stored."""
        if self.options.standardise:
            places = self.forward_model.places
            alike = latents if places is None else places.own(latents).flatten(0, 1)  # one scale for all places
            deviation, mean = torch.std_mean(alike, 0, correction=0)
            scale = 1 / deviation.clamp(min=LEAST_DEVIATION * deviation.max())
            # What was never seen to change may change by any amount: it keeps its scale, or gets that of the largest.
            scale = torch.where(deviation > 0, scale, (1 / deviation.max()).clamp(max=1))
            for buffer, numbers in ((self.latent_mean, mean), (self.latent_scale, scale)):
                buffer.copy_(numbers if places is None else places.flat(numbers.expand(1, places.count, -1))[0])
        if self.automatic_weight:
            rows, variance = self.forward_model.rows_per_state, rewards.double().var(correction=0)
            share, most = (rows, 100 * rows) if rows > 1 else (3, 1000)
            self.reward_weight.copy_((share / variance).clamp(1, most))

    @property
    def needs_refresh(self) -> bool:
        """Whether any option takes something from the replay buffer."""
        return self.options.standardise or self.automatic_weight

    @property
    def acting_value(self) -> Smallest:
        """The value networks that act: V, or the average of its past that the target network is."""
        return self.target if self.averaged else self.value

    def counts(self) -> Iterator[tuple[str, int]]:
        """Parameters of each network."""
        for name in ("autoencoder", "forward_model", "termination", "value"):
            yield name, sum(p.numel() for p in getattr(self, name).parameters())
