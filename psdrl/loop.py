"""The training loop: lines 4 to 23 of Algorithm 1, for N environments."""

import time
from collections.abc import Callable

import numpy as np

from psdrl.agent import Agent
from psdrl.checkpoint import save
from psdrl.envs.vector import VectorEnv
from psdrl.log import Log, NoLog


def train(agent: Agent, env: VectorEnv, log: Log | None = None, stop: Callable[[], bool] = lambda: False) -> None:
    """Interact until config.steps or until `stop()`; every environment starts a new episode."""
    config, log = agent.config, log or NoLog()
    score = np.zeros(env.num_envs)
    length = np.zeros(env.num_envs, np.int64)
    acting = 0.0
    observation = env.reset()
    agent.actor.start(np.ones(env.num_envs, bool))
    for i in range(env.num_envs):
        agent.replay.start(i, observation[i])
    ended = np.zeros(env.num_envs, bool)
    while agent.step < config.steps and not stop():
        if agent.update_due():
            metrics = agent.update(log.phase)
            metrics |= {"time/acting": acting, "train/sequence_length": float(sequence_length(agent))}
            acting = 0.0
            log.scalars(agent.step, metrics)
            log.phase("acting")
        before = time.perf_counter()
        if ended.all():  # the step only starts new episodes: nothing to decide
            actions = np.zeros(env.num_envs, np.int64)
        else:
            actions = agent.actor.act(observation, config.epsilon(agent.step))
        step = env.step(actions)
        acting += time.perf_counter() - before
        agent.actor.start(step.started)
        rewards = agent.transform(step.reward)
        cut_is_end = config.replay.time_limit_terminates
        old_step = agent.step
        agent.step += int((~step.started).sum())
        for i in range(env.num_envs):
            if step.started[i]:
                agent.replay.start(i, step.observation[i])
                score[i] = length[i] = 0
                continue
            terminated = bool(step.terminated[i] or (cut_is_end and step.truncated[i]))
            agent.replay.add(
                i, int(actions[i]), float(rewards[i]), step.observation[i], terminated, bool(step.truncated[i])
            )
            score[i] += step.reward[i]
            length[i] += 1
            if step.terminated[i] or step.truncated[i]:
                agent.episodes += 1
                log.scalars(agent.step, {"train/return": float(score[i]), "train/length": float(length[i])})
        observation, ended = step.observation, step.terminated | step.truncated
        log.progress(agent.step)
        if _crossed(old_step, agent.step, config.eval_every):
            evaluate_now(agent, log)
        if _crossed(old_step, agent.step, config.checkpoint_every):
            checkpoint(agent, log)
    checkpoint(agent, log)


def sequence_length(agent: Agent) -> int:
    """L as the buffer allows it now."""
    return agent.replay.sequence_length(agent.config.replay.length)


def evaluate_now(agent: Agent, log: Log) -> None:
    """Evaluation during training, on an environment, hidden state and random stream of its own."""
    log.phase("evaluating")
    stream = 1 + agent.step // max(1, agent.config.eval_every)  # a function of the step: the same after a resume
    returns = agent.evaluate(agent.config.eval_episodes, stream=stream)
    log.scalars(agent.step, {"eval/return": float(np.mean(returns))})
    log.phase("acting")


def checkpoint(agent: Agent, log: Log) -> None:
    """Save the run, if it is written anywhere."""
    if log.logdir is not None:
        log.phase("saving")
        save(log.logdir, agent)
        log.flush()


def _crossed(before: int, after: int, period: int) -> bool:
    return period > 0 and before // period != after // period
