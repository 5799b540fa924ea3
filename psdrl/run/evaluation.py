"""Play trained agents: `psdrl evaluate RUN --episodes 10 --policy mean --video out.mp4`."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psdrl.agents.interface import Agent
from psdrl.agents.registry import make_agent
from psdrl.envs import make_env
from psdrl.errors import UserError
from psdrl.run.checkpoint import latest, read_config, restore

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
) -> list[float]:
    """Returns of `episodes` episodes, see `play`; fewer if `stop()` ended the evaluation."""
    return [episode.score for episode in play(agent, episodes, stream, on_frame, policy, stop, max_steps)]


def play(
    agent: Agent,
    episodes: int = 10,
    stream: int = 10_000,
    on_frame: Frame | None = None,
    policy: str | None = None,
    stop: Callable[[], bool] = never,
    max_steps: int = MAX_STEPS,
) -> Iterator[Episode]:
    """Episodes of this policy, the agent's default if none is named, with the noise of training.

    The environment, hidden state and random stream are its own: training goes on as if nothing had happened. An episode
    is cut after `max_steps` steps (0: never), and what is left is abandoned when `stop()` says so.
    """
    env = make_env(agent.config, num_envs=1, stream=stream, render=on_frame is not None)
    try:
        actor = agent.player(stream, policy)
        observation = env.reset()
        score, length, played = 0.0, 0, 0
        while not stop():
            if on_frame:
                on_frame(env.render())
            step = env.step(actor.act(observation))
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
                env = make_env(
                    agent.config, num_envs=1, stream=stream + 1_000_000 * played, render=on_frame is not None
                )
                observation = env.reset()
            actor.start(np.ones(1, bool))
    finally:
        env.close()


def load(run: Path, device: str = "auto", replay: bool = False) -> Any:
    """The agent of a run, as its last checkpoint has it."""
    config = replace(read_config(run), device=device)
    checkpoint = latest(run)
    if checkpoint is None:
        raise UserError(f"{run} has no checkpoint yet: train on, or wait for one (--checkpoint-every).")
    env = make_env(config, num_envs=1)
    env.close()
    agent = make_agent(config, env.spec)
    restore(checkpoint, agent, replay=replay)
    return agent
