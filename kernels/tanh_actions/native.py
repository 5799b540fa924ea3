"""The same by csrc/ in one pass over the rows, or layer by layer: on a CPU whichever is faster. No gradients."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from psdrl.kernels import choice, dispatch
from psdrl.kernels.extension import missing
from psdrl.kernels.linear_tanh import linear, linear_tanh
from psdrl.kernels.linear_tanh.aten import chosen_here
from psdrl.kernels.tanh_actions.reference import Layers
from psdrl.kernels.tanh_dot import tanh_net

NATIVE = missing() is None

if NATIVE:

    @torch.library.register_fake("psdrl::tanh_actions")
    def _tanh_actions(x: Tensor, weight: Tensor, *others: Any) -> Tensor:
        weights, sums_up = others[2], others[4]
        return x.new_empty(len(x)) if sums_up else x.new_empty(len(x), len((weights or [weight])[-1]))


def by_layer(x: Tensor, weight: Tensor, state: Tensor, columns: Tensor, layers: Layers, sums_up: bool) -> Tensor:
    """A kernel for each layer, on any device."""
    x = linear_tanh(x, weight, None, state, columns)
    if not sums_up:
        for w, b in layers:
            x = linear_tanh(x, w, b)
        return x
    if len(layers) == 1:
        return linear(x, *layers[0]).squeeze(1)
    weights, biases = zip(*layers, strict=True)
    return tanh_net(x, list(weights), list(biases))


def in_one_pass(x: Tensor, weight: Tensor, state: Tensor, columns: Tensor, layers: Layers, sums_up: bool) -> Tensor:
    """By csrc/."""
    weights, biases = [w for w, _ in layers], [b for _, b in layers]
    return torch.ops.psdrl.tanh_actions(x, weight, state, columns, weights, biases, sums_up)


def tanh_actions(x: Tensor, weight: Tensor, state: Tensor, columns: Tensor, layers: Layers, sums_up: bool) -> Tensor:
    """See `reference`."""
    given = (x, weight, state, columns, layers, sums_up)
    if not (NATIVE and chosen_here(x) and dispatch.forced() is None) or torch.compiler.is_compiling():
        return by_layer(*given)
    name = f"actions {len(columns)} {len(layers)} {'dot' if sums_up else 'layer'}"
    table = {"csrc": in_one_pass, "aten": by_layer}
    chosen = choice.choose(name, x, weight, lambda: {key: partial(call, *given) for key, call in table.items()})
    return table[chosen](*given)
