"""Linear and tanh layers by ATen; on a CPU by whichever of MKL, oneDNN and csrc/ is fastest there (`kernels.choice`).
No gradients."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from psdrl.kernels import choice, dispatch
from psdrl.kernels.extension import missing

NATIVE = missing() is None  # asked once: acting calls `linear` 20 times per step
ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
MOST_ROWS = 16  # above this the kernel of csrc, which is made for streaming weights, is not asked

if NATIVE:

    @torch.library.register_fake("psdrl::linear_rows")
    def _linear_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return x.new_empty(x.shape[0], weight.shape[0])

    @torch.library.register_fake("psdrl::tanh_net_rows")
    def _tanh_net_rows(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
        return x.new_empty(x.shape[0], weights[-1].shape[0])

    @torch.library.register_fake("psdrl::bias_tanh_")
    def _bias_tanh_(y: Tensor, *_: Tensor | None) -> None:
        return None


def chosen_here(x: Tensor) -> bool:
    """Whether there is something to choose: float32 on a CPU, and numbers that can be timed."""
    return x.dtype is torch.float32 and x.is_cpu and x.numel() > 0 and not torch.is_autocast_enabled("cpu")


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, activation, [], "")


LINEAR: dict[str, Any] = {
    "csrc": lambda x, weight, bias: torch.ops.psdrl.linear_rows(x, weight, bias),
    "aten": F.linear,
    "onednn": lambda x, weight, bias: _onednn(x, weight, bias, "none"),
}


def _tanh_after(name: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product by one library, bias and tanh by csrc in one more pass."""
    y = LINEAR[name](x, weight, None)
    torch.ops.psdrl.bias_tanh_(y, bias)
    return y


TANH: dict[str, Any] = {
    "csrc": lambda *args: _tanh_after("csrc", *args),
    "aten and csrc": lambda *args: _tanh_after("aten", *args),
    "aten": lambda x, weight, bias: F.linear(x, weight, bias).tanh_(),
    "onednn": lambda x, weight, bias: _onednn(x, weight, bias, "tanh"),
    "onednn and csrc": lambda *args: _tanh_after("onednn", *args),
}
PRODUCT: dict[str, Any] = {"aten": torch.mm, "onednn": lambda a, b: _onednn(a, b.T, None, "none")}


def _possible(name: str, rows: int) -> bool:
    return (NATIVE or "csrc" not in name) and (ONEDNN or "onednn" not in name) and (name != "csrc" or rows <= MOST_ROWS)


def _fastest(operation: str, table: dict[str, Any], x: Tensor, y: Tensor, *rest: Tensor | None) -> Tensor:
    chosen = choice.chosen(operation, x, y)
    if chosen is None:
        possible = [name for name in table if _possible(name, x.shape[0])]
        chosen = choice.choose(operation, x, y, lambda: {name: partial(table[name], x, y, *rest) for name in possible})
    return table[chosen](x, y, *rest)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y (r, n) = x (r, k) W^T + b for weight (n, k) and bias (n,)."""
    if not chosen_here(x):
        return F.linear(x, weight, bias)
    return _fastest("linear", LINEAR, x, weight, bias)


def _product(a: Tensor, b: Tensor) -> Tensor:
    return _fastest("product", PRODUCT, a, b) if chosen_here(a) else a @ b


dispatch.library.define("product(Tensor a, Tensor b) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
dispatch.library.impl("product", _product, "CompositeExplicitAutograd")
torch.library.register_fake("psdrl::product", lambda a, b: a.new_empty(a.shape[0], b.shape[1]), lib=dispatch.library)


def product(a: Tensor, b: Tensor) -> Tensor:
    """a (m, k) b (k, n), for gradients. torch.compile takes it as one node: what is chosen is known when it runs."""
    if torch.compiler.is_compiling() and chosen_here(a):
        return torch.ops.psdrl.product(a, b)
    return _product(a, b)


def linear_tanh(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, state: Tensor | None = None, columns: Tensor | None = None
) -> Tensor:
    """y (r, U); see `reference`."""
    if state is None and columns is None and chosen_here(x):
        return _fastest("linear_tanh", TANH, x, weight, bias)
    if NATIVE and x.is_cpu and x.dtype == torch.float32:
        y = linear(x, weight)
        torch.ops.psdrl.bias_tanh_(y, bias, state, columns)
        return y
    y = linear(x, weight, bias)
    if state is not None:
        y.view(len(state), len(y) // max(1, len(state)), y.shape[1]).add_(state[:, None])
    if columns is not None:
        y.view(-1, *columns.shape).add_(columns)
    return y.tanh_()
