"""Presets of SU: settings to start from. `paper` is the paper's baseline; every other preset lists its departures."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from psdrl.agents.successor.settings import (
    ExplorationConfig,
    LearningConfig,
    NetworkConfig,
    PosteriorConfig,
    SuccessorConfig,
)
from psdrl.agents.transitions import FrameReplayConfig
from psdrl.envs.deepsea import deepsea_size


def _paper(base: SuccessorConfig) -> SuccessorConfig:
    """The defaults of `psdrl.agents.successor.settings`, on frames of 84 x 84. [released]"""
    return replace(base, atari=replace(base.atari, size=84))


def _cpu(base: SuccessorConfig) -> SuccessorConfig:
    """Atari on two CPU cores, of a size that finishes; its scores are not measured. [ours]"""
    return replace(
        base,  # frames of 64 x 64
        precision="fp32",
        network=NetworkConfig(channels=(16, 32), kernels=(8, 4), strides=(4, 2), torso=(256,)),
        # half as many gradient steps on half as many transitions, so larger ones; targets follow sooner
        learning=LearningConfig(every=4, batch=32, learning_rate=2.5e-4, target_every=2_000),
        replay=FrameReplayConfig(capacity=100_000),  # 0.4 GB
        exploration=ExplorationConfig(random_steps=5_000),  # a CPU's run may have 100,000 steps in all
    )


def _control(base: SuccessorConfig) -> SuccessorConfig:
    """Control problems with a few real observations. [ours]"""
    return replace(
        base,
        precision="fp32",
        network=NetworkConfig(torso=(128, 128)),
        # Those of B+P's preset. CartPole after 50,000 steps: 485, 302, 321. With copies every 100 steps and a rate of
        # 3e-4 values grew without bound (seed 100).
        learning=LearningConfig(batch=128, learning_rate=1e-3, target_every=250),
        posterior=PosteriorConfig(beta=0.1, action_noise=False),
        replay=FrameReplayConfig(capacity=50_000, stack=1),  # an observation has the velocities
        exploration=ExplorationConfig(random_steps=1_000),
        reward_transform="none",  # rewards are small, and their sizes matter
        eval_every=2_000,
        steps=50_000,
    )


def _minatar(base: SuccessorConfig) -> SuccessorConfig:
    """MinAtar, with the sizes of its authors' DQN where they fit; its scores are not measured. [ours]"""
    return replace(
        _control(base),
        network=NetworkConfig(torso=(128,)),
        learning=LearningConfig(batch=32, learning_rate=2.5e-4, target_every=1_000),
        replay=FrameReplayConfig(capacity=100_000, stack=1),  # planes show where things come from
        exploration=ExplorationConfig(random_steps=5_000),
        eval_every=10_000,
        steps=300_000,
    )


def _deepsea(base: SuccessorConfig) -> SuccessorConfig:
    """DeepSea: only draws explore, from the first step on, one per episode. The eighth of eight trials on seeds 100 and
    101 (docs/baselines.md). [ours]"""
    size = deepsea_size(base.env) or 10
    return replace(
        _control(base),
        # Twice as many features as there are cells and actions: with as many, 1 of 3 ideal agents (exact psi) failed.
        network=NetworkConfig(features=4 * size**2, torso=(), fixed_phi=True, residual=True, initial_w=0.0),
        learning=LearningConfig(every=1, learning_rate=2e-3, target_every=2 * size),
        # Rewards have no noise: one visit tells nearly all (prior deviation 0.3; the treasure is worth 1).
        posterior=PosteriorConfig(beta=0.03, ridge=0.01, action_noise=False),
        replay=FrameReplayConfig(capacity=1_000 * size, stack=1),  # all episodes of a run
        exploration=ExplorationConfig(random_steps=0, draw_every=size),
        eval_every=100 * size,
        steps=1_000 * size,
    )


def _debug(base: SuccessorConfig) -> SuccessorConfig:
    """Tiny everything: finds crashes in seconds, learns nothing."""
    return replace(
        base,
        network=NetworkConfig(features=8, channels=(4, 4), kernels=(4, 4), strides=(4, 2), torso=(16,)),
        learning=LearningConfig(batch=8, target_every=200, draws=10),
        replay=FrameReplayConfig(capacity=1_000, stack=2),
        exploration=ExplorationConfig(random_steps=100, draw_every=50),
        steps=1_000,
        eval_every=500,
        checkpoint_every=500,
    )


PRESETS: dict[str, Callable[[Any], Any]] = {
    "paper": _paper,
    "cpu": _cpu,
    "deepsea": _deepsea,
    "minatar": _minatar,
    "control": _control,
    "debug": _debug,
}
