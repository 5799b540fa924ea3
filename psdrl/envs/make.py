"""From a configuration, or a user's own environments, to a vector of them."""

from dataclasses import replace

import numpy as np

from psdrl.config import Config
from psdrl.envs.registry import family
from psdrl.envs.vector import GroupedEnv, VectorEnv


def env_seeds(seed: int, stream: int, count: int) -> list[int]:
    """Independent 31-bit seeds, one per environment; `stream` tells training from evaluation."""
    return [int(s) >> 1 for s in np.random.SeedSequence([seed, stream]).generate_state(count)]


def make_env(config: Config, num_envs: int | None = None, stream: int = 0, render: bool = False) -> VectorEnv:
    """The environments of a run; stream 0 trains, stream 1 evaluates during training, others are free.

    With `num_envs` these many, else those of the configuration, in its groups. Only in training is a lost life the end
    of an episode (--atari.life-loss).
    """
    if stream and config.atari.life_loss:
        config = replace(config, atari=replace(config.atari, life_loss=False))
    count = num_envs or config.num_envs
    size = count if num_envs else count // config.env_groups
    seeds, make = env_seeds(config.seed, stream, count), family(config).make
    groups = [make(config, seeds[first : first + size], render) for first in range(0, count, size)]
    return GroupedEnv(groups) if len(groups) > 1 else groups[0]
