"""Which settings of PSDRL cannot work, and what to say about them."""

from typing import TYPE_CHECKING

from psdrl.config import at_least, positive, shares
from psdrl.errors import UserError

if TYPE_CHECKING:
    from psdrl.agents.psdrl.settings import PsdrlConfig

_MINIMA = {
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


def check(config: "PsdrlConfig") -> None:
    """Refuse what cannot work, with one sentence that says what to do."""
    at_least(config, _MINIMA)
    positive(config, _POSITIVE)
    shares(config, ("policy.epsilon", "value.random_share"))
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
