"""PSDRL learns: DeepSea-8 is solved in under a minute, which no untrained agent comes near."""

import numpy as np

import psdrl
from psdrl.agent import Agent
from psdrl.envs import make_env
from psdrl.loop import train
from tests.helpers import ListLog


def untrained_returns(seed: int, episodes: int) -> list[float]:
    """Greedy episodes of an agent that draws a new model from the prior for each, and never learns."""
    config = psdrl.configure(env="deepsea-8", device="cpu", seed=seed)
    env = make_env(config)
    agent = Agent(config, env.spec)
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
    agent, log = Agent(config, env.spec), ListLog()
    train(agent, env, log)
    env.close()
    returns = log.values_of("train/return")
    assert len(returns) == 130
    learned = np.mean(returns[-20:])
    untrained = [np.mean(untrained_returns(seed, 20)) for seed in range(100, 108)]
    assert max(untrained) < 0.3, f"untrained agents reach {np.round(untrained, 2)}"
    assert learned > 0.7, f"only {learned:.2f}; returns {np.round(returns[-20:], 2)}"
