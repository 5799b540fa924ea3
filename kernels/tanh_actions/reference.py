"""Networks of tanh layers on all actions of states: the oracle."""

import torch
from torch import Tensor
from torch.nn import functional as F

Layers = list[tuple[Tensor, Tensor]]  # weight (U, K) and bias (U,) of each


def tanh_actions(x: Tensor, weight: Tensor, state: Tensor, columns: Tensor, layers: Layers, sums_up: bool) -> Tensor:
    """The first layer tanh(W x + s + c) of rows x (n A, k), where s (n, U) belongs to the state and c (A, U) to the
    action, then tanh layers -> the last one (n A, U); or, if it sums up, an output layer of one unit -> (n A,)."""
    terms = (state[:, None] + columns).flatten(0, 1)
    x = torch.tanh(F.linear(x, weight) + terms)
    for w, b in layers[:-1] if sums_up else layers:
        x = torch.tanh(F.linear(x, w, b))
    return F.linear(x, *layers[-1]).squeeze(1) if sums_up else x
