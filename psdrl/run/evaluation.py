"""Play trained agents: `psdrl evaluate RUN --episodes 10 --policy mean --video out.mp4`."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psdrl.agents.interface import Agent
from psdrl.agents.registry import entry, make_agent
from psdrl.config import Config
from psdrl.envs import VectorEnv, make_env
from psdrl.envs.vector import EnvSpec
from psdrl.errors import UserError
from psdrl.run.checkpoint import newest, read_config, restore
from psdrl.run.spec import read_spec

PYTHON = "python:"  # names of environments that were given as objects begin so
MAX_STEPS = 27_000  # of an episode in an environment that may never end it: the cap of Atari's protocol
Frame = Callable[[NDArray[np.uint8]], None]


class Episode(NamedTuple):
    """What was played."""

    score: float
    length: int
    cut: bool  # by the evaluation, not by the environment


def never() -> bool:
    """Nobody asks to stop."""
    return False


def evaluate(
    agent: Agent,
    episodes: int = 10,
    stream: int = 10_000,
    on_frame: Frame | None = None,
    policy: str | None = None,
    stop: Callable[[], bool] = never,
    max_steps: int = MAX_STEPS,
    make: Callable[[int], VectorEnv] | None = None,
) -> list[float]:
    """Returns of `episodes` episodes, see `play`; fewer if `stop()` ended the evaluation."""
    return [episode.score for episode in play(agent, episodes, stream, on_frame, policy, stop, max_steps, make)]


def play(
    agent: Agent,
    episodes: int = 10,
    stream: int = 10_000,
    on_frame: Frame | None = None,
    policy: str | None = None,
    stop: Callable[[], bool] = never,
    max_steps: int = MAX_STEPS,
    make: Callable[[int], VectorEnv] | None = None,
) -> Iterator[Episode]:
    """Episodes of this policy, the agent's default if none is named, with the noise of training.

    The environment, hidden state and random stream are its own: training goes on as if nothing had happened. An episode
    is cut after `max_steps` steps (0: never), and what is left is abandoned when `stop()` says so. `make` gives an
    environment for a stream, by default the one that the settings name.
    """
    make = make or by_name(agent, on_frame is not None)
    env = make(stream)
    try:
        actor = agent.player(stream, policy)
        observation = env.reset()
        score, length, played = 0.0, 0, 0
        while not stop():
            if on_frame:
                on_frame(env.render())
            step = env.step(actor.act(observation))
            if step.failed[0]:  # the episode is discarded, another has begun
                score, length, observation = 0.0, 0, step.observation
                actor.start(step.failed)
                continue
            score, length, observation = score + float(step.reward[0]), length + 1, step.observation
            ended = bool(step.terminated[0] or step.truncated[0])
            if not ended and length != max_steps:
                continue
            yield Episode(score, length, not ended)
            score, length, played = 0.0, 0, played + 1
            if played == episodes:
                return
            if ended:
                observation = env.step(np.zeros(1, np.int64)).observation  # starts the next episode
            else:  # a reset would repeat the seed: another environment, with seeds of its own
                env.close()
                env = make(stream + 1_000_000 * played)
                observation = env.reset()
            actor.start(np.ones(1, bool))
    finally:
        env.close()


def by_name(agent: Agent, render: bool = False) -> Callable[[int], VectorEnv]:
    """Makes the environment of a stream; raises UserError if the run's was an object that has no name."""
    if (agent.config.env or "").startswith(PYTHON):
        raise UserError(
            f"{agent.config.env} was an object in Python and has no name to make it by: "
            "play it from Python, with psdrl.load(run).evaluate(env=...)."
        )
    return lambda stream: make_env(agent.config, num_envs=1, stream=stream, render=render)


def load(run: Path, device: str = "auto", replay: bool = False) -> Any:
    """The agent of a run, as its last checkpoint has it."""
    return restored(run, device, replay).agent


class Restored(NamedTuple):
    """An agent, where it comes from, and what is known there of its run; nothing without the replay buffer."""

    agent: Any
    checkpoint: Path
    extra: dict[str, Any]


def restored(run: Path, device: str = "auto", replay: bool = False) -> Restored:
    """The agent of a run, as its last checkpoint has it, with the rest of the checkpoint."""
    config = replace(read_config(run), device=device)
    checkpoint = newest(run, replay).newest
    if checkpoint is None:
        raise UserError(f"{run} has no checkpoint yet: train on, or wait for one (--checkpoint-every).")
    spec = read_spec(run)
    if spec is None:
        env = make_env(config, num_envs=1)
        env.close()
        spec = env.spec
    try:
        _refuse_what_is_too_large(run, config, spec)
        agent = make_agent(config, spec)
    except (RuntimeError, MemoryError, OverflowError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UserError(f"The agent of {run} cannot be made here: {reason}") from None
    return Restored(agent, checkpoint, restore(checkpoint, agent, replay=replay))


def _refuse_what_is_too_large(run: Path, config: Config, spec: EnvSpec) -> None:
    """Settings of a stranger may ask for any size: refused before memory is taken, if the agent describes its work."""
    work = entry(config.algo).agent.workload(config, spec)
    if work is None:
        return
    needed = sum(size for name, size in work.memory().items() if name in ("replay", "networks", "posterior"))
    here = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > here:
        raise UserError(f"The agent of {run} needs {needed / 1e9:.3g} GB and this machine has {here / 1e9:.3g} GB.")
