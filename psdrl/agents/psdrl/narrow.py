"""Predictions for planning in fewer numbers than they have.

Planning asks of a prediction its reward and what first layers of networks make of it. If [z^, r^] is linear in a code c
that is narrower than z^, z^ itself is never needed: for weights [W_z, W_h]
    W_z z^ + W_h h' = (W_z M) c + W_h h' + (W_z N) z + W_z columns_a    with  z^ = M c + N z + columns_a.
The z term is one product per state, not per action. In hindsight the error of the action that was taken moves all of a
state's predictions alike: z^ = M c + columns_a + rest, where rest = z' - M c_t - columns_t takes the place of N z. At
the cpu preset a row costs 192 x 256 multiply-adds instead of 358 x 256 in the value network, and 66,000 instead of
135,000 in forward and termination model."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from psdrl.agents.psdrl.lookahead import Happened, Predictions
from psdrl.agents.psdrl.networks import TanhNet
from psdrl.agents.psdrl.value import MinEnsemble
from psdrl.kernels.linear_tanh import linear
from psdrl.kernels.linear_tanh.aten import product
from psdrl.kernels.tanh_actions import tanh_actions


class Narrow(NamedTuple):
    """A sampled world whose predictions are linear in codes c (n A, C), of which the last H numbers are h'."""

    codes: Callable[[Tensor, Tensor], Tensor]  # from latent states (n, Z) and hidden states (n, H)
    code: Tensor  # (Z + 1, C) M, and the reward's row
    latent: Tensor  # (Z + 1, Z) N
    columns: Tensor  # (A, Z + 1) what each action adds, the bias included

    def width(self, moved: bool) -> int:
        """Numbers of a prediction, in the mean of the actions."""
        outputs, code = self.code.shape
        return code + (outputs - 1) // len(self.columns) if moved else code

    def predict(
        self, termination: TanhNet, latents: Tensor, hidden: Tensor, happened: Happened | None = None
    ) -> Predictions:
        """As `lookahead.predict`, with codes (n, A, C) in the place of [z^, h'], or, in hindsight, codes and rest
        (n, A C + Z)."""
        codes, shape = self.codes(latents, hidden), (len(latents), len(self.columns))
        state = linear(latents, self.latent[-1:]) + self.columns[:, -1]
        rewards = linear(codes, self.code[-1:]).view(shape) + state
        by_state = codes.view(*shape, codes.shape[1])
        if happened is None:
            omega = self.behind(termination, codes, latents)
            return Predictions(by_state, rewards, omega.view(shape))
        taken = by_state[torch.arange(len(codes) // shape[1]), happened.actions]
        rest = happened.latents - linear(taken, self.code[:-1]) - self.columns[happened.actions, :-1]
        omega = self.behind(termination, codes, rest, moved=True).view(shape)
        rewards, omega = happened.moved(rewards, happened.rewards), happened.moved(omega, happened.ends)
        return Predictions(torch.cat([by_state.flatten(1), rest], 1), rewards, omega)

    def values(self, value: MinEnsemble, predictions: Predictions, latents: Tensor) -> Tensor:
        """V(z^, h') (n, A) of predictions from latent states (n, Z)."""
        codes, moved, rest = predictions.latents_hidden, predictions.latents_hidden.dim() == 2, latents
        if moved:
            codes, rest = codes.tensor_split([codes.shape[1] - self.latent.shape[1]], 1)
        codes = codes.reshape(-1, self.code.shape[1])
        first, *others = (self.behind(network, codes, rest, moved) for network in value.networks())
        for other in others:
            first = torch.minimum(first, other)
        return first.view_as(predictions.rewards)

    def behind(self, network: TanhNet, codes: Tensor, rest: Tensor, moved: bool = False) -> Tensor:
        """The network's output (n A,) for [z^, h'], or for z^ if that is all it sees; `rest` (n, Z) is z or, if the
        predictions are moved, what is added to M c + columns."""
        first, *layers = network.linear_layers()
        of_z, of_h = first.weight[:, : self.latent.shape[1]], first.weight[:, self.latent.shape[1] :]
        of_code = product(of_z, self.code[:-1])
        of_code[:, of_code.shape[1] - of_h.shape[1] :] += of_h
        columns = torch.addmm(first.bias, self.columns[:, :-1], of_z.T)
        state = linear(rest, of_z if moved else product(of_z, self.latent[:-1]))
        return tanh_actions(codes, of_code, state, columns, [(layer.weight, layer.bias) for layer in layers], True)
