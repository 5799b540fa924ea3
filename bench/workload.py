"""Synthetic runs at a preset's sizes: an agent whose buffer holds random frames, for timing and parity."""

from dataclasses import replace

import numpy as np
import torch

from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.agents.registry import configure
from psdrl.envs.vector import EnvSpec

EPISODE = 500  # steps per synthetic episode


def spec_for(actions: int) -> EnvSpec:
    """An Atari-like environment."""
    return EnvSpec("synthetic", "image", (1, 64, 64), "uint8", actions, "none")


def make_agent(
    preset: str,
    actions: int,
    transitions: int,
    path: str = "fast",
    dtype: torch.dtype = torch.float32,
    **settings: object,
) -> PsdrlAgent:
    """An agent of this preset with `transitions` random transitions in its buffer; equal seeds, equal agents."""
    config = configure(game="Pong", preset=preset, device="cpu", update_path=path, **settings)
    capacity = max(transitions, EPISODE)
    config = replace(config, replay=replace(config.replay, capacity=capacity))
    agent = PsdrlAgent(config, spec_for(actions), dtype)
    rng = np.random.default_rng(0)
    left = transitions
    while left > 0:
        length = min(left, EPISODE)
        frames = rng.integers(0, 256, (length + 1, 1, 64, 64), dtype=np.uint8)
        agent.replay.start(0, frames[0])
        for t in range(length):
            action, reward = int(rng.integers(actions)), float(rng.normal())
            agent.replay.add(0, action, reward, frames[t + 1], t == length - 1, False)
        left -= length
    return agent


def shortened(config: PsdrlConfig, batch: int | None = None, length: int | None = None) -> PsdrlConfig:
    """The same networks on fewer sequences or steps: one iteration of every phase, for timing a unit of it."""
    return replace(
        config,
        replay=replace(config.replay, batch=batch or config.replay.batch, length=length or config.replay.length),
        autoencoder=replace(config.autoencoder, iterations=1),
        forward=replace(config.forward, iterations=1),
        value=replace(config.value, iterations=1),
    )
