"""The order of Algorithm 1 within an update: learn, fit the posterior, draw from it, plan in what was drawn."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from psdrl.agents.psdrl.agent import PATHS, all_finite
from psdrl.agents.psdrl.synthetic import add_episode
from tests.helpers import small_agent

ORDER = ["train_autoencoder", "encode_buffer", "train_forward", "buffer_statistics", "fit", "draw", "train_value"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("algo", ["psdrl", "fresh-value"])
def test_an_update_fits_then_draws_then_plans(path: str, algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = small_agent(algo=algo, update_path=path)
    add_episode(agent.replay, np.random.default_rng(0), 12)
    calls: list[str] = []
    given: dict[str, tuple] = {}
    results: dict[str, Any] = {}

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            given[name] = arguments
            results[name] = function(*arguments, **options)
            return results[name]

        return call

    phases = {name: watched(name, f) for name, f in PATHS[path]._asdict().items()}
    monkeypatch.setitem(PATHS, path, PATHS[path]._replace(**phases))
    monkeypatch.setattr(agent.posterior, "fit", watched("fit", agent.posterior.fit))
    monkeypatch.setattr(agent.posterior, "draw", watched("draw", agent.posterior.draw))
    prior = agent.posterior.mean.clone()
    agent.update()
    assert calls == ORDER
    assert given["fit"][0] is results["buffer_statistics"]
    assert not torch.equal(agent.posterior.mean, prior), "the draw would be the prior's"
    planned_in = given["train_value"][5]
    assert planned_in is agent.model, "planning and acting are about one model"
    assert torch.equal(planned_in.weight, results["draw"].to(planned_in.weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("count", [1, 7, 1000, 100_003])
def test_one_number_that_is_not_finite_is_found(count: int, dtype: torch.dtype) -> None:
    x = torch.randn(count, dtype=dtype, generator=torch.Generator().manual_seed(0))
    assert all_finite(x)
    for value in (torch.inf, -torch.inf, torch.nan):
        for place in (0, count // 2, count - 1):
            y = x.clone()
            y[place] = value
            assert not all_finite(y), (value, place)


def test_nothing_is_finite() -> None:
    assert all_finite(torch.empty(0))


@pytest.mark.parametrize("path", PATHS)
def test_networks_start_anew_when_it_is_their_turn(path: str) -> None:
    """With no training in between: new parameters, Adam's state as before its first step, the encoder as it was."""
    nothing = {"forward": {"iterations": 0}, "value": {"iterations": 0}, "autoencoder": {"iterations": 0}}
    agent = small_agent(update_path=path, anew={"every": 2}, **nothing)
    add_episode(agent.replay, np.random.default_rng(0), 12)

    def parameters() -> dict[str, torch.Tensor]:
        return {name: p.detach().clone() for name, p in agent.models.named_parameters()}

    first = parameters()
    for state in agent.optimisers["value"].state.values():
        state["exp_avg"].fill_(1.0)
    for updates in range(1, 6):
        before = parameters()
        agent.update()
        changed = {name for name, p in parameters().items() if not torch.equal(p, before[name])}
        starts = updates in (3, 5)  # after the second and the fourth
        assert (
            {name.partition(".")[0] for name in changed} == {"forward_model", "termination", "value", "target"}
        ) == starts
        assert bool(changed) == starts
    assert not any(torch.equal(p, first[name]) for name, p in parameters().items() if name in changed)
    for name, p in agent.models.value.named_parameters():
        assert torch.equal(p, agent.models.target.get_parameter(name))
    assert all(not state["exp_avg"].any() for state in agent.optimisers["value"].state.values())


def test_an_update_that_starts_anew_catches_up() -> None:
    config = small_agent(
        anew={"every": 3, "model": 4, "value": 5}, forward={"iterations": 2}, value={"iterations": 7}
    ).config
    assert [updates for updates in range(8) if config.starts_anew(updates)] == [3, 6]
    assert (config.catching_up().forward.iterations, config.catching_up().planning_iterations) == (8, 35)
    assert not any(small_agent().config.starts_anew(updates) for updates in range(8))
