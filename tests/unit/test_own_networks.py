"""Networks by import path: they learn, are restored, and are refused in one sentence if they do not fit."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import psdrl
from psdrl.errors import UserError

SMALL: dict[str, Any] = {"preset": "debug", "device": "cpu", "steps": 260, "eval_every": 0}
MODULE = """
import torch
from torch import nn
from psdrl.agents.psdrl.encoder import Encoder
from psdrl.agents.psdrl.flat_model import FlatModel

class Projection(Encoder):
    trained = True

    def __init__(self, spec, config):
        super().__init__((3,), config.standardise)
        self.there, self.back = nn.Linear(spec.shape[0], 3), nn.Linear(3, spec.shape[0])

    def latents(self, observations):
        return self.there(observations.to(self.there.weight))

    def loss(self, observations):
        target = observations.to(self.there.weight)
        return (self.back(self.there(target)) - target).square().sum(1).mean()

class Wider(FlatModel):
    pass

class Abstract(Encoder):
    pass

class Arguments(Projection):
    def __init__(self):
        super().__init__((3,), False)

class Shape(Projection):
    def latents(self, observations):
        return self.there(observations.to(self.there.weight))[:, :2]

class Fails(Projection):
    def latents(self, observations):
        return self.there(observations)

class Loss(Projection):
    def loss(self, observations):
        return self.there(observations.to(self.there.weight))

class Output(FlatModel):
    def __init__(self, latent, num_actions, config, reduction):
        super().__init__(latent, num_actions, config, reduction)
        self.output = nn.Linear(self.output.in_features, latent)

class NoOutput(FlatModel):
    def __init__(self, latent, num_actions, config, reduction):
        super().__init__(latent, num_actions, config, reduction)
        del self.output
"""


@pytest.fixture(autouse=True)
def networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_networks.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_networks", raising=False)


def test_they_learn_and_are_restored(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"encoder": "own_networks:Projection", "world_model": "own_networks:Wider"}
    start = psdrl.Agent(config := psdrl.configure(env="deepsea-4", **settings, **SMALL), psdrl.make_env(config).spec)
    agent = psdrl.train("deepsea-4", **settings, **SMALL)
    kinds = [type(agent.core.models.autoencoder).__name__, type(agent.core.models.forward_model).__name__]
    assert kinds == ["Projection", "Wider"]
    assert agent.updates == 1
    weights = [a.core.models.autoencoder.there.weight for a in (start, agent)]
    assert not torch.equal(*weights), "nothing was learned"
    loaded = psdrl.load(agent.save(tmp_path / "saved"), device="cpu")
    assert torch.equal(loaded.core.models.autoencoder.there.weight, weights[1])
    assert loaded.evaluate(3) == agent.evaluate(3)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"encoder": "own_networks"}, "must be MODULE:CLASS, such as mypackage.networks:MyEncoder"),
        ({"encoder": "nowhere:X"}, "--encoder nowhere:X cannot be imported"),
        ({"encoder": "own_networks:X"}, "the module own_networks has no X"),
        ({"encoder": "own_networks:Wider"}, "is no Encoder: inherit psdrl.agents.psdrl.encoder.Encoder"),
        ({"encoder": "own_networks:Abstract"}, "does not define latents, which every Encoder must"),
        ({"encoder": "own_networks:Arguments"}, "cannot be made: .* takes 1 positional argument"),
        ({"encoder": "own_networks:Shape"}, r"latents gives \(2, 2\) for a batch of 2, but must give \(2, 3\)"),
        ({"encoder": "own_networks:Fails"}, "latents fails on a batch of 2 zeros: "),
        ({"encoder": "own_networks:Loss"}, r"loss gives \(2, 3\) for a batch of 2, but must give \(\)"),
        ({"world_model": "own_networks:Projection"}, "is no WorldModel: inherit"),
        ({"world_model": "own_networks:Output"}, r"output.weight gives \(16, 16\) .* must give \(17, 16\)"),
        ({"world_model": "own_networks:NoOutput"}, "has no output layer"),
    ],
    ids=lambda value: next(iter(value.values())) if isinstance(value, dict) else "",
)  # fmt: skip
def test_what_does_not_fit_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        psdrl.train("deepsea-4", **settings, **SMALL)


def test_the_working_directory_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a console script finds it, whose path has neither "" nor the working directory."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "nets_of_here.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    monkeypatch.delitem(sys.modules, "nets_of_here", raising=False)
    config = psdrl.configure(env="deepsea-4", encoder="nets_of_here:Projection", **SMALL)
    agent = psdrl.Agent(config, psdrl.make_env(config).spec)
    assert type(agent.core.models.autoencoder).__module__ == "nets_of_here"
