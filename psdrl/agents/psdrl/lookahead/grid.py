"""The fast lookahead for a grid of places (`--forward.local`), up to the prediction.

What a place sees of z is computed once per state; h' and the action add one vector per state and action, the same at
all places, and the action's gates multiply what is seen. The grid itself is P times as many rows of a small network.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from psdrl.agents.psdrl.grid import Places, maximum
from psdrl.kernels.gru_actions import gru_actions
from psdrl.kernels.linear_tanh import linear, linear_tanh

if TYPE_CHECKING:
    from psdrl.agents.psdrl.models import LocalForwardModel, LocalTanhNet, SampledModel


class LocalFolded(NamedTuple):
    """A sampled local forward model, split into per-state parts, action columns and per-action parts."""

    places: Places
    gru: Tensor  # (3H, Z) GRU input projection of z
    gru_bias: Tensor  # (3H,)
    recurrent: Tensor  # (3H, H) GRU recurrent projection
    recurrent_bias: Tensor  # (3H,)
    gru_columns: Tensor  # (A, 3H) what each action adds to the input projection
    seen: Tensor  # (U, 9 C) first layer, from the neighbourhood
    place_bias: Tensor  # (P, U)
    first: Tensor  # (U, H) first layer, from h'
    first_columns: Tensor  # (A, U)
    gates: Tensor  # (A, U) factors on what is seen
    hidden: list[tuple[Tensor, Tensor]]  # further layers: weight (U, U), bias (U,)
    output: Tensor  # (C + 1, U) W~ on the tanh features
    bias: Tensor  # (C + 1,)
    own: Tensor  # (C, C) W~ on a place's own numbers; (0, 0) without `--forward.skip`
    direct: Tensor  # (C + 1, H) W~ on h'
    direct_columns: Tensor  # (A, C + 1)

    def predicted(self, latents: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[z^, r^] (n A, Z + 1) of all actions, and h' (n A, H), from latent states (n, Z) and hidden states (n, H)."""
        places, count, num_actions, units = self.places, len(latents), len(self.gru_columns), len(self.seen)
        state = linear(latents, self.gru, self.gru_bias)
        recurrent = linear(hidden, self.recurrent, self.recurrent_bias)
        rows = gru_actions(state, recurrent, self.gru_columns, hidden).flatten(0, 1)
        seen = places.look(latents, self.seen)[:, None]
        action = linear(rows, self.first).view(count, num_actions, 1, units) + self.first_columns[:, None]
        x = torch.addcmul(action + self.place_bias, seen, self.gates[:, None]).tanh_().view(-1, units)
        for weight, bias in self.hidden:
            x = linear_tanh(x, weight, bias)
        most = maximum(x.view(count * num_actions, places.count, units))
        own = linear(x, self.output[:-1], self.bias[:-1]).view(count, num_actions, places.count, places.channels)
        reward = linear(most, self.output[-1:], self.bias[-1:]).view(count, num_actions, 1)
        if len(self.own):
            direct = linear(rows, self.direct).view(count, num_actions, -1) + self.direct_columns
            own = own + (places.own(latents) @ self.own.T)[:, None] + direct[:, :, None, :-1]
            reward = reward + direct[..., -1:]
        own = own.reshape(count * num_actions, places.count, places.channels)
        return torch.cat([places.flat(own), reward.view(-1, 1)], 1), rows


@torch.no_grad()
def fold(forward_model: "LocalForwardModel", sample: "SampledModel") -> LocalFolded:
    """Prepare a sampled model, once per sample."""
    gru, latent, places = forward_model.gru, forward_model.latent_size, forward_model.places
    first, *hidden = forward_model.linear_layers()
    of_hidden, of_seen, of_action = (part.detach() for part in forward_model.parts(first.weight))
    sizes = [first.out_features, *([places.channels, gru.hidden_size, forward_model.num_actions])]
    output, own, direct, columns = (
        sample.weight.split(sizes, 1) if forward_model.skip else (sample.weight, *[sample.weight.new_empty(0, 0)] * 3)
    )
    return LocalFolded(
        places=places,
        gru=gru.weight_ih[:, :latent].detach().contiguous(),
        gru_bias=gru.bias_ih.detach(),
        recurrent=gru.weight_hh.detach(),
        recurrent_bias=gru.bias_hh.detach(),
        gru_columns=gru.weight_ih[:, latent:].detach().T.contiguous(),
        seen=of_seen.contiguous(),
        place_bias=forward_model.place_bias + first.bias,
        first=of_hidden.contiguous(),
        first_columns=of_action.T.contiguous(),
        gates=forward_model.gates.detach(),
        hidden=[(layer.weight.detach(), layer.bias.detach()) for layer in hidden],
        output=output.contiguous(),
        bias=sample.bias,
        own=own[:-1].contiguous(),
        direct=direct.contiguous(),
        direct_columns=columns.T.contiguous(),
    )


def tanh_net(net: "LocalTanhNet", x: Tensor) -> Tensor:
    """The network on rows (n, Z) -> (n,), without autograd."""
    first, *hidden, last = net.linear_layers()
    y = (net.places.look(x, first.weight) + (net.place_bias + first.bias)).tanh_().flatten(0, 1)
    for layer in hidden:
        y = linear_tanh(y, layer.weight, layer.bias)
    return linear(maximum(y.view(len(x), net.places.count, -1)), last.weight, last.bias).squeeze(1)
