"""Returns, their maximum or the chosen action, one launch each; arithmetic in float32."""

# Arguments of kernels are pointers and numbers of Triton's own types.
# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

from psdrl.kernels import tune

BLOCK_N = 64  # states per program; |A| is at most 18, padded to a power of two


@triton.jit
def kernel(
    r_ptr,
    omega_ptr,
    v_ptr,
    lots_ptr,
    returns_ptr,
    best_ptr,
    action_ptr,
    N,
    A,
    stride_r,
    step_r,
    stride_omega,
    step_omega,
    stride_v,
    step_v,
    stride_lots,
    step_lots,
    discount,
    threshold,
    BLOCK_N: tl.constexpr,
    BLOCK_A: tl.constexpr,
):
    """BLOCK_N states. Any output may be None; lots belong to action. Strides are those of states, steps of actions."""
    states = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    actions = tl.arange(0, BLOCK_A)
    n = states[:, None]
    a = actions[None, :].to(tl.int64)
    valid = (n < N) & (a < A)
    omega = tl.load(omega_ptr + n * stride_omega + a * step_omega, valid, 0.0).to(tl.float32)
    v = tl.load(v_ptr + n * stride_v + a * step_v, valid, 0.0).to(tl.float32)
    r = tl.load(r_ptr + n * stride_r + a * step_r, valid, 0.0).to(tl.float32)
    returns = (r + discount * tl.where(omega < threshold, v, 0.0)).to(r_ptr.dtype.element_ty)
    if returns_ptr is not None:
        tl.store(returns_ptr + n * A + a, returns, valid)
    returns = returns.to(tl.float32)  # what follows sees the stored numbers
    nan = valid & (returns != returns)
    broken = tl.max(nan.to(tl.int32), 1) > 0
    x = tl.where(valid & (returns == returns), returns, float("-inf"))
    best = tl.max(x, 1)
    if best_ptr is not None:
        tl.store(best_ptr + states, tl.where(broken, float("nan"), best).to(r_ptr.dtype.element_ty), states < N)
    if action_ptr is not None:
        distance = tl.abs(x - best[:, None])  # torch.isclose with its defaults; equal infinities are close
        close = (distance <= 1e-8 + 1e-5 * tl.abs(best)[:, None]) & (distance < float("inf"))
        close = (close | (x == best[:, None])) & valid & (broken == 0)[:, None]
        lots = tl.load(lots_ptr + n * stride_lots + a * step_lots, valid, 0.0).to(tl.float32)
        lots = tl.where(close, lots, tl.where(valid, -1.0, -2.0))
        action = tl.min(tl.where(lots == tl.max(lots, 1)[:, None], a, BLOCK_A), 1)
        tl.store(action_ptr + states, action, states < N)


def _launch(
    rewards: Tensor,
    omega: Tensor,
    values: Tensor,
    discount: float,
    threshold: float,
    lots: Tensor | None,
    outputs: tuple[Tensor | None, ...],
) -> None:
    """Fill returns, best and action, as far as they are asked for."""
    tune.same_dtype(rewards, omega, values)
    for tensor in (omega, values, lots):
        if tensor is not None and tensor.shape != rewards.shape:
            raise ValueError(f"expected {tuple(rewards.shape)} for all inputs, got {tuple(tensor.shape)}")
    count, num_actions = rewards.shape
    if count == 0:
        return
    with tune.on(rewards):
        kernel[(triton.cdiv(count, BLOCK_N),)](
            rewards,
            omega,
            values,
            lots,
            *outputs,
            count,
            num_actions,
            *rewards.stride(),
            *omega.stride(),
            *values.stride(),
            *(lots.stride() if lots is not None else (0, 0)),
            float(discount),
            float(threshold),
            BLOCK_N=BLOCK_N,
            BLOCK_A=triton.next_power_of_2(num_actions),
            num_warps=4,
        )


def one_step_returns(rewards: Tensor, omega: Tensor, values: Tensor, discount: float, threshold: float) -> Tensor:
    """(n, A); see `reference`. Any strides."""
    returns = rewards.new_empty(rewards.shape)
    _launch(rewards, omega, values, discount, threshold, None, (returns, None, None))
    return returns


def best_return(rewards: Tensor, omega: Tensor, values: Tensor, discount: float, threshold: float) -> Tensor:
    """(n,); see `reference`. Any strides."""
    best = rewards.new_empty(len(rewards))
    _launch(rewards, omega, values, discount, threshold, None, (None, best, None))
    return best


def greedy_action(
    rewards: Tensor, omega: Tensor, values: Tensor, discount: float, threshold: float, lots: Tensor
) -> Tensor:
    """(n,); see `reference`. Any strides."""
    action = rewards.new_empty(len(rewards), dtype=torch.int64)
    _launch(rewards, omega, values, discount, threshold, lots, (None, None, action))
    return action
