"""Every setting of Dv2. Each default says where it comes from: [paper] PSDRL's appendix on Dv2, [released] a fact of
the public implementation (github.com/danijar/dreamerv2, configuration `atari`), [Dv2] the DreamerV2 paper where that
differs, [ours] a choice of this implementation."""

from dataclasses import dataclass, field
from typing import Literal

from psdrl.config import Config, at_least, positive, shares
from psdrl.errors import UserError

Preset = Literal["auto", "paper", "cpu", "deepsea", "minatar", "control", "debug"]


@dataclass(frozen=True)
class ModelConfig:
    """The world model: encoder, recurrent state-space model, decoder, reward and discount heads."""

    latents: int = 32
    """Categorical variables G of a latent state. [released]"""
    classes: int = 32
    """Classes C of each of them. [released]"""
    recurrent: int = 600
    """Units H of the GRU. [released]"""
    units: int = 600
    """Units of the ELU layers before the GRU, of the prior and of the posterior. [released]"""
    depth: int = 48
    """Channels of the encoder's first convolution, for images; each next one has twice as many. [released]"""
    vector: tuple[int, ...] = (400, 400, 400, 400)
    """Units of the ELU layers of encoder and decoder, for vectors. [released: its encoder of vectors, which Atari does
    not use]"""
    heads: tuple[int, ...] = (400, 400, 400, 400)
    """Units of the ELU layers of the reward and discount heads. [released]"""
    kl_weight: float = 0.1
    """Weight of the KL divergence of posterior and prior. [released]"""
    kl_balance: float = 0.8
    """Share of that divergence that trains the prior; the rest trains the posterior. [released]"""
    discount_weight: float = 5.0
    """Weight of the discount head's loss. [released]"""
    standardise: bool = False
    """Subtract the mean of vector observations and divide by their deviations, over all that were seen. [released:
    no]"""
    learning_rate: float = 2e-4
    """Adam's learning rate. [released]"""


@dataclass(frozen=True)
class BehaviourConfig:
    """Actor and critic, which learn from imagined states only."""

    layers: tuple[int, ...] = (400, 400, 400, 400)
    """Units of the ELU layers of the actor, and of the critic. [released]"""
    horizon: int = 15
    """Imagined steps from each posterior state. [released]"""
    discount: float = 0.999
    """Discount factor gamma: the discount head learns gamma where an episode goes on. [released; Dv2: 0.995]"""
    trace: float = 0.95
    """lambda of the lambda-returns. [released]"""
    entropy: float = 1e-3
    """Weight of the policy's entropy. [released]"""
    actor_rate: float = 4e-5
    """Adam's learning rate, of the actor. [released]"""
    critic_rate: float = 1e-4
    """Adam's learning rate, of the critic. [released]"""
    target_every: int = 100
    """Updates between two copies of the critic into the slow critic. [released]"""


@dataclass(frozen=True)
class LearningConfig:
    """One update trains the world model, the actor and the critic once."""

    every: int = 8
    """Steps between two updates. [paper: of 4, 8 and 12; released: 16]"""
    batch: int = 16
    """Sequences per update. [released; Dv2: 50]"""
    length: int = 50
    """Observations in a sequence. [released]"""
    clip: float = 100.0
    """Largest norm of the gradient of the world model, of the actor and of the critic. [released]"""
    epsilon: float = 1e-5
    """Adam's epsilon. [released]"""
    decay: float = 1e-6
    """Share by which every update shrinks all parameters, whatever the learning rates. [released]"""


@dataclass(frozen=True)
class SequenceReplayConfig:
    """Replay of whole episodes, which enter when they end."""

    capacity: int = 2_000_000
    """Transitions; the oldest episodes leave first. [released]"""
    sequences: Literal["within", "across"] = "within"
    """within: an episode uniformly among those of a sequence's length at least, shorter ones are not used, and ends are
    drawn more often. across: a stored observation uniformly; a sequence runs on into the next episodes, at whose
    beginnings the state starts anew. [released: within]"""
    device: Literal["auto", "device", "host"] = "auto"
    """Where the frames lie: on the run's device, or in (pinned) host memory, from where each batch is copied; auto: on
    the device if they take less than a quarter of its free memory. On a CPU all are the same. [ours]"""


@dataclass(frozen=True)
class ExplorationConfig:
    """Actions are sampled from the policy, after a phase of random ones."""

    random_steps: int = 50_000
    """Steps of uniformly random actions before learning starts. [released]"""


@dataclass(frozen=True)
class DreamerConfig(Config):
    """Train Dv2, DreamerV2: `python -m psdrl.train --algo dreamer --game Pong`."""

    preset: Preset = "auto"
    """Settings to start from; auto chooses by environment and device."""
    reward_transform: Literal["sign", "tanh", "none"] = "tanh"
    """Applied to rewards before they are stored. [released: tanh]"""
    model: ModelConfig = field(default_factory=ModelConfig)
    behaviour: BehaviourConfig = field(default_factory=BehaviourConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)
    replay: SequenceReplayConfig = field(default_factory=SequenceReplayConfig)
    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)

    def check(self) -> None:
        """Refuse what cannot work."""
        super().check()
        at_least(self, _MINIMA)
        positive(self, _POSITIVE)
        shares(self, ("model.kl_balance", "behaviour.trace"))
        for name in ("behaviour.discount", "learning.decay"):
            group, _, setting = name.partition(".")
            value = getattr(getattr(self, group), setting)
            if not 0 <= value < 1:
                raise UserError(f"--{name} is {value} but must lie in [0, 1).")
        if min((*self.model.vector, *self.model.heads, *self.behaviour.layers), default=1) < 1:
            raise UserError("--model.vector, --model.heads and --behaviour.layers must be positive.")
        if self.learning.length > self.replay.capacity:
            raise UserError(
                f"--learning.length {self.learning.length} is more than --replay.capacity {self.replay.capacity} holds."
            )


_POSITIVE = (
    "model.learning_rate",
    "behaviour.actor_rate",
    "behaviour.critic_rate",
    "learning.clip",
    "learning.epsilon",
)
_MINIMA = {
    "model.latents": 1,
    "model.classes": 2,
    "model.recurrent": 1,
    "model.units": 1,
    "model.depth": 1,
    "model.kl_weight": 0,
    "model.discount_weight": 0,
    "behaviour.horizon": 2,
    "behaviour.entropy": 0,
    "behaviour.target_every": 1,
    "learning.every": 1,
    "learning.batch": 1,
    "learning.length": 1,
    "replay.capacity": 1,
    "exploration.random_steps": 0,
}
