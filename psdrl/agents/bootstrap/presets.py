"""Presets of B+P: settings to start from. `paper` is the paper's baseline; every other preset lists its departures."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from psdrl.agents.bootstrap.settings import (
    BootstrapConfig,
    ExplorationConfig,
    FrameReplayConfig,
    LearningConfig,
    NetworkConfig,
)
from psdrl.envs.deepsea import deepsea_size


def _paper(base: BootstrapConfig) -> BootstrapConfig:
    """The defaults of `psdrl.agents.bootstrap.settings`, on frames of 84 x 84."""
    return replace(base, atari=replace(base.atari, size=84))


def _cpu(base: BootstrapConfig) -> BootstrapConfig:
    """Atari on two CPU cores: frames of 64 x 64, two small convolutions, a gradient step every 4 steps."""
    return replace(
        base,
        precision="fp32",
        network=NetworkConfig(channels=(16, 32), kernels=(8, 4), strides=(4, 2), torso=(256,), units=64),
        learning=LearningConfig(every=4, batch=32, learning_rate=2.5e-4, target_every=2_000),
        replay=FrameReplayConfig(capacity=100_000),
        exploration=ExplorationConfig(random_steps=5_000),
    )


def _control(base: BootstrapConfig) -> BootstrapConfig:
    """Control problems with a few real observations, which show the whole state: single frames, rewards as they are,
    small networks, a gradient step per step, targets that follow sooner."""
    return replace(
        base,
        precision="fp32",
        network=NetworkConfig(torso=(64, 64), units=32),
        learning=LearningConfig(every=1, learning_rate=1e-3, target_every=500),
        replay=FrameReplayConfig(capacity=50_000, stack=1),
        exploration=ExplorationConfig(random_steps=1_000),
        reward_transform="none",
        eval_every=2_000,
        steps=50_000,
    )


def _minatar(base: BootstrapConfig) -> BootstrapConfig:
    """MinAtar: one small convolution over the grid."""
    return replace(
        _control(base),
        network=NetworkConfig(torso=(128,), units=64),
        learning=LearningConfig(every=2, batch=32, learning_rate=2.5e-4, target_every=1_000),
        replay=FrameReplayConfig(capacity=100_000, stack=1),
        exploration=ExplorationConfig(random_steps=5_000),
        eval_every=10_000,
        steps=300_000,
    )


def _deepsea(base: BootstrapConfig) -> BootstrapConfig:
    """DeepSea: heads without a common torso, so that nothing they share says the same about untried actions."""
    size = deepsea_size(base.env) or 10
    return replace(
        _control(base),
        network=NetworkConfig(heads=10, prior_scale=10.0, torso=(), units=32),
        learning=LearningConfig(every=1, learning_rate=1e-3, target_every=10 * size),
        replay=FrameReplayConfig(capacity=1_000 * size, stack=1),
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
