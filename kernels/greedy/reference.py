"""The oracle."""

import torch
from torch import Tensor


def one_step_returns(rewards: Tensor, omega: Tensor, values: Tensor, discount: float, threshold: float) -> Tensor:
    """r^ + gamma * 1[omega < threshold] * v^ (n, A); a dead state's value does not enter, not even as NaN."""
    return rewards + discount * torch.where(omega < threshold, values, 0.0)


def best_return(rewards: Tensor, omega: Tensor, values: Tensor, discount: float, threshold: float) -> Tensor:
    """The largest one-step return (n,): the value network's target (Eq. 6 and 7)."""
    return one_step_returns(rewards, omega, values, discount, threshold).amax(1)


def greedy_action(
    rewards: Tensor, omega: Tensor, values: Tensor, discount: float, threshold: float, lots: Tensor
) -> Tensor:
    """An action (n,) with the largest return, for acting (Eq. 8); rewards, omega, values and lots are (n, A).

    Ties are returns that torch.isclose takes for the largest; the tied action with the largest lot, a number in
    [0, 1), is chosen. As in amax, NaN counts as the largest; nothing is close to it, so the first action is chosen.
    """
    returns = one_step_returns(rewards, omega, values, discount, threshold)
    close = torch.isclose(returns, returns.amax(1, keepdim=True))
    return torch.where(close, lots, -1.0).argmax(1)
