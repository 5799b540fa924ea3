"""Interfaces of world models and encoders: kinds that the agent has never heard of, in whole updates."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.parity import distance, parameters
from psdrl.agents.psdrl import models
from psdrl.agents.psdrl.encoder import Encoder
from psdrl.agents.psdrl.networks import TanhLayer, plain_tanh
from psdrl.agents.psdrl.regression import Statistics
from psdrl.agents.psdrl.settings import ForwardConfig
from psdrl.agents.psdrl.synthetic import debug_agent
from psdrl.agents.psdrl.world_model import SampledModel, SampledWorld, WorldModel


class ProductModel(WorldModel):
    """Features are products of two linear layers: neither flat nor of a grid."""

    def __init__(self, latent: int, num_actions: int, config: ForwardConfig, reduction: str = "sum") -> None:
        super().__init__(latent, num_actions, config, reduction)
        inputs = config.hidden + latent + num_actions
        self.left, self.right = nn.Linear(inputs, config.units), nn.Linear(inputs, config.units)
        self.output = nn.Linear(config.units, latent + 1)

    def feature_layers(self, x: Tensor, tanh_layer: TanhLayer = plain_tanh) -> tuple[Tensor, Tensor]:
        return self.left(x), self.right(x)

    def predicted(self, features: tuple[Tensor, Tensor], weight: Tensor, bias: Tensor) -> Tensor:
        return (features[0] * features[1]) @ weight.T + bias

    def statistics(self, device: torch.device) -> Statistics:
        return ProductStatistics.empty(self.output.in_features, self.output.out_features, device)

    def prepare(self, sample: SampledModel) -> SampledWorld:
        return ProductWorld(self, sample)


class ProductStatistics(Statistics):
    def add(self, features: tuple[Tensor, Tensor], targets: Tensor, times: Tensor | None = None) -> None:
        super().add(features[0] * features[1], targets, times)


class ProductWorld:
    def __init__(self, model: ProductModel, sample: SampledModel) -> None:
        self.model, self.sample, self.num_actions = model, sample, model.num_actions

    def predict(self, latents: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        actions = torch.arange(self.num_actions).repeat(len(latents))
        z, h = (x.repeat_interleave(self.num_actions, 0) for x in (latents, hidden))
        following = self.model.next_hidden(z, actions, h)
        features = self.model.features(following, z, actions)
        return self.model.predicted(features, self.sample.weight, self.sample.bias), following


class Projection(Encoder):
    """A learned projection to two dimensions, from which the observation is to be guessed."""

    trained = True

    def __init__(self, size: int, standardise: bool) -> None:
        super().__init__((2,), standardise)
        self.there, self.back = nn.Linear(size, 2), nn.Linear(2, size)

    def latents(self, observations: Tensor) -> Tensor:
        return self.there(observations.to(self.there.weight))

    def loss(self, observations: Tensor) -> Tensor:
        target = observations.to(self.there.weight)
        return (self.back(self.there(target)) - target).square().sum(1).mean()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"forward": {"recurrent": 0, "reward_weight": 0}, "different": 4},
        {"value": {"sweep": "backward"}, "termination": {"predicted": True}, "standardise": True},
        {"posterior": {"rule": "released"}},
        {"algo": "egreedy-exploit"},
    ],
    ids=["paper", "no recurrence", "departures", "released", "no sampling"],
)
def test_an_agent_learns_with_models_of_another_kind(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "FlatModel", ProductModel)
    monkeypatch.setattr(models, "make_encoder", lambda config, spec: Projection(spec.shape[0], config.standardise))
    plain, fast = (debug_agent(path, torch.float64, kind="vector", **settings) for path in ("plain", "fast"))
    before = parameters(fast)["autoencoder.there.weight"].clone()
    for _ in range(2):
        plain.update(), fast.update()
    for name, tensor in parameters(fast).items():
        assert distance(tensor, parameters(plain)[name]) < 1e-9, name
    assert not torch.equal(parameters(fast)["autoencoder.there.weight"], before)
    observations = np.ones((1, 11), np.float32)
    assert plain.actor.act(observations, 0.0).tolist() == fast.actor.act(observations, 0.0).tolist()
    assert distance(fast.actor.hidden, plain.actor.hidden) < 1e-9
