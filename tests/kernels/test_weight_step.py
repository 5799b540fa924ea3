"""Gradient and Adam's step in one pass: the oracle is torch's Adam, and whole updates come to the same parameters."""

import pytest
import torch
from torch import nn

from psdrl.agents.psdrl import descent
from psdrl.agents.psdrl.synthetic import debug_agent
from psdrl.kernels.weight_step import reference, serves
from tests.kernels.agents import SIZES, same
from tests.recorder import with_graphs


def test_the_oracle_is_adam() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(4, 3, generator=generator, dtype=torch.float64))
    adam = torch.optim.Adam([weight], 1e-2, betas=(0.8, 0.95), eps=1e-3)
    mine, (first, second) = weight.detach().clone(), torch.zeros(2, 4, 3, dtype=torch.float64)
    for t in range(1, 6):
        delta, x = (torch.randn(7, n, generator=generator, dtype=torch.float64) for n in (4, 3))
        reference.weight_step_(mine, first, second, torch.tensor(float(t)), delta, x, 1e-2, (0.8, 0.95), 1e-3)
        weight.grad = delta.T @ x
        adam.step()
        torch.testing.assert_close(mine, weight.detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("sizes", ["vector", "inputs", "grid"])
def test_updates_in_one_pass(sizes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle in the kernel's place, eagerly and captured; the grid's layers have no taps and go the old way."""
    usual, one_pass, captured = (debug_agent("fast", torch.float64, **SIZES[sizes]) for _ in range(3))
    with_graphs(captured)
    for _ in range(2):
        usual.update()
    steps: list[int] = []

    def counted(*args: object) -> None:
        steps.append(1)
        reference.weight_step_(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(descent, "in_one_pass", lambda device: True)
    monkeypatch.setattr(descent.weight_step, "weight_step_", counted)
    for agent in (one_pass, captured):
        agent.update()
        agent.update()
        same(usual, agent)
    assert steps
    assert not captured.execution.failures


def test_it_is_for_gpus() -> None:
    assert not serves(torch.device("cpu"))
