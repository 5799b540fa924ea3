"""Which settings of PSDRL cannot work, and what to say about them."""

from typing import TYPE_CHECKING

from psdrl.config import at_least, flag, lookup, positive, shares
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
    "value.lookahead": 1,
    "value.target_every": 1,
    "replay.capacity": 1,
    "replay.batch": 1,
    "replay.length": 1,
}
_POSITIVE = (
    "autoencoder.learning_rate",
    "forward.learning_rate",
    "forward.gain",
    "termination.learning_rate",
    "termination.weight",
    "value.learning_rate",
    "value.target_rate",
    "posterior.resample",
)


def check(config: "PsdrlConfig") -> None:
    """Refuse what cannot work, with one sentence that says what to do."""
    at_least(config, _MINIMA)
    positive(config, _POSITIVE)
    shares(config, ("policy.epsilon", "posterior.resample", "value.random_share", "value.trace"))
    if config.value.target_rate > 1:
        raise UserError(f"--value.target-rate is {config.value.target_rate} but must be at most 1, which copies.")
    if config.value.trace and config.value.sweep == "backward":
        raise UserError("--value.trace goes with time: use --value.sweep paper or episode, or leave it out.")
    if not 0 <= config.value.discount < 1:
        raise UserError(f"--value.discount is {config.value.discount} but must lie in [0, 1).")
    if not config.autoencoder.channels or min(config.autoencoder.channels) < 1:
        raise UserError("--autoencoder.channels must be one or more positive numbers.")
    for name in ("posterior.prior", "posterior.noise", "policy.update_every"):
        numbers = lookup(config, name)
        if len(numbers) not in (1, 2) or not min(numbers) > 0:
            raise UserError(f"{flag(name)} is {' '.join(map(str, numbers))} but must be one or two positive numbers.")
