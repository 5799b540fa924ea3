"""Presets of Dv2: settings to start from. `paper` is the paper's baseline; every other preset lists its departures."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from psdrl.agents.dreamer.settings import (
    BehaviourConfig,
    DreamerConfig,
    ExplorationConfig,
    LearningConfig,
    ModelConfig,
    SequenceReplayConfig,
)
from psdrl.envs.deepsea import deepsea_size


def _paper(base: DreamerConfig) -> DreamerConfig:
    """The defaults of `psdrl.agents.dreamer.settings`. [released]"""
    return base


def _cpu(base: DreamerConfig) -> DreamerConfig:
    """Atari on two CPU cores, of a size that finishes; its scores are not measured. [ours]"""
    return replace(
        base,
        precision="fp32",
        # 0.4 million parameters instead of 22
        model=ModelConfig(
            latents=16, classes=16, recurrent=128, units=128, depth=8, heads=(64, 64), learning_rate=5e-4
        ),
        behaviour=BehaviourConfig(layers=(64, 64), horizon=10, discount=0.99, actor_rate=2e-4, critic_rate=5e-4),
        # 8 x 32 states instead of 16 x 50, half as often
        learning=LearningConfig(every=16, batch=8, length=32),
        replay=SequenceReplayConfig(capacity=100_000),  # 0.5 GB
        exploration=ExplorationConfig(random_steps=5_000),  # a CPU's run may have 100,000 steps in all
    )


def _control(base: DreamerConfig) -> DreamerConfig:
    """Control problems with a few real observations; after nine trials on seeds 100 and 101, CartPole is learned but
    not held: docs/dreamer.md. [ours]"""
    return replace(
        base,
        precision="fp32",
        model=ModelConfig(
            latents=8,
            classes=8,
            recurrent=64,
            units=64,
            vector=(64, 64),
            heads=(64, 64),
            kl_weight=0.02,  # four numbers are to be told, not 4,096 pixels
            standardise=True,  # CartPole's angle is 0.1 where its velocities are 1
            learning_rate=1e-3,
        ),
        behaviour=BehaviourConfig(
            layers=(64, 64),
            discount=0.99,  # CartPole's ends come 100 steps after their cause: 0.98 with 5 steps stayed at 200
            actor_rate=3e-4,
            critic_rate=1e-3,
            target_every=50,
        ),
        learning=LearningConfig(batch=16, length=16),  # 39 ms of one core per update
        replay=SequenceReplayConfig(capacity=100_000, sequences="across"),  # random episodes have 20 steps
        exploration=ExplorationConfig(random_steps=1_000),
        reward_transform="none",  # rewards are small, and their sizes matter
        eval_every=2_000,
        steps=100_000,
    )


def _minatar(base: DreamerConfig) -> DreamerConfig:
    """MinAtar: planes of a grid as a vector. [ours]"""
    control = _control(base)
    return replace(
        control,
        model=replace(control.model, latents=16, recurrent=128, units=128, vector=(128,), standardise=False),
        eval_every=10_000,
        steps=300_000,
    )


def _deepsea(base: DreamerConfig) -> DreamerConfig:
    """DeepSea: nothing but chance finds the treasure. [ours]"""
    size = deepsea_size(base.env) or 10
    control = _control(base)
    return replace(
        control,
        model=replace(control.model, standardise=False),
        learning=replace(control.learning, length=size + 1),
        replay=replace(control.replay, capacity=1_000 * size),  # all episodes of a run
        exploration=ExplorationConfig(random_steps=10 * size),
        eval_every=100 * size,
        steps=1_000 * size,
    )


def _debug(base: DreamerConfig) -> DreamerConfig:
    """Tiny everything: finds crashes in seconds, learns nothing."""
    return replace(
        base,
        model=ModelConfig(latents=3, classes=4, recurrent=8, units=8, depth=2, vector=(8,), heads=(8,)),
        behaviour=BehaviourConfig(layers=(8,), horizon=4, target_every=5),
        learning=LearningConfig(every=8, batch=4, length=6),
        replay=SequenceReplayConfig(capacity=1_000, sequences="across"),
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
