"""Which settings cannot work, and what to say about them."""

from typing import Any

from psdrl.config import Config
from psdrl.errors import UserError

_MINIMA = {
    "steps": 1,
    "seed": 0,
    "num_envs": 1,
    "env_groups": 1,
    "chunk_rows": 1,
    "eval_every": 0,
    "eval_episodes": 1,
    "checkpoint_every": 0,
    "atari.max_steps": 1,
    "minatar.max_steps": 1,
    "minatar.stack": 1,
    "autoencoder.latent": 0,
    "autoencoder.iterations": 0,
    "forward.layers": 2,
    "forward.units": 1,
    "forward.recurrent": 0,
    "forward.window": 1,
    "forward.iterations": 0,
    "forward.reward_weight": 0,
    "termination.layers": 2,
    "termination.units": 1,
    "value.layers": 2,
    "value.units": 1,
    "value.iterations": 0,
    "value.networks": 1,
    "value.target_every": 1,
    "replay.capacity": 1,
    "replay.batch": 1,
    "replay.length": 1,
    "policy.update_every": 1,
    "policy.update_every_early": 1,
    "policy.early_steps": 0,
}
_POSITIVE = (
    "autoencoder.learning_rate",
    "forward.learning_rate",
    "forward.gain",
    "termination.learning_rate",
    "termination.weight",
    "value.learning_rate",
    "value.target_rate",
    "posterior.prior_latent",
    "posterior.prior_reward",
    "posterior.noise_latent",
    "posterior.noise_reward",
    "posterior.released_ridge",
    "posterior.released_scale",
)


def check(config: Config) -> None:
    """Refuse what cannot work, with one sentence that says what to do."""
    _ = config.profiled
    if bool(config.game) == bool(config.env):
        raise UserError("Name one environment: --game GAME for Atari or --env ID for anything else.")
    if config.atari.noop_max < 1:
        raise UserError("--atari.noop-max must be at least 1: EnvPool crashes on 0 (use 1 for the shortest start).")
    for name, minimum in _MINIMA.items():
        value = _lookup(config, name)
        if not value >= minimum:  # so that NaN is refused too
            raise UserError(f"{_flag(name)} is {value} but must be at least {minimum}.")
    if config.num_envs % config.env_groups:
        raise UserError(
            f"--env-groups is {config.env_groups} but must divide --num-envs {config.num_envs}: groups are of one size."
        )
    for name in _POSITIVE:
        if not _lookup(config, name) > 0:
            raise UserError(f"{_flag(name)} is {_lookup(config, name)} but must be greater than 0.")
    for name in ("policy.epsilon", "minatar.sticky", "value.random_share"):
        if not 0 <= _lookup(config, name) <= 1:
            raise UserError(f"{_flag(name)} is {_lookup(config, name)} but must lie between 0 and 1.")
    if config.value.target_rate > 1:
        raise UserError(f"--value.target-rate is {config.value.target_rate} but must be at most 1, which copies.")
    if not 0 <= config.value.discount < 1:
        raise UserError(f"--value.discount is {config.value.discount} but must lie in [0, 1).")
    if config.forward.local and config.forward.feature_activation != "tanh":
        raise UserError("--forward.local needs --forward.feature-activation tanh: places have no linear features.")
    conv = config.autoencoder
    if len({len(conv.channels), len(conv.kernels), len(conv.strides), len(conv.decoder_kernels)}) != 1:
        raise UserError("--autoencoder.channels, .kernels, .strides and .decoder-kernels must have equal lengths.")
    if min(conv.channels + conv.kernels + conv.strides + conv.decoder_kernels, default=0) < 1:
        raise UserError("--autoencoder.channels, .kernels, .strides and .decoder-kernels must be positive.")


def _lookup(config: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        config = getattr(config, name)
    return config


def _flag(dotted: str) -> str:
    return "--" + dotted.replace("_", "-")
