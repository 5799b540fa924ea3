"""The training loop: lines 4 to 23 of Algorithm 1, for N environments in one or more groups."""

import time
from collections.abc import Callable, Iterable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from psdrl.agents.interface import Actor, Agent
from psdrl.envs.vector import Step, VectorEnv
from psdrl.run.callbacks import Callback, Episode, Listeners, Run
from psdrl.run.checkpoint import Store
from psdrl.run.evaluation import evaluate, never
from psdrl.runtime.profiling import Profile, device_for


class Group:
    """Environments that are stepped together, from `first` on, and the actor that plays them."""

    STATE = ("score", "length", "actions", "ended", "over", "stepping", "observation")

    def __init__(self, agent: Agent, env: VectorEnv, actor: Actor, first: int) -> None:
        self.agent, self.env, self.actor, self.first = agent, env, actor, first
        self.score = np.zeros(env.num_envs)
        self.length = np.zeros(env.num_envs, np.int64)
        self.actions = np.zeros(env.num_envs, np.int64)
        self.ended = np.zeros(env.num_envs, bool)
        self.over = np.zeros(env.num_envs, bool)
        self.stepping = False
        self.observation = np.zeros((env.num_envs, *env.spec.shape), env.spec.dtype)

    def start(self) -> None:
        """Begin an episode in every environment."""
        self.observation = self.env.reset()
        self.actor.start(np.ones(self.env.num_envs, bool))
        self.agent.begin(self.first, self.observation)

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

    def store(self, step: Step) -> list[Episode]:
        """Count and keep the transitions of a step; the games that it ended."""
        self.agent.step += int((~step.started).sum())
        self.agent.observe(self.first, self.actions, step)
        anew = self.over | step.failed
        self.score = np.where(anew, 0.0, self.score) + step.reward
        self.length = np.where(anew, 0, self.length) + ~step.started
        self.over = step.over
        whole = np.flatnonzero(step.over)  # of whole games, whatever ends an episode for learning
        return [Episode(self.first + int(i), float(self.score[i]), int(self.length[i])) for i in whole]

    def state_dict(self) -> dict[str, Any]:
        """The running episodes, as far as the loop knows them."""
        return {name: np.copy(getattr(self, name)) for name in self.STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave, instead of `start`."""
        for name in self.STATE:
            value = np.array(state[name], copy=True)
            setattr(self, name, value if value.ndim else value.item())


class Loop:
    """The groups of environments take turns: the outcome of a group's last step is received and stored, its next
    actions are chosen and sent. Meanwhile all other groups step. With one group this is the loop of Algorithm 1."""

    def __init__(
        self,
        listeners: Listeners,
        env: VectorEnv,
        stop: Callable[[], bool],
        store: Store | None,
        make_env: Callable[[int], VectorEnv] | None,
    ) -> None:
        self.listeners, self.run, self.agent = listeners, listeners.run, listeners.run.agent
        self.config, self.stop, self.store, self.make_env = self.agent.config, stop, store, make_env
        size = env.num_envs // len(env.groups)
        pairs = zip(env.groups, self.agent.actors, strict=True)
        self.groups = [Group(self.agent, part, actor, g * size) for g, (part, actor) in enumerate(pairs)]
        trace = (self.run.logdir or Path()) / f"trace-{(self.config.profile or '').replace(':', '-')}.json"
        self.profile = Profile(self.config.profiled, device_for(self.agent.device, trace))
        self.told = store.saved if store else None  # the last checkpoint that the listeners know of
        self.faults = 0  # of environments
        self.acting = 0.0  # seconds of acting and waiting for environments since the last report

    def play(self) -> None:
        """Interact until config.steps or until `stop()`."""
        for group in cycle(self.groups):
            if group.stepping:
                self.finish(group)
            if self.agent.step >= self.config.steps or self.run.stopping or self.stop():
                break
            if self.agent.update_due():
                self.update()
            before = time.perf_counter()
            group.act()
            self.acting += time.perf_counter() - before
        for group in self.groups:
            if group.stepping:  # what was begun is kept
                self.finish(group)
        self.profile.close()
        self.checkpoint()
        if self.store is not None:
            self.store.wait()
        self.announce()

    def finish(self, group: Group) -> None:
        """Receive and store a step; then what is due at this step."""
        agent, tell = self.agent, self.listeners.tell
        before, old_step = time.perf_counter(), agent.step
        step = group.receive()
        self.acting += time.perf_counter() - before
        episodes = group.store(step)
        tell("on_step", group.first, group.actions, step)
        if step.failed.any():
            self.faults += int(step.failed.sum())
            tell("on_fault", self.faults)
        for episode in episodes:
            agent.episodes += 1
            tell("on_episode", episode)
        self.announce()
        if _crossed(old_step, agent.step, self.config.eval_every):
            self.evaluate()
        if _crossed(old_step, agent.step, self.config.checkpoint_every):
            self.checkpoint()

    def update(self) -> None:
        """Lines 5 to 13: learn."""
        self.profile.before(self.agent.updates)
        metrics = self.agent.update(self.listeners.phase)
        self.profile.after(self.agent.updates - 1)
        if metrics:  # agents that learn at every step report now and then
            metrics = metrics | {"time/acting": self.acting}
            self.acting = 0.0
        self.listeners.tell("on_update", metrics)
        self.listeners.phase("acting")

    def evaluate(self) -> None:
        """Evaluation during training, with environment, hidden state and random stream of its own; `stop()` ends it."""
        self.listeners.phase("evaluating")
        stream = 1 + self.agent.step // max(1, self.config.eval_every)  # of the step: the same after a resume
        episodes = self.config.eval_episodes
        returns = evaluate(self.agent, episodes, stream=stream, stop=self.stop, make=self.make_env)
        if len(returns) == episodes:
            self.listeners.tell("on_evaluation", returns)
        self.listeners.phase("acting")

    def checkpoint(self) -> None:
        """Save the run, if it is written anywhere, with how far its listeners are; it is written while training goes
        on."""
        if self.store is not None:
            self.listeners.phase("saving")
            self.store.wait()
            self.announce()
            self.store.save(self.agent, {"callbacks": self.listeners.state()})

    def announce(self) -> None:
        """Tell of a checkpoint that is complete."""
        if self.store is not None and self.store.saved is not self.told and self.store.saved is not None:
            self.told = self.store.saved
            self.listeners.tell("on_checkpoint", self.told.path)


def train(
    agent: Agent,
    env: VectorEnv,
    callbacks: Callback | Iterable[Callback] = (),
    stop: Callable[[], bool] = never,
    store: Store | None = None,
    make_env: Callable[[int], VectorEnv] | None = None,
) -> None:
    """Interact until config.steps or until `stop()`; every environment starts a new episode.

    `store`: where checkpoints go, nowhere by default. `make_env`: one environment for evaluation, by the
    number of its random stream; by default the one that the settings name."""
    with Listeners(callbacks, Run(agent, store.logdir if store else None)) as listeners:
        loop = Loop(listeners, env, stop, store, make_env)
        for group in loop.groups:
            group.start()
        try:
            loop.play()
        finally:
            if store is not None:
                store.wait()  # nothing is written after the run


def _crossed(before: int, after: int, period: int) -> bool:
    return period > 0 and before // period != after // period
