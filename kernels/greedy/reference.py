"""The oracle."""

from typing import NamedTuple

import torch
from torch import Tensor


class Greedy(NamedTuple):
    """The one-step return of every action (Eq. 6 and 7) and the best one (Eq. 8)."""

    returns: Tensor  # (n, A) r^ + gamma * 1[omega < threshold] * v^
    best: Tensor  # (n,) the largest
    action: Tensor  # (n,) int64: an action that attains it, see `greedy`
    gap: Tensor  # (n,) the largest minus the second largest; infinite if there is one action only
    ties: Tensor  # (n,) int64: actions whose return is close to the largest; 1: no tie


def one_step_returns(rewards: Tensor, omega: Tensor, values: Tensor, discount: float, threshold: float) -> Tensor:
    """r^ + gamma * 1[omega < threshold] * v^ (n, A); a dead state's value does not enter, not even as NaN."""
    return rewards + discount * torch.where(omega < threshold, values, 0.0)


def best_return(rewards: Tensor, omega: Tensor, values: Tensor, discount: float, threshold: float) -> Tensor:
    """The largest one-step return (n,): the value network's target (Eq. 6 and 7)."""
    return one_step_returns(rewards, omega, values, discount, threshold).amax(1)


def greedy(
    rewards: Tensor, omega: Tensor, values: Tensor, discount: float, threshold: float, lots: Tensor | None = None
) -> Greedy:
    """Rewards, termination estimates omega and values of all actions, each (n, A).

    Ties are returns that torch.isclose takes for the largest. With `lots` (n, A), numbers in [0, 1), the tied action
    with the largest lot is chosen, without them the first action that attains the largest return. As in argmax, NaN
    counts as the largest; nothing is close to it, so with lots the first action is chosen.
    """
    returns = one_step_returns(rewards, omega, values, discount, threshold)
    best = returns.amax(1)
    close = torch.isclose(returns, best[:, None])
    action = returns.argmax(1) if lots is None else torch.where(close, lots, -1.0).argmax(1)
    if returns.shape[1] > 1:
        first, second = returns.topk(2, 1).values.unbind(1)
        gap = first - second
    else:
        gap = torch.full_like(best, torch.inf)
    return Greedy(returns, best, action, gap, close.sum(1))


def greedy_action(
    rewards: Tensor, omega: Tensor, values: Tensor, discount: float, threshold: float, lots: Tensor
) -> Tensor:
    """Only the chosen actions (n,) of `greedy`, for acting (Eq. 8)."""
    return greedy(rewards, omega, values, discount, threshold, lots).action
