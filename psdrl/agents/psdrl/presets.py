"""Presets: settings to start from. `paper` is exactly the paper; every other preset lists its departures."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from psdrl.agents.psdrl.settings import (
    AutoencoderConfig,
    ForwardConfig,
    LatentConfig,
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
    """The paper's hyperparameter table: the defaults of `settings.py`."""
    return base


def _cpu(base: PsdrlConfig) -> PsdrlConfig:
    """Atari on two CPU cores: small networks, m = 250 throughout; frames less their mean, for most of a frame never
    changes; a latent state of 7 x 7 places, as the paper's has places; features with their inputs among them, for the
    regression sees at once what stays and what an action does; small prior variances, for many of these features say
    nearly the same; a target network that averages, for actions differ by a few percent of V. [ours: docs/learning.md;
    measured: results/atari]"""
    return replace(
        base,
        precision="fp32",
        autoencoder=AutoencoderConfig(
            (16, 6), (4, 4), (4, 2), (4, 4), learning_rate=1e-3, iterations=1, mean_frame=True
        ),
        latent=LatentConfig(standardise=True),
        forward=ForwardConfig(3, 128, 64, "tanh", skip=True, learning_rate=1e-3, iterations=6),
        termination=TerminationConfig(3, 128, learning_rate=1e-3),
        value=ValueConfig(
            3,
            256,
            learning_rate=5e-4,
            iterations=12,
            target_every=10,
            target_rate=0.1,
            discount=0.98,
            start="episode",
        ),
        posterior=PosteriorConfig(prior_latent=0.01, prior_reward=0.1, noise_latent=1e-2, noise_reward=1e-4),
        replay=ReplayConfig(batch=64, length=40),
        policy=PolicyConfig(update_every=250),
    )


def _small(base: PsdrlConfig) -> PsdrlConfig:
    """What `minatar`, `control` and `deepsea` share: no autoencoder, small networks, sequences no longer than the
    shortest episodes (6 steps in MinAtar Breakout): a single longer episode would otherwise be the only one that is
    sampled; two value networks and a share of random actions in planning, for the best of noisy values is too high and
    the best action may be a narrow escape. [ours: docs/learning.md; measured: results/minatar]"""
    return replace(
        base,
        precision="fp32",
        forward=ForwardConfig(3, 256, 32, "tanh", 2.0, window=3, learning_rate=1e-3, iterations=40, reward_weight=0),
        termination=TerminationConfig(3, 64, learning_rate=1e-3),
        value=ValueConfig(
            3,
            128,
            learning_rate=1e-3,
            iterations=20,
            target_every=6,
            target_rate=0.1,
            networks=2,
            random_share=0.2,
            discount=0.97,
            start="episode",
        ),
        posterior=PosteriorConfig(prior_latent=1.0, prior_reward=10.0, noise_latent=1e-3, noise_reward=1e-4),
        replay=ReplayConfig(batch=64, length=6, ends="even"),
        policy=PolicyConfig(update_every=250),
        reward_transform="none",
        eval_every=2_000,
        steps=30_000,
    )


def _minatar(base: PsdrlConfig) -> PsdrlConfig:
    """MinAtar: one network for all places of the grid. [ours: docs/learning.md; measured: results/minatar]"""
    small = _small(base)
    return replace(
        small,
        minatar=MinAtarConfig(stack=3),  # no single frame shows when the player or a car may move again
        latent=LatentConfig(standardise=True),  # planes of equal scale: the player is one cell in a hundred
        forward=ForwardConfig(
            3, 32, 1, "tanh", skip=True, local=True, window=3, learning_rate=5e-3, iterations=30, reward_weight=0
        ),  # local: what is learned of one place must hold for all
        # Ends are learned from predictions too, and weigh more: those are what planning asks about.
        termination=TerminationConfig(3, 16, learning_rate=3e-3, local=True, predicted=True, weight=10.0),
        # One network: the smaller of two falls below 0 where rewards are rare. Fast targets: what an untried action
        # promised must be forgotten again.
        value=replace(small.value, target_rate=0.6, networks=1, random_share=0.1),
        posterior=replace(small.posterior, prior_latent=0.01, prior_reward=0.1),
    )


def _control(base: PsdrlConfig) -> PsdrlConfig:
    """Control problems with a few real observations: standardised, and among the features, for their changes nearly add
    up; hardly any memory (one recurrent unit), for sequences of 8 steps train V at other hidden states than long
    episodes reach; ends weigh more, for a pole that stands for 200 steps shows one end in 200. [ours: docs/learning.md;
    measured: results/control]"""
    small = _small(base)
    return replace(
        small,
        latent=LatentConfig(standardise=True),
        forward=replace(small.forward, skip=True, recurrent=1, window=1, iterations=25, reward_weight=1.0),
        termination=TerminationConfig(3, 128, learning_rate=3e-3, weight=10.0),
        value=replace(small.value, iterations=50, target_every=8, discount=0.99, start="zero"),
        posterior=replace(small.posterior, noise_latent=1e-4),
        replay=replace(small.replay, length=8),
    )


def _deepsea(base: PsdrlConfig) -> PsdrlConfig:
    """DeepSea: an update per episode, small noise: the reward is exact and must be found by deep exploration. With the
    size N grow the features, for k must exceed the N (N + 1) pairs of state and action; their gain, for PyTorch's
    initial weights shrink with the N^2 inputs, and features in tanh's linear range take an untried action for the sum
    of what they know; planning, for V has to follow each draw over N steps; and the noise shrinks, for a path adds up N
    draws. From N = 20 on sweeps go against time, half as many, and there is no memory, which a diver does not need, so
    that equal states are predicted once (tuning/deepsea-20). [ours: docs/learning.md; measured:
    results/deepsea]"""
    size = deepsea_size(base.env) or 10
    noise, large = 0.1 / size**2, size >= 20
    return replace(
        _small(base),
        autoencoder=AutoencoderConfig((16, 32), (4, 4), (4, 2), (4, 4), latent=64, learning_rate=2e-3, iterations=1),
        latent=LatentConfig(),
        forward=ForwardConfig(
            3,
            max(256, 64 * round(size**2 / 50)),
            0 if large else 16,
            "tanh",
            gain=size / 2,
            learning_rate=1e-3,
            iterations=3,
        ),
        value=ValueConfig(
            3,
            128,
            learning_rate=1e-3,
            iterations=size // 2 if large else size,
            target_every=1,
            sweep="backward" if large else "forward",
            start="episode",
        ),
        posterior=PosteriorConfig(prior_latent=1.0, prior_reward=1e3, noise_latent=noise, noise_reward=noise),
        replay=ReplayConfig(capacity=1000 * size, batch=64, length=size),
        policy=PolicyConfig(update_every=size, update_every_early=size),
        eval_every=100 * size,
        steps=4 * size**3,
    )


def _debug(base: PsdrlConfig) -> PsdrlConfig:
    """Tiny everything: finds crashes in seconds, learns nothing."""
    return replace(
        base,
        autoencoder=AutoencoderConfig((4, 8), (4, 4), (4, 2), (4, 4), latent=8, iterations=1),
        forward=ForwardConfig(3, 16, 8, iterations=1),
        termination=TerminationConfig(2, 8),
        value=ValueConfig(3, 16, iterations=1),
        replay=ReplayConfig(capacity=2_000, batch=4, length=9),
        policy=PolicyConfig(update_every=250),
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
