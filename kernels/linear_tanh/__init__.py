"""Hidden layer: linear, state term, action column, bias, tanh; and the same without tanh for linear outputs."""

from torch import Tensor

from psdrl.kernels import dispatch
from psdrl.kernels.linear_tanh import aten


def _fake(x: Tensor, weight: Tensor, *_: Tensor | None) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


linear = dispatch.operation(
    "linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor",
    __name__,
    aten.linear,
    _fake,
    rows=(0,),
    product=True,
)
linear_tanh = dispatch.operation(
    "linear_tanh(Tensor x, Tensor weight, Tensor? bias=None, Tensor? state=None, Tensor? columns=None) -> Tensor",
    __name__,
    aten.linear_tanh,
    _fake,
    rows=(0, 3),
    product=True,
)

__all__ = ["linear", "linear_tanh"]
