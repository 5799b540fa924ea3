"""Gradient steps whose weight gradients are never written: on a GPU, linear layers take Adam's step in the kernel that
forms their gradient (`psdrl.kernels.weight_step`).

The kernel needs a layer's input x and delta, the gradient of its sums. Planning writes its backpropagation out and has
both. Where autograd goes back, a tap is an extra argument of a layer that is never read and whose gradient is delta.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from psdrl.kernels import weight_step
from psdrl.kernels.linear_tanh import linear, linear_tanh
from psdrl.kernels.linear_tanh.aten import product


class Layer(NamedTuple):
    """A linear layer in a gradient step of n rows."""

    module: nn.Linear
    x: Tensor  # (n, K) its input
    delta: Tensor  # (n, U) the gradient of x W^T + b


def in_one_pass(device: torch.device) -> bool:
    """Whether gradient and step are one kernel on this device."""
    return weight_step.serves(device)


@torch.no_grad()
def step(optimiser: torch.optim.Optimizer, layers: Sequence[Layer]) -> None:
    """One step of Adam: these layers' weights by the kernel, their biases and all else that has a gradient by the
    optimiser, which leaves out what has none."""
    (group,) = optimiser.param_groups
    states = [optimiser.state[layer.module.weight] for layer in layers]
    if states:
        torch._foreach_add_([state["step"] for state in states], 1.0)
    for (module, x, delta), state in zip(layers, states, strict=True):
        if x.dtype != delta.dtype:  # as autocast does with the factors of a product
            x, delta = x.bfloat16(), delta.bfloat16()
        averages = state["exp_avg"], state["exp_avg_sq"], state["step"]
        weight_step.weight_step_(module.weight, *averages, delta, x, group["lr"], group["betas"], group["eps"])
        module.weight.grad, module.bias.grad = None, delta.sum(0, dtype=module.bias.dtype)
    optimiser.step()


class _Tapped(torch.autograd.Function):
    """A layer by the fused kernels, with its tap; its weight and bias get no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, tap: Tensor, tanh: bool) -> Tensor:
        y = linear_tanh(x, weight, bias) if tanh else linear(x, weight, bias)
        ctx.save_for_backward(weight.to(y.dtype), y)
        ctx.tanh, ctx.dtype = tanh, x.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight, y = ctx.saved_tensors
        delta = torch.ops.aten.tanh_backward(gradient, y) if ctx.tanh else gradient
        onward = product(delta, weight).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        return onward, None, None, delta, None


class Tapping:
    """Layers for a loss, in the order of their taps; keeps what enters them."""

    def __init__(self, taps: Sequence[Tensor]) -> None:
        self.taps = taps
        self.inputs: list[Tensor] = []

    def _apply(self, x: Tensor, weight: Tensor, bias: Tensor, tanh: bool) -> Tensor:
        tap = self.taps[len(self.inputs)]
        self.inputs.append(x.detach())
        return _Tapped.apply(x, weight, bias, tap, tanh)

    def tanh(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """tanh(x W^T + b); see `psdrl.agents.psdrl.networks.TanhLayer`."""
        return self._apply(x, weight, bias, True)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """x W^T + b."""
        return self._apply(x, weight, bias, False)


def make_taps(layers: Sequence[nn.Linear], rows: int, dtype: torch.dtype) -> list[Tensor]:
    """A tap for each layer, without memory of its own; `dtype`: of what the layers make."""
    return [
        layer.weight.new_empty((), dtype=dtype).expand(rows, layer.out_features).requires_grad_() for layer in layers
    ]


def tapped_step(
    optimiser: torch.optim.Optimizer,
    loss: Tensor,
    modules: Sequence[nn.Linear],
    taps: Sequence[Tensor],
    inputs: Sequence[Tensor],
) -> None:
    """One step down the gradient of a loss whose layers `modules` have these taps and inputs."""
    tapped = {id(p) for module in modules for p in module.parameters()}
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    others = [p for p in parameters if p.requires_grad and id(p) not in tapped]
    gradients = torch.autograd.grad(loss, [*taps, *others])
    for p, gradient in zip(others, gradients[len(taps) :], strict=True):
        p.grad = gradient
    step(optimiser, [Layer(*layer) for layer in zip(modules, inputs, gradients[: len(taps)], strict=True)])
