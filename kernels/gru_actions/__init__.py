"""Factored GRU: the next hidden states of all actions from one state's projections."""

from torch import Tensor

from psdrl.kernels import dispatch
from psdrl.kernels.gru_actions import aten


def _fake(inputs: Tensor, recurrent: Tensor, columns: Tensor, hidden: Tensor) -> Tensor:
    return hidden.new_empty(hidden.shape[0], columns.shape[0], hidden.shape[1])


gru_actions = dispatch.operation(
    "gru_actions(Tensor inputs, Tensor recurrent, Tensor columns, Tensor hidden) -> Tensor",
    __name__,
    aten.gru_actions,
    _fake,
    rows=(0, 1, 3),
)

__all__ = ["gru_actions"]
