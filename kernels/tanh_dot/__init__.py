"""Last hidden layer of the termination and value networks with their one output."""

from torch import Tensor

from psdrl.kernels import dispatch
from psdrl.kernels.tanh_dot import aten


def _fake(x: Tensor, weight: Tensor, bias: Tensor, out_weight: Tensor, out_bias: Tensor) -> Tensor:
    return x.new_empty(x.shape[0])


tanh_dot = dispatch.operation(
    "tanh_dot(Tensor x, Tensor weight, Tensor bias, Tensor out_weight, Tensor out_bias) -> Tensor",
    __name__,
    aten.tanh_dot,
    _fake,
    rows=(0,),
    product=True,
)

__all__ = ["tanh_dot"]
