"""Episodes that a trained agent plays to be looked at."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psdrl.agents.interface import Agent
from psdrl.envs import make_env
from psdrl.run.evaluation import by_name


class Recording(NamedTuple):
    """An episode, or its beginning: observations s_0 ... s_T, actions and rewards of its T steps."""

    observations: NDArray  # (T + 1, ...)
    actions: NDArray[np.int64]  # (T,)
    rewards: NDArray[np.float64]  # (T,) as the environment gave them
    labels: list[dict[str, float]]  # (T + 1) numbers of the true state, none where the environment does not tell


def record(agent: Agent, stream: int, max_steps: int, **changes: Any) -> Recording:
    """One episode of the agent's default policy, cut after `max_steps`; `changes` of its settings, as for another
    backend. Environment and random stream are its own."""
    by_name(agent)
    env = make_env(replace(agent.config, **changes), num_envs=1, stream=stream)
    try:
        observation, actor = env.reset(), agent.player(stream)
        observations, labels, ended = [observation[0].copy()], [env.labels()], False
        actions: list[int] = []
        rewards: list[float] = []
        while not ended and len(actions) < max_steps:
            action = actor.act(observation)
            step = env.step(action)
            observation, ended = step.observation, bool(step.terminated[0] or step.truncated[0] or step.failed[0])
            if step.failed[0]:  # what it shows is of another episode
                break
            actions.append(int(action[0]))
            rewards.append(float(step.reward[0]))
            observations.append(observation[0].copy())
            labels.append(env.labels())
        return Recording(np.stack(observations), np.array(actions, np.int64), np.array(rewards), labels)
    finally:
        env.close()
