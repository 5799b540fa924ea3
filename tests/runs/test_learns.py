"""PSDRL learns: DeepSea-8 is solved in under a minute, which no untrained agent comes near."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import psdrl
from psdrl.agents.psdrl import presets
from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.agents.psdrl.models import Models
from psdrl.cli import parse_train
from psdrl.envs import make_env
from psdrl.experiments import learn
from psdrl.run.loop import train
from tests.helpers import ListLog


def untrained_returns(seed: int, episodes: int) -> list[float]:
    """Greedy episodes of an agent that draws a new model from the prior for each, and never learns."""
    config = psdrl.configure(env="deepsea-8", device="cpu", seed=seed)
    env = make_env(config)
    agent = PsdrlAgent(config, env.spec)
    scores: list[float] = []
    score = 0.0
    observation = env.reset()
    while len(scores) < episodes:
        step = env.step(agent.actor.act(observation, config.epsilon(0)))
        agent.actor.start(step.started)
        observation = step.observation
        score += float(step.reward[0])
        if step.started[0]:
            agent.model = agent.draw()
            score = 0.0
        if step.terminated[0]:
            scores.append(score)
    env.close()
    return scores


def test_deepsea_is_learned() -> None:
    """Treasure in most of the last 20 episodes; reaching it once by chance takes 8 right actions of 8: 1 in 256."""
    config = psdrl.configure(env="deepsea-8", device="cpu", seed=0, steps=1040, eval_every=0, checkpoint_every=0)
    assert config.preset == "deepsea"
    env = make_env(config)
    agent, log = PsdrlAgent(config, env.spec), ListLog()
    train(agent, env, log)
    env.close()
    returns = log.values_of("train/return")
    assert len(returns) == 130
    learned = np.mean(returns[-20:])
    untrained = [np.mean(untrained_returns(seed, 20)) for seed in range(100, 108)]
    assert max(untrained) < 0.3, f"untrained agents reach {np.round(untrained, 2)}"
    assert learned > 0.7, f"only {learned:.2f}; returns {np.round(returns[-20:], 2)}"


def deviation_at_untried(size: int) -> float:
    """Every cell of DeepSea-N was seen, with one of its actions: how unsure is the reward of the other one?"""
    config = psdrl.configure(env=f"deepsea-{size}", device="cpu")
    torch.manual_seed(0)
    model = Models(config, make_env(config).spec).forward_model.double()
    cells = torch.tensor([row * size + column for row in range(size) for column in range(row + 1)])
    z = (cells[:, None] == torch.arange(size * size)).double()
    tried = torch.arange(len(cells)) % 2

    def features(actions: Tensor) -> Tensor:
        hidden = z.new_zeros(len(z), config.forward.hidden)
        return model.features(model.next_hidden(z, actions, hidden), z, actions).detach()

    seen, untried = features(tried), features(1 - tried)
    prior = torch.eye(config.forward.units, dtype=z.dtype) / config.posterior.prior[-1]
    covariance = torch.linalg.inv(seen.T @ seen / config.posterior.noise[-1] + prior)
    return float(((untried @ covariance) * untried).sum(1).sqrt().median())


@pytest.mark.parametrize("size", [14, 20, 30])
def test_untried_actions_stay_unknown_as_deepsea_grows(size: int) -> None:
    """A gain that does not go with N halves it twice by N = 30: what is known elsewhere then speaks for what is not."""
    assert deviation_at_untried(size) == pytest.approx(deviation_at_untried(10), rel=0.5)


def test_the_whole_state_is_what_small_problems_share():
    arguments = ["--env", "minatar/asterix", *learn.FLAGS]
    found, preset = (parse_train([*arguments, *more])[0] for more in (learn.WHOLE_STATE, []))
    shared = presets._small(type(found)(env=found.env, preset=found.preset, device=found.device))
    kept = {name: getattr(found, name) for name in ("eval_every", "checkpoint_every")}
    assert found == replace(shared, **kept)
    assert found != preset
