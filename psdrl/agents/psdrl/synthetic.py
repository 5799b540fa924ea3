"""Agents whose buffers hold random episodes: what `psdrl.doctor`, the benchmarks and the tests learn from."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from psdrl.agents import registry
from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.envs.vector import EnvSpec
from psdrl.replay.episodes import Replay

SPECS = {
    "image": EnvSpec("synthetic", "image", (1, 64, 64), "uint8", 6, "none"),
    "vector": EnvSpec("synthetic", "vector", (11,), "float32", 6, "none"),
    "grid": EnvSpec("synthetic", "vector", (24,), "float32", 6, "none", (4, 3, 2)),
}


def atari_spec(actions: int) -> EnvSpec:
    """One grey frame of 64 x 64."""
    return replace(SPECS["image"], num_actions=actions)


def agent_of(config: PsdrlConfig, spec: EnvSpec, dtype: torch.dtype = torch.float32) -> PsdrlAgent:
    """The agent that the configuration names: PSDRL or an ablation of it."""
    kind: Any = registry.entry(config.algo).agent
    return kind(config, spec, dtype)


def observations(replay: Replay, rng: np.random.Generator, count: int) -> NDArray:
    """Random ones of the buffer's shape: bytes, or standard normal numbers."""
    shape = (count, *replay.observations.shape[1:])
    if replay.observations.dtype == torch.uint8:
        return rng.integers(0, 256, shape, dtype=np.uint8)
    return rng.normal(size=shape).astype(np.float32)


def add_episode(
    replay: Replay,
    rng: np.random.Generator,
    length: int,
    terminated: bool = True,
    actions: int = 2,
    env: int = 0,
    pool: NDArray | None = None,
) -> None:
    """A random episode. With a pool its observations are of these and its rewards 0 or 1: transitions repeat."""
    frames = observations(replay, rng, length + 1) if pool is None else pool[rng.integers(len(pool), size=length + 1)]
    replay.start(env, frames[0])
    for t in range(length):
        action = int(rng.integers(actions))
        reward = float(rng.normal() if pool is None else rng.integers(2))
        last = t == length - 1
        replay.add(env, action, reward, frames[t + 1], last and terminated, last and not terminated)


def filled_agent(
    config: PsdrlConfig,
    spec: EnvSpec,
    lengths: Sequence[int],
    dtype: torch.dtype = torch.float32,
    different: int | None = None,
    seed: int = 0,
) -> PsdrlAgent:
    """An agent with episodes of these lengths, of all or a few different observations: the same for every path."""
    agent = agent_of(config, spec, dtype)
    rng = np.random.default_rng(seed)
    pool = observations(agent.replay, np.random.default_rng(seed + 1), different) if different else None
    for number, length in enumerate(lengths):
        env = number % config.num_envs
        add_episode(agent.replay, rng, length, actions=spec.num_actions, env=env, pool=pool)
    return agent


def debug_agent(
    path: str,
    dtype: torch.dtype,
    kind: str = "image",
    actions: int = 3,
    lengths: Sequence[int] = (9, 12, 30, 1),
    different: int | None = None,
    **settings: Any,
) -> PsdrlAgent:
    """A small agent with a few short episodes."""
    config = registry.configure(env="synthetic", preset="debug", update_path=path, device="cpu", **settings)
    return filled_agent(config, replace(SPECS[kind], num_actions=actions), lengths, dtype, different, seed=1)
