"""Presets: settings to start from. `paper` is exactly the paper; every other preset says why it departs [ours:
docs/learning.md, docs/experiments.md; measured: results/]."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from psdrl.agents.psdrl.settings import (
    AutoencoderConfig,
    ForwardConfig,
    PolicyConfig,
    PosteriorConfig,
    PsdrlConfig,
    ReplayConfig,
    TerminationConfig,
    ValueConfig,
)
from psdrl.config import Config, MinAtarConfig
from psdrl.envs import registry as environments
from psdrl.envs.deepsea import deepsea_size
from psdrl.runtime.device import cuda_available


def _paper(base: PsdrlConfig) -> PsdrlConfig:
    """The paper's hyperparameter table: the defaults of `settings.py`. On a GPU the autoencoder computes in bfloat16,
    which adds a seventh to tf32's error of planning targets. [measured: bench/RESULTS.md]"""
    return replace(base, precision="mixed")


def _cpu(base: PsdrlConfig) -> PsdrlConfig:
    """Atari on two CPU cores: small networks. [measured: results/atari]"""
    return replace(
        base,
        precision="fp32",  # CPUs have no tf32
        standardise=True,  # most of a frame never changes
        autoencoder=AutoencoderConfig(
            channels=(16, 6),  # a latent state of 7 x 7 cells of 6 numbers; the paper's has 2 x 2 of 384
            learning_rate=1e-3,
            iterations=1,
        ),
        forward=ForwardConfig(
            layers=3,
            units=128,
            recurrent=64,
            features="tanh+inputs",  # the regression sees at once what stays and what an action does
            learning_rate=1e-3,
            iterations=6,
        ),
        termination=TerminationConfig(layers=3, units=128, learning_rate=1e-3),
        value=ValueConfig(
            layers=3,
            units=256,
            learning_rate=1e-3,  # with traces 5e-4 learned late
            iterations=12,
            target_every=10,
            target_rate=0.1,  # actions differ by a few percent of V: targets must not jump
            discount=0.98,
            hindsight=True,  # the model misses most lost points, the buffer has them
            trace=0.8,  # takes V's flattery away, and actions differ more
            sweep="episode",  # sequences of 40 steps never reach the hidden states of 2,000-step episodes
        ),
        posterior=PosteriorConfig(
            prior=(0.01, 0.1),  # many of these features say nearly the same
            noise=(1e-2, 1e-4),  # no smaller than the model's squared error
        ),
        replay=ReplayConfig(batch=64, length=40),
        policy=PolicyConfig(update_every=(250,)),
    )


def _small(base: PsdrlConfig) -> PsdrlConfig:
    """What `minatar`, `control` and `deepsea` share: vectors, small networks."""
    return replace(
        base,
        precision="fp32",  # CPUs have no tf32
        forward=ForwardConfig(
            layers=3,
            units=256,
            recurrent=32,
            features="tanh",
            gain=2.0,  # bends the features: an untried action is not the sum of what is known
            window=3,
            learning_rate=1e-3,
            iterations=40,
            reward_weight=0,  # rewards are rare
        ),
        termination=TerminationConfig(layers=3, units=64, learning_rate=1e-3),
        value=ValueConfig(
            layers=3,
            units=128,
            learning_rate=1e-3,
            iterations=20,
            target_every=6,
            target_rate=0.1,
            networks=2,  # the maximum over noisy values is biased upwards
            random_share=0.2,  # the best action may be a narrow escape
            discount=0.97,
            sweep="episode",
        ),
        posterior=PosteriorConfig(prior=(1.0, 10.0), noise=(1e-3, 1e-4)),
        replay=ReplayConfig(
            batch=64,
            length=6,  # the shortest episodes of MinAtar Breakout: a single longer one would be the only one sampled
            ends="even",  # the last steps hold the ends
        ),
        policy=PolicyConfig(update_every=(250,)),
        reward_transform="none",  # rewards are of order 1 already
        eval_every=2_000,
        steps=30_000,
    )


def _minatar(base: PsdrlConfig) -> PsdrlConfig:
    """MinAtar: one network for all cells of the grid. [measured: results/minatar]"""
    small = _small(base)
    return replace(
        small,
        minatar=MinAtarConfig(stack=3),  # no single frame shows when the player or a car may move again
        standardise=True,  # planes of equal scale: the player is one cell in a hundred
        grid=True,  # what is learned of one cell holds for all
        forward=ForwardConfig(
            layers=3,
            units=32,  # of each of 100 cells
            recurrent=1,  # memory that is not needed does harm
            features="tanh+inputs",
            window=3,
            learning_rate=5e-3,
            iterations=30,
            reward_weight=0,  # rewards are rare
        ),
        termination=TerminationConfig(
            layers=3,
            units=16,
            learning_rate=3e-3,
            predicted=True,  # predictions are what planning asks about
            weight=10.0,  # ends are rare
        ),
        value=replace(
            small.value,
            target_rate=0.6,  # what an untried action promised must be forgotten again
            networks=1,  # the smaller of two falls below 0 where rewards are rare
            random_share=0.1,
            hindsight=True,  # learns sooner, or more
            trace=0.8,
        ),
        posterior=replace(small.posterior, prior=(0.01, 0.1)),  # what untried actions may promise
    )


def _control(base: PsdrlConfig) -> PsdrlConfig:
    """Control problems with a few real observations. [measured: results/control]"""
    small = _small(base)
    return replace(
        small,
        standardise=True,  # positions and speeds have scales of their own
        forward=replace(
            small.forward,
            features="tanh+inputs",  # changes nearly add up
            recurrent=1,  # sequences of 8 steps train V at other hidden states than long episodes reach
            window=1,
            iterations=25,
            reward_weight=1.0,
        ),
        termination=TerminationConfig(
            layers=3,
            units=128,
            learning_rate=3e-3,
            weight=10.0,  # a pole that stands for 200 steps shows one end in 200
        ),
        value=replace(
            small.value,
            iterations=100,
            target_every=8,
            target_rate=1.0,  # averaged targets lag: V mixed the promises of many draws
            discount=0.99,
            sweep="paper",
        ),
        posterior=replace(
            small.posterior,
            noise=(1e-4, 1e-4),
            resample=0.2,  # a swing-up takes longer than the 250 steps between two updates
        ),
        replay=replace(small.replay, length=8),
    )


def _deepsea(base: PsdrlConfig) -> PsdrlConfig:
    """DeepSea of size N: the reward is exact and must be found by deep exploration. [measured: results/deepsea]"""
    size = deepsea_size(base.env) or 10
    image = (base.env or "").endswith("-image")
    noise = 0.1 / size**2  # a path adds up N draws
    return replace(
        _small(base),
        standardise=image,  # codes shrink while the autoencoder learns, and V cannot tell them apart
        autoencoder=AutoencoderConfig(channels=(16, 32), latent=64, learning_rate=2e-3, iterations=1),
        forward=ForwardConfig(
            layers=3,
            units=max(256, 64 * round(size**2 / 50)),  # more than the N (N + 1) pairs of state and action
            recurrent=0,  # a diver needs none, and equal states are predicted once
            features="tanh",
            gain=size / 2,  # PyTorch's initial weights shrink with the N^2 inputs
            learning_rate=1e-3,
            iterations=1 if size >= 20 else 3,  # random features nearly suffice, and this was half of an update's time
        ),
        value=ValueConfig(
            layers=3,
            units=128,
            learning_rate=1e-3,
            # V has to follow each draw over N steps; of images it learns more slowly: a step for one state moves all.
            iterations=3 * size // 2 if image else max(1, size // 2),
            target_every=1,
            sweep="backward",  # against time half as many sweeps suffice
        ),
        posterior=PosteriorConfig(prior=(1.0, 1e3), noise=(noise, noise)),
        replay=ReplayConfig(capacity=1000 * size, batch=64, length=size),
        policy=PolicyConfig(update_every=(size,)),  # one per episode
        eval_every=100 * size,
        steps=4 * size**3,
    )


def _debug(base: PsdrlConfig) -> PsdrlConfig:
    """Tiny everything: finds crashes in seconds, learns nothing."""
    return replace(
        base,
        autoencoder=AutoencoderConfig(channels=(4, 8), latent=8, iterations=1),
        forward=ForwardConfig(layers=3, units=16, recurrent=8, iterations=1),
        termination=TerminationConfig(layers=2, units=8),
        value=ValueConfig(layers=3, units=16, iterations=1),
        replay=ReplayConfig(capacity=2_000, batch=4, length=9),
        policy=PolicyConfig(update_every=(250,)),
        steps=2_000,
        eval_every=1_000,
        checkpoint_every=1_000,
    )


PRESETS: dict[str, Callable[[Any], Any]] = {
    "paper": _paper,
    "cpu": _cpu,
    "deepsea": _deepsea,
    "minatar": _minatar,
    "control": _control,
    "debug": _debug,
}


def choose(config: Config) -> tuple[str, str]:
    """The preset for this environment and device, and the reason for it."""
    kind = environments.kind(config)
    if kind == "image":
        what = "Atari" if config.game else "pictures"
        if config.device.startswith("cuda") or (config.device == "auto" and cuda_available()):
            return "paper", f"{what} on a CUDA device"
        return "cpu", f"{what} without a CUDA device; --preset paper is the paper's size"
    if kind == "vector":
        return "control", "a small problem"
    return kind, {"deepsea": "a DeepSea problem", "minatar": "a MinAtar game"}[kind]
