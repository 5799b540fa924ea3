"""The paper's world model (Fig. 1b), on whole latent states; and its fast predictions of all actions.

Only onehot(a) differs between the |A| inputs of a state, so whatever does not depend on the action is computed once
per state and the action enters as a column of the weights. The features are linear in the last tanh layer, so the
sampled output layer is folded into it once per sample: W~ (W4 u + b4) = (W~ W4) u + W~ b4.
Per state-action row at the paper's sizes: 15.8M multiply-adds instead of 29.7M for the forward model.
"""

from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from psdrl.agents.psdrl.descent import Tapping
from psdrl.agents.psdrl.narrow import Narrow
from psdrl.agents.psdrl.networks import TanhLayer, plain_tanh
from psdrl.agents.psdrl.regression import Statistics
from psdrl.agents.psdrl.settings import ForwardConfig
from psdrl.agents.psdrl.world_model import SampledModel, SampledWorld, WorldModel
from psdrl.kernels.gru_actions import gru_actions
from psdrl.kernels.linear_tanh import linear
from psdrl.kernels.tanh_actions import tanh_actions
from psdrl.kernels.window_steps import WindowNet


def feature_network(inputs: int, config: ForwardConfig) -> nn.ModuleList:
    """Layers of the feature network, the first with the configured gain."""
    widths = [inputs] + [config.units] * (config.layers - 1)
    layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(widths))
    with torch.no_grad():
        next(layers[0].parameters()).mul_(config.gain)
    return layers


class FlatModel(WorldModel):
    """One feature network for the whole latent state."""

    def __init__(self, latent: int, num_actions: int, config: ForwardConfig, reduction: str = "sum") -> None:
        super().__init__(latent, num_actions, config, reduction)
        inputs = config.hidden + latent + num_actions
        self.layers = feature_network(inputs, config)
        self.tanh_features = config.features != "linear"
        self.with_inputs = config.features == "tanh+inputs"
        self.output = nn.Linear(config.units + (inputs if self.with_inputs else 0), latent + 1)

    def linear_layers(self) -> list[nn.Linear]:
        """The feature network's layers."""
        return cast(list[nn.Linear], list(self.layers))

    def feature_layers(self, x: Tensor, tanh_layer: TanhLayer = plain_tanh) -> Tensor:
        """Feature vectors phi (n, k) from x = [h', z, onehot(a)] (n, H + Z + A), which may be among them."""
        *hidden_layers, last = self.linear_layers()
        phi = x
        for layer in hidden_layers:
            phi = tanh_layer(phi, layer.weight, layer.bias)
        phi = tanh_layer(phi, last.weight, last.bias) if self.tanh_features else last(phi)
        return torch.cat([phi.to(x.dtype), x], 1) if self.with_inputs else phi

    def tapped_layers(self) -> list[nn.Linear]:
        return [*self.linear_layers(), self.output]

    def tapped(self, x: Tensor, tapping: Tapping) -> Tensor:
        *hidden_layers, last = self.linear_layers()
        phi = x
        for layer in hidden_layers:
            phi = tapping.tanh(phi, layer.weight, layer.bias)
        phi = (tapping.tanh if self.tanh_features else tapping.linear)(phi, last.weight, last.bias)
        phi = torch.cat([phi.to(x.dtype), x], 1) if self.with_inputs else phi
        return tapping.linear(phi, self.output.weight, self.output.bias)

    def window_net(self) -> WindowNet | None:
        if type(self) is not FlatModel:  # a class derived from this may compute otherwise
            return None
        gru: list[Tensor] = [p for p in self.gru.parameters() if p.requires_grad]
        layers: list[Tensor] = [p for layer in self.tapped_layers() for p in (layer.weight, layer.bias)]
        kind = self.hidden_size, self.tanh_features, self.with_inputs
        return WindowNet(gru, layers, *kind, self.reward_weight, self.reduction == "mean")

    def predicted(self, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(features, weight, bias)

    def statistics(self, device: torch.device) -> Statistics:
        return Statistics.empty(self.output.in_features, self.output.out_features, device)

    def prepare(self, sample: SampledModel) -> SampledWorld:
        world = fold(self, sample)
        return world.padded() if sample.weight.is_cuda else world

    def narrow(self, sample: SampledModel, rows: int) -> Narrow | None:
        world, latent = self.fold(sample), self.latent_size
        if not isinstance(world, Folded):  # another one, of a model derived from this
            return None
        code = len(world.first) + self.hidden_size
        by_code = rows * (code + latent / self.num_actions) + latent * (code + latent)
        return world.narrow() if by_code < rows * (latent + self.hidden_size) else None


class Folded(NamedTuple):
    """A sampled forward model, split into per-state parts, action columns and per-action parts.

    Two ways lead from [h', z, a] to the prediction: through tanh layers, of which there may be none, and directly,
    through layers that are all linear (features tanh+inputs, or no tanh layer)."""

    state: Tensor  # (3H + U + D, Z) from z: GRU input projection, first layer, direct way
    state_bias: Tensor  # (3H + U + D,)
    recurrent: Tensor  # (3H, H) GRU recurrent projection
    recurrent_bias: Tensor  # (3H,)
    gru_columns: Tensor  # (A, 3H) what each action adds to the input projection
    first: Tensor  # (U, H) first tanh layer, from h'; U = 0: there is none
    first_columns: Tensor  # (A, U) what each action adds to the first layer
    hidden: list[tuple[Tensor, Tensor]]  # further tanh layers: weight (U, U), bias (U,)
    output: Tensor  # (Z + 1, U) W~, folded with the last feature layer if that is linear
    output_bias: Tensor  # (Z + 1,)
    direct: Tensor  # (D, H) from h' to the prediction; D is Z + 1, or 0: there is no direct way
    direct_columns: Tensor  # (A, D) what each action adds to the prediction

    @property
    def num_actions(self) -> int:
        """A."""
        return len(self.gru_columns)

    def padded(self) -> "Folded":
        """With rows of zeros below the output layer, up to a multiple of 8: rows of 1544 numbers start at multiples of
        16 bytes in float32 and bfloat16, rows of 1537 at 4 or 2, and a GPU's products are made for the former. What
        they add to a prediction is zeros, behind [z^, r^]."""
        rows = -len(self.output) % 8
        if len(self.direct) or not rows:
            return self
        return self._replace(output=F.pad(self.output, (0, 0, 0, rows)), output_bias=F.pad(self.output_bias, (0, rows)))

    def lowered(self, dtype: torch.dtype) -> "Folded":
        """With what enters products in this dtype, as autocast would cast it; `gru_actions` is none."""
        weights: dict[str, Any] = {
            name: [(w.to(dtype), b.to(dtype)) for w, b in value] if name == "hidden" else value.to(dtype)
            for name, value in self._asdict().items()
            if name != "gru_columns"
        }
        return self._replace(**weights)

    def predict(self, latents: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[z^, r^] (n A, Z + 1) of all actions, and h' (n A, H), from latent states (n, Z) and hidden states (n, H)."""
        state = linear(latents, self.state, self.state_bias)
        rows, x = self._units(state, hidden)
        size, units, ways = hidden.shape[1], len(self.first), []
        if units:
            ways.append(linear(x, self.output, self.output_bias))
        if len(self.direct):
            of_state = state[:, None, 3 * size + units :] + self.direct_columns
            ways.append(linear(rows, self.direct) + of_state.flatten(0, 1))
        return sum(ways[1:], ways[0]), rows

    def _units(self, state: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """h' (n A, H) and the last tanh layer (n A, U), from what z adds (n, 3H + U + D) and hidden states (n, H)."""
        size, units = hidden.shape[1], len(self.first)
        recurrent = linear(hidden, self.recurrent, self.recurrent_bias)
        rows = gru_actions(state[:, : 3 * size], recurrent, self.gru_columns, hidden).flatten(0, 1)
        if not units:
            return rows, rows[:, :0]
        of_state = state[:, 3 * size : 3 * size + units]
        return rows, tanh_actions(rows, self.first, of_state, self.first_columns, self.hidden, False)

    def codes(self, latents: Tensor, hidden: Tensor) -> Tensor:
        """[last tanh layer, h'] (n A, U + H)."""
        inner = 3 * hidden.shape[1] + len(self.first)
        rows, x = self._units(linear(latents, self.state[:inner], self.state_bias[:inner]), hidden)
        return torch.cat([x, rows], 1)

    def narrow(self) -> Narrow:
        """The same predictions by codes."""
        inner, outputs = len(self.recurrent) + len(self.first), len(self.output)
        of_z, columns, of_h = self.state[inner:], self.direct_columns, self.direct
        if not len(of_h):  # no direct way
            of_z, of_h = (
                self.state.new_zeros(outputs, self.state.shape[1]),
                self.first.new_zeros(outputs, self.hidden_size),
            )
            columns = of_z.new_zeros(self.num_actions, outputs)
        bias = self.output_bias if len(self.first) else self.state_bias[inner:]
        return Narrow(self.codes, torch.cat([self.output[:, : len(self.first)], of_h], 1), of_z, columns + bias)

    @property
    def hidden_size(self) -> int:
        """H."""
        return self.recurrent.shape[1]


@torch.no_grad()
def fold(model: FlatModel, sample: SampledModel) -> Folded:
    """Prepare a sampled model, once per sample; products in float64."""
    gru, latent = model.gru, model.latent_size
    size = gru.hidden_size
    layers = [(layer.weight.detach(), layer.bias.detach()) for layer in model.linear_layers()]
    features = len(layers[-1][1])
    output, direct = sample.weight[:, :features], sample.weight[:, features:]
    output_bias = sample.bias
    if not model.tanh_features:
        weight, bias = layers.pop()
        output_bias = (output.double() @ bias.double() + output_bias.double()).to(output.dtype)
        output = (output.double() @ weight.double()).to(output.dtype)
    if layers:
        (first, first_bias), *hidden = layers
    else:  # the only feature layer is linear: all of it is direct
        direct = output
        first, first_bias, hidden = direct[:0], direct.new_empty(0), []
    direct = direct if direct.shape[1] else first[:0]
    direct_bias = torch.zeros_like(output_bias)[: len(direct)]
    return Folded(
        state=torch.cat([gru.weight_ih[:, :latent], first[:, size : size + latent], direct[:, size : size + latent]]),
        state_bias=torch.cat([gru.bias_ih, first_bias, direct_bias if layers else output_bias]),
        recurrent=gru.weight_hh.detach(),
        recurrent_bias=gru.bias_hh.detach(),
        gru_columns=gru.weight_ih[:, latent:].T.contiguous(),
        first=first[:, :size].contiguous(),
        first_columns=first[:, size + latent :].T.contiguous(),
        hidden=hidden,
        output=output.contiguous(),
        output_bias=output_bias,
        direct=direct[:, :size].contiguous(),
        direct_columns=direct[:, size + latent :].T.contiguous(),
    )
