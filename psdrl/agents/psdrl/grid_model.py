"""World and termination model for a grid of cells (`--grid`): one feature network and one output layer for all of them.

In predictions, what a cell sees of z is computed once per state; h' and the action add one vector per state and action,
the same at all cells, and the action's gates multiply what is seen. The P cells are P rows of a small network.
"""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from psdrl.agents.psdrl.flat_model import feature_network
from psdrl.agents.psdrl.grid import Grid, maximum
from psdrl.agents.psdrl.networks import TanhLayer, plain_tanh
from psdrl.agents.psdrl.regression import Statistics
from psdrl.agents.psdrl.settings import ForwardConfig, TerminationConfig
from psdrl.agents.psdrl.termination import Termination
from psdrl.agents.psdrl.world_model import SampledModel, SampledWorld, WorldModel
from psdrl.errors import UserError
from psdrl.kernels.gru_actions import gru_actions
from psdrl.kernels.linear_tanh import linear, linear_tanh
from psdrl.kernels.posterior import posterior_factor


class GridFeatures(NamedTuple):
    """phi of every cell: tanh units, and with inputs the cell's own numbers and, the same everywhere, [h', a]."""

    units: Tensor  # (n, P, U)
    own: Tensor  # (n, P, C); (n, 1, 0) without inputs
    everywhere: Tensor  # (n, H + A); (n, 0) without inputs

    def near(self) -> Tensor:
        """What differs between cells (n, P, U + C)."""
        return torch.cat([self.units, self.own], 2) if self.own.shape[2] else self.units

    def maxima(self) -> Tensor:
        """The reward's features (n, k): each unit's maximum over the cells, nothing of their own numbers."""
        return torch.cat([maximum(self.units), torch.zeros_like(self.own[:, 0]), self.everywhere], 1)


class GridStatistics(Statistics):
    """The same for a grid: sums over N P cells and their C outputs, and over N maxima and the reward.

    Features that are the same everywhere enter the cells' sums through the others' totals: half of the work."""

    shared = False

    def __init__(self, grid: Grid, features: int, everywhere: int, device: torch.device) -> None:
        near, outputs = features - everywhere, grid.channels
        self._grid, self.rows = grid, 0
        self.near = Statistics.empty(near, outputs, device)
        self.reward = Statistics.empty(features, 1, device)
        # Of the features that are the same everywhere: with those of the cells, with themselves, with the targets.
        self._mixed, self._square, self._cross = (
            self.near.cross.new_zeros(everywhere, n) for n in (near, everywhere, outputs)
        )

    def factorised(self, priors: Tensor, noises: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of the Gram matrix of the cells and of that of their maxima: the two groups never share."""
        grams = (self.lower, self.reward.lower)
        parts = [posterior_factor(gram, priors[g : g + 1], noises[g : g + 1]) for g, gram in enumerate(grams)]
        factors, jitter, info = (torch.cat(part) for part in zip(*parts, strict=True))
        return factors, jitter, info

    def rows_of(self, group: int) -> int:
        """All cells of all transitions, or one row per transition."""
        return self.near.rows if group == 0 else self.rows

    @property
    def lower(self) -> Tensor:
        """(k, k), of which only the lower triangle is the cells' Phi^T Phi."""
        near, mixed = self.near.lower, self._mixed
        return torch.cat([torch.cat([near, mixed.T], 1), torch.cat([mixed, self._square], 1)])

    @property
    def cross(self) -> Tensor:
        """(k, C + 1) Phi^T T of the cells and of the reward."""
        return torch.cat([torch.cat([self.near.cross, self._cross]), self.reward.cross], 1)

    @property
    def squares(self) -> Tensor:
        """(C + 1,)."""
        return torch.cat([self.near.squares, self.reward.squares])

    @torch.no_grad()
    def add(self, features: Any, targets: Tensor, times: Tensor | None = None) -> None:
        """Add the features of n transitions and their targets [z', r] (n, Z + 1), as `Statistics.add` does."""
        near, own = features.near(), self._grid.own(targets[:, :-1])
        each_cell = None if times is None else times.repeat_interleave(self._grid.count)
        self.near.add(near.flatten(0, 1), own.flatten(0, 1), each_cell)
        everywhere = features.everywhere.double().T
        if times is not None:
            everywhere = everywhere * times
        self._mixed += everywhere @ near.sum(1, dtype=torch.float64)
        self._square += self._grid.count * everywhere @ features.everywhere.double()
        self._cross += everywhere @ own.sum(1, dtype=torch.float64)
        self.reward.add(features.maxima(), targets[:, -1:].contiguous(), times)
        self.rows = self.reward.rows


class GridModel(WorldModel):
    """A cell's features see h', its neighbourhood and the action; its part of z' is linear in them, with the same rows
    w_1 ... w_C everywhere. The reward is linear in each unit's maximum over the cells. A cell's own numbers are no
    features of the reward: their maxima are constant until something appears anywhere, and draws would promise or
    forbid it by the size of its number (docs/experiments.md, What a draw may promise). Each action has a gate, a factor
    on what the units of the first layer see: what an action does to what is there shows before any training."""

    def __init__(self, grid: Grid, num_actions: int, config: ForwardConfig, reduction: str = "sum") -> None:
        if config.features == "linear":
            raise UserError("--grid needs --forward.features tanh or tanh+inputs: its cells have no linear features.")
        super().__init__(grid.count * grid.channels, num_actions, config, reduction)
        self.layers = feature_network(config.hidden + grid.seen + num_actions, config)
        self.with_inputs = config.features == "tanh+inputs"
        inputs = config.hidden + grid.channels + num_actions if self.with_inputs else 0
        self.output = nn.Linear(config.units + inputs, grid.channels + 1)
        self.grid: Grid = grid
        self.cell_bias = nn.Parameter(torch.zeros(grid.count, config.units))  # walls and edges
        self.gates = nn.Parameter(torch.randn(num_actions, config.units))

    @property
    def rows_per_state(self) -> int:
        """P."""
        return self.grid.count

    @property
    def widest(self) -> int:
        """What the cells see, or their features and the maximum."""
        return (self.grid.count + 1) * max(self.grid.seen, self.output.in_features)

    def linear_layers(self) -> list[nn.Linear]:
        """The feature network's layers."""
        return cast(list[nn.Linear], list(self.layers))

    def automatic_reward_weight(self, variance: Tensor) -> Tensor:
        return (self.grid.count / variance).clamp(1, 100 * self.grid.count)

    def statistics(self, device: torch.device) -> Statistics:
        everywhere = self.hidden_size + self.num_actions if self.with_inputs else 0
        return GridStatistics(self.grid, self.output.in_features, everywhere, device)

    def by_scale(self, latents: Tensor) -> Tensor:
        """Each channel has one scale: (n P, C)."""
        return self.grid.own(latents).flatten(0, 1)

    def of_scale(self, numbers: Tensor) -> Tensor:
        return self.grid.flat(numbers.expand(1, self.grid.count, -1))[0]

    def prepare(self, sample: SampledModel) -> SampledWorld:
        return fold(self, sample)

    def parts(self, weight: Tensor) -> tuple[Tensor, ...]:
        """Columns of the first feature layer for h', the neighbourhood and the action."""
        return weight.split([self.hidden_size, self.grid.seen, self.num_actions], 1)

    def feature_layers(self, x: Tensor, tanh_layer: TanhLayer = plain_tanh) -> GridFeatures:
        """Features of all cells from x = [h', z, onehot(a)] (n, H + Z + A)."""
        hidden, latents, actions = x.split([self.hidden_size, self.latent_size, self.num_actions], 1)
        first, *layers = self.linear_layers()
        of_hidden, of_seen, of_action = self.parts(first.weight)
        state = F.linear(hidden, of_hidden, first.bias) + F.linear(actions, of_action)
        latents = latents.detach()  # data; x asks for gradients because of h', which here would be wasted
        seen = self.grid.look(latents, of_seen.contiguous())
        gated = torch.addcmul(state[:, None] + self.cell_bias, seen, F.linear(actions, self.gates.T)[:, None])
        phi = torch.tanh(gated).flatten(0, 1)
        for layer in layers:
            phi = tanh_layer(phi, layer.weight, layer.bias)
        phi = phi.view(len(x), self.grid.count, -1)
        if not self.with_inputs:
            return GridFeatures(phi, latents[:, None, :0], latents[:, :0])
        return GridFeatures(phi.to(x.dtype), self.grid.own(latents), torch.cat([hidden, actions], 1))

    def predicted(self, features: GridFeatures, weight: Tensor, bias: Tensor) -> Tensor:
        """Prediction [z', r] (n, Z + 1) by an output layer of C + 1 rows."""
        sizes = [part.shape[-1] for part in features]
        of_units, of_own, of_everywhere = weight.split(sizes, 1)
        everywhere = F.linear(features.everywhere, of_everywhere, bias)
        own = F.linear(features.units, of_units[:-1]) + F.linear(features.own, of_own[:-1]) + everywhere[:, None, :-1]
        most = F.linear(maximum(features.units), of_units[-1:])
        return torch.cat([self.grid.flat(own), most + everywhere[:, -1:]], 1)


class GridFolded(NamedTuple):
    """A sampled grid model, split into per-state parts, action columns and per-action parts."""

    grid: Grid
    gru: Tensor  # (3H, Z) GRU input projection of z
    gru_bias: Tensor  # (3H,)
    recurrent: Tensor  # (3H, H) GRU recurrent projection
    recurrent_bias: Tensor  # (3H,)
    gru_columns: Tensor  # (A, 3H) what each action adds to the input projection
    seen: Tensor  # (U, 9 C) first layer, from the neighbourhood
    cell_bias: Tensor  # (P, U)
    first: Tensor  # (U, H) first layer, from h'
    first_columns: Tensor  # (A, U)
    gates: Tensor  # (A, U) factors on what is seen
    hidden: list[tuple[Tensor, Tensor]]  # further layers: weight (U, U), bias (U,)
    output: Tensor  # (C + 1, U) W~ on the tanh features
    bias: Tensor  # (C + 1,)
    own: Tensor  # (C, C) W~ on a cell's own numbers; (0, 0) without inputs
    direct: Tensor  # (C + 1, H) W~ on h'
    direct_columns: Tensor  # (A, C + 1)

    @property
    def num_actions(self) -> int:
        """A."""
        return len(self.gru_columns)

    def predict(self, latents: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[z^, r^] (n A, Z + 1) of all actions, and h' (n A, H), from latent states (n, Z) and hidden states (n, H)."""
        grid, count, num_actions, units = self.grid, len(latents), self.num_actions, len(self.seen)
        state = linear(latents, self.gru, self.gru_bias)
        recurrent = linear(hidden, self.recurrent, self.recurrent_bias)
        rows = gru_actions(state, recurrent, self.gru_columns, hidden).flatten(0, 1)
        seen = grid.look(latents, self.seen)[:, None]
        action = linear(rows, self.first).view(count, num_actions, 1, units) + self.first_columns[:, None]
        x = torch.addcmul(action + self.cell_bias, seen, self.gates[:, None]).tanh_().view(-1, units)
        for weight, bias in self.hidden:
            x = linear_tanh(x, weight, bias)
        most = maximum(x.view(count * num_actions, grid.count, units))
        own = linear(x, self.output[:-1], self.bias[:-1]).view(count, num_actions, grid.count, grid.channels)
        reward = linear(most, self.output[-1:], self.bias[-1:]).view(count, num_actions, 1)
        if len(self.own):
            direct = linear(rows, self.direct).view(count, num_actions, -1) + self.direct_columns
            own = own + (grid.own(latents) @ self.own.T)[:, None] + direct[:, :, None, :-1]
            reward = reward + direct[..., -1:]
        own = own.reshape(count * num_actions, grid.count, grid.channels)
        return torch.cat([grid.flat(own), reward.view(-1, 1)], 1), rows


@torch.no_grad()
def fold(model: GridModel, sample: SampledModel) -> GridFolded:
    """Prepare a sampled model, once per sample."""
    gru, latent, grid = model.gru, model.latent_size, model.grid
    first, *hidden = model.linear_layers()
    of_hidden, of_seen, of_action = (part.detach() for part in model.parts(first.weight))
    sizes = [first.out_features, grid.channels, model.hidden_size, model.num_actions]
    output, own, direct, columns = (
        sample.weight.split(sizes, 1) if model.with_inputs else (sample.weight, *[sample.weight.new_empty(0, 0)] * 3)
    )
    return GridFolded(
        grid=grid,
        gru=gru.weight_ih[:, :latent].detach().contiguous(),
        gru_bias=gru.bias_ih.detach(),
        recurrent=gru.weight_hh.detach(),
        recurrent_bias=gru.bias_hh.detach(),
        gru_columns=gru.weight_ih[:, latent:].detach().T.contiguous(),
        seen=of_seen.contiguous(),
        cell_bias=model.cell_bias + first.bias,
        first=of_hidden.contiguous(),
        first_columns=of_action.T.contiguous(),
        gates=model.gates.detach(),
        hidden=[(layer.weight.detach(), layer.bias.detach()) for layer in hidden],
        output=output.contiguous(),
        bias=sample.bias,
        own=own[:-1].contiguous(),
        direct=direct.contiguous(),
        direct_columns=columns.T.contiguous(),
    )


class GridTermination(Termination):
    """The same hidden layers at every cell; the output is linear in each unit's maximum over the cells."""

    def __init__(self, grid: Grid, config: TerminationConfig) -> None:
        super().__init__(grid.seen, config)
        self.grid = grid
        self.cell_bias = nn.Parameter(torch.zeros(grid.count, config.units))
        self.widest = grid.count * max(grid.seen, config.units)

    def tapped_layers(self) -> list[nn.Linear]:
        return []

    def forward(self, x: Tensor, tanh_layer: TanhLayer = plain_tanh) -> Tensor:
        """(n, Z) -> (n,)."""
        first, *hidden_layers, last = self.linear_layers()
        y = torch.tanh(self.grid.look(x, first.weight) + (self.cell_bias + first.bias)).flatten(0, 1)
        for layer in hidden_layers:
            y = tanh_layer(y, layer.weight, layer.bias)
        return last(maximum(y.view(len(x), self.grid.count, -1))).squeeze(1)

    def fast(self, x: Tensor) -> Tensor:
        """The same by the kernels, without autograd."""
        first, *hidden, last = self.linear_layers()
        y = (self.grid.look(x, first.weight) + (self.cell_bias + first.bias)).tanh_().flatten(0, 1)
        for layer in hidden:
            y = linear_tanh(y, layer.weight, layer.bias)
        return linear(maximum(y.view(len(x), self.grid.count, -1)), last.weight, last.bias).squeeze(1)
