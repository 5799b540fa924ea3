"""The training loop: lines 4 to 23 of Algorithm 1, for N environments in one or more groups."""

import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import numpy as np

from psdrl.agents.interface import Actor, Agent
from psdrl.envs.vector import Step, VectorEnv
from psdrl.run.checkpoint import save
from psdrl.run.evaluation import evaluate, never
from psdrl.run.log import Log, NoLog
from psdrl.runtime.profiling import Profile, device_for


class Group:
    """Environments that are stepped together, from `first` on, and the actor that plays them."""

    def __init__(self, agent: Agent, env: VectorEnv, actor: Actor, first: int) -> None:
        self.agent, self.env, self.actor, self.first = agent, env, actor, first
        self.score = np.zeros(env.num_envs)
        self.length = np.zeros(env.num_envs, np.int64)
        self.actions = np.zeros(env.num_envs, np.int64)
        self.ended = np.zeros(env.num_envs, bool)
        self.stepping = False
        self.observation = env.reset()
        actor.start(np.ones(env.num_envs, bool))
        agent.begin(first, self.observation)

    def act(self) -> None:
        """Choose actions and begin the step."""
        if self.ended.all():  # the step only starts new episodes: nothing to decide
            self.actions = np.zeros(self.env.num_envs, np.int64)
        else:
            self.actions = self.actor.act(self.observation)
        self.env.send(self.actions)
        self.stepping = True

    def receive(self) -> Step:
        """The outcome of the step."""
        step = self.env.recv()
        self.stepping = False
        self.actor.start(step.started)
        self.observation, self.ended = step.observation, step.terminated | step.truncated
        return step

    def store(self, step: Step, log: Log) -> None:
        """Count and keep the transitions of a step."""
        agent = self.agent
        agent.step += int((~step.started).sum())
        agent.observe(self.first, self.actions, step)
        self.score = np.where(step.started, 0.0, self.score + step.reward)
        self.length = np.where(step.started, 0, self.length + 1)
        for i in np.flatnonzero(self.ended):
            agent.episodes += 1
            log.scalars(agent.step, {"train/return": float(self.score[i]), "train/length": float(self.length[i])})


def train(agent: Agent, env: VectorEnv, log: Log | None = None, stop: Callable[[], bool] = never) -> None:
    """Interact until config.steps or until `stop()`; every environment starts a new episode.

    The groups of environments take turns: the outcome of a group's last step is received and stored, its next actions
    are chosen and sent. Meanwhile all other groups step. With one group this is the loop of Algorithm 1.
    """
    config, log = agent.config, log or NoLog()
    trace = (log.logdir or Path()) / f"trace-{(config.profile or '').replace(':', '-')}.json"
    profile = Profile(config.profiled, device_for(agent.device, trace))
    size = env.num_envs // len(env.groups)
    pairs = zip(env.groups, agent.actors, strict=True)
    groups = [Group(agent, part, actor, g * size) for g, (part, actor) in enumerate(pairs)]
    acting = 0.0
    for group in cycle(groups):
        if group.stepping:
            acting += _finish(group, log, stop)
        if agent.step >= config.steps or stop():
            break
        if agent.update_due():
            profile.before(agent.updates)
            metrics = agent.update(log.phase)
            profile.after(agent.updates - 1)
            if metrics:  # agents that learn at every step report now and then
                log.scalars(agent.step, metrics | {"time/acting": acting})
                acting = 0.0
            log.phase("acting")
        before = time.perf_counter()
        group.act()
        acting += time.perf_counter() - before
    for group in groups:
        if group.stepping:  # what was begun is kept
            _finish(group, log, stop)
    profile.close()
    checkpoint(agent, log)


def _finish(group: Group, log: Log, stop: Callable[[], bool]) -> float:
    """Receive and store a step, evaluate and save if that is due; returns the seconds waited for the environments."""
    agent, config = group.agent, group.agent.config
    before = time.perf_counter()
    step = group.receive()
    waited = time.perf_counter() - before
    old_step = agent.step
    group.store(step, log)
    log.progress(agent.step)
    if _crossed(old_step, agent.step, config.eval_every):
        evaluate_now(agent, log, stop)
    if _crossed(old_step, agent.step, config.checkpoint_every):
        checkpoint(agent, log)
    return waited


def evaluate_now(agent: Agent, log: Log, stop: Callable[[], bool] = never) -> None:
    """Evaluation during training, on an environment, hidden state and random stream of its own; `stop()` ends it."""
    log.phase("evaluating")
    stream = 1 + agent.step // max(1, agent.config.eval_every)  # a function of the step: the same after a resume
    returns = evaluate(agent, agent.config.eval_episodes, stream=stream, stop=stop)
    if len(returns) == agent.config.eval_episodes:
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
