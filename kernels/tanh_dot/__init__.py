"""Last hidden layer of the termination and value networks with their one output."""

from collections.abc import Sequence

from torch import Tensor

from psdrl.kernels import dispatch
from psdrl.kernels.linear_tanh import linear_tanh
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


def tanh_net(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """A network of tanh layers and a linear output: x (r, k), weights (units, inputs) and biases (units,) -> (r,)."""

    def layers() -> Tensor:
        *hidden, (weight, bias), (out_weight, out_bias) = zip(weights, biases, strict=True)
        y = x
        for layer in hidden:
            y = linear_tanh(y, *layer)
        return tanh_dot(y, weight, bias, out_weight, out_bias)

    return aten.tanh_net(x, weights, biases, layers) if dispatch.unconstrained("tanh_dot") else layers()


__all__ = ["tanh_dot", "tanh_net"]
