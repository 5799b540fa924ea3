"""The training loop: lines 4 to 23 of Algorithm 1, for N environments in one or more groups."""

import contextlib
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from psdrl.agents.interface import Actor, Agent
from psdrl.envs.vector import Step, VectorEnv
from psdrl.errors import Diverged, UserError
from psdrl.run.callbacks import Callback, Episode, Listeners, Run
from psdrl.run.checkpoint import Store, save, write_config
from psdrl.run.evaluation import evaluate, never
from psdrl.run.store.files import Damaged
from psdrl.run.store.fitting import check_fit
from psdrl.runtime.device import limited_threads
from psdrl.runtime.profiling import Profile, device_for

SHARE = 0.02  # most of the wall time that checkpoints by the clock may hold up training
REJECTED = 5  # updates in a row that are undone before the run gives up
SENTENCES = 20  # most that are printed of environments' faults; all are counted


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
        self.stepping = False  # actions are chosen, their outcome is not stored
        self.broken = False  # the environments raised
        self.observation = np.zeros((env.num_envs, *env.spec.shape), env.spec.dtype)

    def start(self) -> None:
        """Begin an episode in every environment."""
        self.observation = self.env.reset()
        self.actor.start(np.ones(self.env.num_envs, bool))
        self.agent.begin(self.first, self.observation)

    def choose(self) -> None:
        """Choose actions; until `receive` they are those of a step that has begun."""
        if self.ended.all():  # the step only starts new episodes: nothing to decide
            self.actions = np.zeros(self.env.num_envs, np.int64)
        else:
            self.actions = self.actor.act(self.observation)
        self.stepping = True

    def send(self) -> None:
        """Begin the step."""
        with self._trusted():
            self.env.send(self.actions)

    def receive(self) -> Step:
        """The outcome of the step."""
        with self._trusted():
            return self.env.recv()

    @contextlib.contextmanager
    def _trusted(self) -> Iterator[None]:
        """Environments that raised may have stepped or not: their state is not to be continued."""
        self.broken = True
        yield
        self.broken = False

    def store(self, step: Step) -> list[Episode]:
        """Count and keep the transitions of a step; the games that it ended."""
        self.stepping = False
        self.actor.start(step.started)
        self.observation, self.ended = step.observation, step.terminated | step.truncated
        self.agent.step += int((~step.started).sum())
        self.agent.observe(self.first, self.actions, step)
        anew = self.over | step.failed
        self.score = np.where(anew, 0.0, self.score) + step.reward
        self.length = np.where(anew, 0, self.length) + ~step.started
        self.over = step.over
        whole = np.flatnonzero(step.over)  # of whole games, whatever ends an episode for learning
        return [Episode(self.first + int(i), float(self.score[i]), int(self.length[i])) for i in whole]

    def state_dict(self) -> dict[str, Any]:
        """The running episodes: what loop, actor and environments know of them."""
        return self._own() | {"env": None if self.broken else self.env.state()}

    def _own(self) -> dict[str, Any]:
        return {name: np.copy(getattr(self, name)) for name in self.STATE} | {"actor": self.actor.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Continue what `state_dict` gave, instead of `start`; False: the environments cannot, and start anew."""
        observation = None if state["env"] is None else self.env.restore(state["env"])
        if observation is None or not np.array_equal(observation, state["observation"]):
            self.start()
            return False
        check_fit(self._own(), {name: value for name, value in state.items() if name != "env"})
        for name in self.STATE:
            value = np.array(state[name], copy=True)
            setattr(self, name, value if value.ndim else value.item())
        if not ((self.actions >= 0) & (self.actions < self.env.spec.num_actions)).all():
            raise ValueError("an action was chosen that the environment does not have")
        self.actor.load_state_dict(state["actor"])
        if self.stepping:
            self.send()
        return True


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
        self.warn: Callable[[str], None] = store.warn if store else warnings.warn
        self.turn = 0  # the group whose turn it is
        self.evaluating = False  # an evaluation is due, and not complete
        self.whole = True  # the run can be saved as it is: no step is half stored
        self.rejected = 0  # updates in a row
        self.faults = 0  # episodes discarded because of environments
        self.acting = 0.0  # seconds of acting and waiting for environments since the last report
        self.saved_at = time.monotonic()

    def begin(self, state: dict[str, Any] | None) -> None:
        """Start all environments, or continue what `state` gave."""
        if state is None:
            for group in self.groups:
                group.start()
            return
        try:
            self._continue(state)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError, Damaged) as error:
            raise UserError(f"The running episodes of this checkpoint cannot be used: {error}.") from None

    def _continue(self, state: dict[str, Any]) -> None:
        self.turn, self.faults = int(state["turn"]) % len(self.groups), int(state["faults"])
        self.evaluating, self.rejected = bool(state["evaluating"]), int(state["rejected"])
        lost = 0
        for group, part in zip(self.groups, state["groups"], strict=True):
            if not group.load_state_dict(part):
                lost += group.env.num_envs
        if lost:
            self.warn(
                f"{self.agent.spec.name} cannot be put back to where it was: {lost} running episodes are dropped and "
                "begin anew, so the run goes on otherwise than without the interruption."
            )
            self._fault(lost)

    def state(self) -> dict[str, Any]:
        """What `begin` needs to go on from here."""
        return {
            "groups": [group.state_dict() for group in self.groups],
            "turn": self.turn,
            "faults": self.faults,
            "rejected": self.rejected,
            "evaluating": self.evaluating,
        }

    def play(self) -> None:
        """Interact until config.steps or until `stop()`; an error is raised after the run was saved, if it can be."""
        try:
            self._play()
        except Exception as error:
            self._rescue(error)
            raise

    def _play(self) -> None:
        if self.evaluating:
            self.evaluate()
        while True:
            group = self.groups[self.turn]
            if group.stepping:
                self.finish(group)
            if self.agent.step >= self.config.steps or self.run.stopping or self.stop():
                break
            if self.agent.update_due():
                self.update()
            before = time.perf_counter()
            with self._changing():
                group.choose()
                self.turn = (self.turn + 1) % len(self.groups)
            group.send()
            self.acting += time.perf_counter() - before
        if self.agent.step >= self.config.steps:
            for group in self.groups:
                if group.stepping:  # what was begun is kept
                    self.finish(group)
        self.profile.close()
        self.checkpoint()
        if self.store is not None:
            self.store.wait()
        self.announce()
        for group in self.groups:
            if group.stepping:  # saved as begun; only the environments are to be left in order
                with contextlib.suppress(Exception):
                    group.receive()

    def _rescue(self, error: Exception) -> None:
        """Save what an error has not touched."""
        if self.store is None or not self.whole:
            return
        try:
            self.checkpoint()
            self.store.wait()
        except Exception as second:
            self.warn(f"The run could not be saved after the error: {second}")

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Within, the run is not whole; an error leaves it so."""
        self.whole = False
        yield
        self.whole = True

    def finish(self, group: Group) -> None:
        """Receive and store a step; then what is due at this step."""
        agent, tell = self.agent, self.listeners.tell
        before, old_step = time.perf_counter(), agent.step
        step = group.receive()
        self.acting += time.perf_counter() - before
        with self._changing():
            episodes = group.store(step)
            tell("on_step", group.first, group.actions, step)
            if step.failed.any():
                self._fault(int(step.failed.sum()), group.env.faults())
            for episode in episodes:
                agent.episodes += 1
                tell("on_episode", episode)
            self.evaluating = _crossed(old_step, agent.step, self.config.eval_every)
        self.announce()
        if self.evaluating:
            self.evaluate()
        if _crossed(old_step, agent.step, self.config.checkpoint_every) or self._time_to_save():
            self.checkpoint()

    def _fault(self, episodes: int, sentences: Iterable[str] = ()) -> None:
        """Episodes were discarded; says why, a bounded number of times."""
        for sentence in list(sentences)[: max(0, SENTENCES - self.faults)]:
            self.warn(f"{sentence}.")
        if self.faults < SENTENCES <= self.faults + episodes:
            self.warn("Further faults of environments are counted in the metrics and not printed.")
        self.faults += episodes
        self.listeners.tell("on_fault", self.faults)

    def _time_to_save(self) -> bool:
        """Whether --checkpoint-minutes have passed, or as many as the last save was worth; never waits for one."""
        if self.store is None or not self.config.checkpoint_minutes or self.store.busy:
            return False
        period = max(60 * self.config.checkpoint_minutes, self.store.stall / SHARE)
        return time.monotonic() - self.saved_at >= period

    def update(self) -> None:
        """Lines 5 to 13: learn."""
        number, undo = self.agent.updates, self.agent.undoing()
        self.profile.before(number)
        try:
            metrics = self.agent.update(self.listeners.phase)
        except Diverged as problem:
            self._reject(problem, undo)
            return
        except Exception:  # such as too little memory: saved as it was before
            undo(True)
            raise
        finally:
            self.profile.after(number)
        self.rejected = 0
        if metrics:  # agents that learn at every step report now and then
            metrics = metrics | {"time/acting": self.acting}
            self.acting = 0.0
        self.listeners.tell("on_update", metrics)
        self.listeners.phase("acting")

    def _reject(self, problem: Diverged, undo: Callable[[bool], None]) -> None:
        """Undo an update that met a number that is not finite; after several in a row, stop and say how to see it."""
        self.rejected += 1
        undo(self.rejected >= REJECTED)
        self.listeners.tell("on_rejected", problem.phase, problem.cause)
        self.listeners.phase("acting")
        if self.rejected < REJECTED:
            self.warn(f"The update at step {self.agent.step} is undone: in its phase {problem.phase}, {problem.cause}.")
            return
        self.whole = False  # what was saved before stays
        raise UserError(
            f"Training diverged: {self.rejected} updates in a row were undone, the last because in its phase "
            f"{problem.phase} {problem.cause}; lower the learning rates.{self._diagnosis()}"
        )

    def _diagnosis(self) -> str:
        """Save the run as it was before the update that failed last, beside the run; says how to repeat it."""
        if self.store is None:
            return ""
        folder = self.store.logdir / "diagnosis"
        write_config(folder, replace(self.config, logdir=folder))
        save(folder, self.agent, {"callbacks": {}, "loop": self.state() | {"rejected": REJECTED - 1}})
        return f" Repeat the last one with: psdrl train --logdir {folder} --resume must"

    def evaluate(self) -> None:
        """Evaluation during training, with environment, hidden state and random stream of its own; `stop()` ends it."""
        self.listeners.phase("evaluating")
        stream = 1 + self.agent.step // max(1, self.config.eval_every)  # of the step: the same after a resume
        episodes = self.config.eval_episodes
        returns = evaluate(self.agent, episodes, stream=stream, stop=self.stop, make=self.make_env)
        if len(returns) == episodes:
            self.evaluating = False
            self.listeners.tell("on_evaluation", returns)
        self.listeners.phase("acting")

    def checkpoint(self) -> None:
        """Save the run, if it is written anywhere, with how far its listeners are; it is written while training goes
        on."""
        if self.store is not None:
            self.listeners.phase("saving")
            self.store.wait()
            self.announce()
            self.store.save(self.agent, {"callbacks": self.listeners.state(), "loop": self.state()})
            self.saved_at = time.monotonic()
            self.listeners.phase("acting")

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
    state: dict[str, Any] | None = None,
) -> None:
    """Interact until config.steps or until `stop()`; every environment starts a new episode, or goes on from `state`.

    `store`: where checkpoints go, nowhere by default. `make_env`: one environment for evaluation, by the
    number of its random stream; by default the one that the settings name. `state`: of the loop, from the checkpoint
    to which the agent was restored."""
    run = Run(agent, store.logdir if store else None)
    with limited_threads(agent.config.threads), Listeners(callbacks, run) as listeners:
        loop = Loop(listeners, env, stop, store, make_env)
        try:
            loop.begin(state)
            loop.play()
        finally:
            if store is not None:
                store.wait()  # nothing is written after the run


def _crossed(before: int, after: int, period: int) -> bool:
    return period > 0 and before // period != after // period
