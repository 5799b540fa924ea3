"""Random inputs of the kernels, every call of an operation, and what rounding allows."""

import torch
from torch import Tensor

from psdrl.kernels.checks.calls import Call

UNIT = torch.finfo(torch.float64).eps / 2


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def randn64(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """The same numbers, rounded, in every dtype."""
    return randn(*shape, seed=seed, dtype=torch.float64).to(dtype)


def error(tensor: Tensor, exact: Tensor) -> float:
    """Relative L2 distance from what is exact."""
    return float((tensor.double() - exact).norm() / exact.norm())


def gamma(n: int) -> float:
    return n * UNIT / (1 - n * UNIT)


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


def variances(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def within(error: Tensor, bound: Tensor, what: str) -> None:
    worst = (error.abs() / bound.clamp(min=1e-300)).max().item() if error.numel() else 0.0
    assert worst <= 1, f"{what}: error is {worst:.2f} times the rounding bound"


def empty(*shape: int) -> Tensor:
    return torch.empty(shape, device="meta")


def calls(inner: int = 33, states: int = 1, actions: int = 3) -> list[Call]:
    """Every operation, for few rows (acting) or many."""
    rows, table = states * actions, empty(states, actions)
    layer = empty(rows, inner), empty(inner + 1, inner), empty(inner + 1)
    wide = empty(states, 3 * inner)
    return [
        Call.of("linear", *layer),
        Call.of("linear_tanh", *layer, empty(states, inner + 1), empty(actions, inner + 1)),
        Call.of("tanh_dot", *layer, empty(1, inner + 1), empty(1)),
        Call.of("gru_actions", wide, wide, empty(actions, 3 * inner), empty(states, inner)),
        *(Call.of(name, table, table, table, 0.99, 0.5) for name in ("one_step_returns", "best_return")),
        Call.of("greedy_action", table, table, table, 0.99, 0.5, table),
    ]
