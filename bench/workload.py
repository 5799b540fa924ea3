"""Synthetic runs at a preset's sizes: an agent whose buffer holds random frames, for timing and parity."""

from dataclasses import replace

import torch

from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.agents.psdrl.synthetic import atari_spec, filled_agent
from psdrl.agents.registry import configure

EPISODE = 500  # steps per synthetic episode


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
    whole, rest = divmod(transitions, EPISODE)
    return filled_agent(config, atari_spec(actions), [EPISODE] * whole + [rest] * (rest > 0), dtype)


def shortened(config: PsdrlConfig, batch: int | None = None, length: int | None = None) -> PsdrlConfig:
    """The same networks on fewer sequences or steps: one iteration of every phase, for timing a unit of it."""
    return replace(
        config,
        replay=replace(config.replay, batch=batch or config.replay.batch, length=length or config.replay.length),
        autoencoder=replace(config.autoencoder, iterations=1),
        forward=replace(config.forward, iterations=1),
        value=replace(config.value, iterations=1),
    )
