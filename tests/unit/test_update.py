"""The order of Algorithm 1 within an update: learn, fit the posterior, draw from it, plan in what was drawn."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from psdrl.agents.psdrl.agent import PATHS
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
