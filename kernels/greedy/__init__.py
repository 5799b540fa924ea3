"""Greedy reduction: one-step returns of all actions, their maximum, an action that attains it."""

import torch

from psdrl.kernels import dispatch
from psdrl.kernels.greedy import aten

one_step_returns = dispatch.operation(
    "one_step_returns(Tensor rewards, Tensor omega, Tensor values, float discount, float threshold) -> Tensor",
    __name__,
    aten.one_step_returns,
    lambda rewards, *_: rewards.new_empty(rewards.shape),
    rows=(0, 1, 2),
)
best_return = dispatch.operation(
    "best_return(Tensor rewards, Tensor omega, Tensor values, float discount, float threshold) -> Tensor",
    __name__,
    aten.best_return,
    lambda rewards, *_: rewards.new_empty(rewards.shape[0]),
    rows=(0, 1, 2),
)
greedy_action = dispatch.operation(
    "greedy_action(Tensor rewards, Tensor omega, Tensor values, float discount, float threshold, Tensor lots)"
    " -> Tensor",
    __name__,
    aten.greedy_action,
    lambda rewards, *_: rewards.new_empty(rewards.shape[0], dtype=torch.int64),
    rows=(0, 1, 2, 5),
)

__all__ = ["best_return", "greedy_action", "one_step_returns"]
