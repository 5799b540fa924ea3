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
