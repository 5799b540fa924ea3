"""Greedy reduction: one-step returns over actions, their maximum, argmax, runner-up gap and ties."""

import torch
from torch import Tensor

from psdrl.kernels import dispatch
from psdrl.kernels.greedy import aten
from psdrl.kernels.greedy.reference import Greedy


def _fake(rewards: Tensor, omega: Tensor, values: Tensor, *_: object) -> Greedy:
    count = rewards.shape[0]
    return Greedy(
        rewards.new_empty(rewards.shape),
        rewards.new_empty(count),
        rewards.new_empty(count, dtype=torch.int64),
        rewards.new_empty(count),
        rewards.new_empty(count, dtype=torch.int64),
    )


one_step_returns = dispatch.operation(
    "one_step_returns(Tensor rewards, Tensor omega, Tensor values, float discount, float threshold) -> Tensor",
    __name__,
    aten.one_step_returns,
    lambda rewards, *_: rewards.new_empty(rewards.shape),
)
best_return = dispatch.operation(
    "best_return(Tensor rewards, Tensor omega, Tensor values, float discount, float threshold) -> Tensor",
    __name__,
    aten.best_return,
    lambda rewards, *_: rewards.new_empty(rewards.shape[0]),
)
_greedy = dispatch.operation(
    "greedy(Tensor rewards, Tensor omega, Tensor values, float discount, float threshold, Tensor? lots=None)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    __name__,
    aten.greedy,
    _fake,
)


greedy_action = dispatch.operation(
    "greedy_action(Tensor rewards, Tensor omega, Tensor values, float discount, float threshold, Tensor lots)"
    " -> Tensor",
    __name__,
    aten.greedy_action,
    lambda rewards, *_: rewards.new_empty(rewards.shape[0], dtype=torch.int64),
)


def greedy(
    rewards: Tensor, omega: Tensor, values: Tensor, discount: float, threshold: float, lots: Tensor | None = None
) -> Greedy:
    """See `reference.greedy`."""
    return Greedy(*_greedy(rewards, omega, values, discount, threshold, lots))


__all__ = ["Greedy", "best_return", "greedy", "greedy_action", "one_step_returns"]
