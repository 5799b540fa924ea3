"""Presets of B+P: settings to start from. `paper` is the paper's baseline; every other preset lists its departures."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from psdrl.agents.bootstrap.settings import (
    BootstrapConfig,
    ExplorationConfig,
    LearningConfig,
    NetworkConfig,
)
from psdrl.agents.transitions import FrameReplayConfig
from psdrl.envs.deepsea import deepsea_size


def _paper(base: BootstrapConfig) -> BootstrapConfig:
    """The defaults of `psdrl.agents.bootstrap.settings`, on frames of 84 x 84. [released]"""
    return replace(base, atari=replace(base.atari, size=84))


def _cpu(base: BootstrapConfig) -> BootstrapConfig:
    """Atari on two CPU cores, of a size that finishes; its scores are not measured. [ours]"""
    return replace(
        base,  # frames of 64 x 64
        precision="fp32",
        # 0.6 million parameters instead of 29: the released heads alone have 3.2 million each
        network=NetworkConfig(channels=(16, 32), kernels=(8, 4), strides=(4, 2), torso=(256,), units=64),
        # half as many gradient steps on half as many transitions, so larger ones; targets follow sooner
        learning=LearningConfig(every=4, batch=32, learning_rate=2.5e-4, target_every=2_000),
        replay=FrameReplayConfig(capacity=100_000),  # 0.4 GB
        exploration=ExplorationConfig(random_steps=5_000),  # a CPU's run may have 100,000 steps in all
    )


def _control(base: BootstrapConfig) -> BootstrapConfig:
    """Control problems with a few real observations. [ours]"""
    return replace(
        base,
        precision="fp32",
        network=NetworkConfig(torso=(128,), units=64),
        # A copy carries values one step back, and CartPole's look 100 steps ahead: a run has 200 copies. Four trials
        # with 100 or 500 steps between them and batches of 64, network and rate varied too, on seed 100: two reached
        # 500 and lost it, one stayed near 200, one at 9.
        learning=LearningConfig(batch=128, learning_rate=1e-3, target_every=250),
        replay=FrameReplayConfig(capacity=50_000, stack=1),  # an observation has the velocities
        exploration=ExplorationConfig(random_steps=1_000),
        reward_transform="none",  # rewards are small, and their sizes matter
        eval_every=2_000,
        steps=50_000,
    )


def _minatar(base: BootstrapConfig) -> BootstrapConfig:
    """MinAtar, with the sizes of its authors' DQN where they fit. [ours]"""
    return replace(
        _control(base),
        network=NetworkConfig(torso=(128,), units=64),
        # Not tuned: the first trial, Breakout with seed 100, had 9 after 170,000 steps and was stopped.
        learning=LearningConfig(batch=32, learning_rate=2.5e-4, target_every=1_000),
        replay=FrameReplayConfig(capacity=100_000, stack=1),  # planes show where things come from
        exploration=ExplorationConfig(random_steps=5_000),
        eval_every=10_000,
        steps=300_000,
    )


def _deepsea(base: BootstrapConfig) -> BootstrapConfig:
    """DeepSea: only the heads explore, from the first step on. [ours]"""
    size = deepsea_size(base.env) or 10
    return replace(
        _control(base),
        # No common torso, so that heads disagree about cells that no one has seen. PyTorch's initial weights make a
        # small prior of one-hot inputs: times 10, a head's two actions differ by 1.7 (sd); the treasure is worth 1.
        network=NetworkConfig(heads=10, prior_scale=10.0, torso=(), units=32),
        learning=LearningConfig(every=1, learning_rate=1e-3, target_every=10 * size),
        replay=FrameReplayConfig(capacity=1_000 * size, stack=1),  # all episodes of a run
        exploration=ExplorationConfig(random_steps=0),
        eval_every=100 * size,
        steps=1_000 * size,
    )


def _debug(base: BootstrapConfig) -> BootstrapConfig:
    """Tiny everything: finds crashes in seconds, learns nothing."""
    return replace(
        base,
        network=NetworkConfig(heads=3, channels=(4, 4), kernels=(4, 4), strides=(4, 2), units=8),
        learning=LearningConfig(batch=8, target_every=200),
        replay=FrameReplayConfig(capacity=1_000, stack=2),
        exploration=ExplorationConfig(random_steps=100),
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
