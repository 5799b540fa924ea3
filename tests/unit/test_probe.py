"""psdrl.experiments.probe: what it asks of an agent's models, with models whose answers are known."""

import pytest
import torch

from psdrl.experiments.probe import probe, returns_after
from tests.helpers import filled_replay, small_agent, vector_spec


def test_discounted_returns():
    assert returns_after(torch.tensor([1.0, 0.0, 2.0]), 0.5).tolist() == [1.5, 1.0, 2.0]


@pytest.mark.parametrize("estimate", [0.0, 1.0], ids=["sees no end", "sees ends everywhere"])
def test_constant_models(estimate):
    """Termination estimates, values and rewards that are the same everywhere."""
    agent = small_agent(vector_spec(3, 2))
    agent.replay = filled_replay([4, 7, 5])  # the second is cut by a time limit
    models, model = agent.models, agent.model
    with torch.no_grad():
        for net, constant in ((models.termination, estimate), (models.value.networks()[0], 2.0)):
            net.layers[-1].weight.zero_()
            net.layers[-1].bias.fill_(constant)
        model.weight.zero_()
        model.bias.zero_()
        model.bias[-1] = 0.25
    found = probe(agent)
    assert found.ends == 2
    assert found.ends_found == found.false_ends == found.ends_foreseen == found.false_foreseen == estimate
    assert found.reward_there == pytest.approx(0.25)
    assert found.value == pytest.approx(2.0)
    assert found.gap == pytest.approx(0.0, abs=1e-6)
    rewards = [agent.replay.rewards[start : start + length] for start, length in agent.replay.episodes]
    expected = torch.cat([returns_after(r, agent.config.value.discount) for r in rewards]).mean()
    assert found.following == pytest.approx(float(expected), rel=1e-5)


def test_what_is_foreseen_is_asked_of_predictions():
    """The model predicts z = 100 everywhere, and ends are where z exceeds 50: at no stored state."""
    agent = small_agent(vector_spec(3, 2))
    agent.replay = filled_replay([4, 7, 5])
    with torch.no_grad():
        for layer in agent.models.termination.linear_layers():
            layer.weight.zero_()
            layer.weight[0, 0] = 1
            layer.bias.zero_()
        agent.models.termination.linear_layers()[0].bias[0] = -50
        agent.models.termination.linear_layers()[-1].bias.fill_(0.5)
        agent.model.weight.zero_()
        agent.model.bias.fill_(100.0)
    found = probe(agent)
    assert (found.ends_found, found.false_ends) == (0, 0)
    assert (found.ends_foreseen, found.false_foreseen) == (1, 1)
