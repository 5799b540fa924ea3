"""Every setting of B+P. Each default says where it comes from: [paper] PSDRL's appendix on B+P, [released] a fact of
the implementation that its authors ran (github.com/johannah/bootstrap_dqn), [ours] a choice of this implementation."""

from dataclasses import dataclass, field
from typing import Literal

from psdrl.agents.transitions import FrameReplayConfig, GradientConfig, TransitionConfig
from psdrl.config import at_least, shares

Preset = Literal["auto", "paper", "cpu", "deepsea", "minatar", "control", "debug"]


@dataclass(frozen=True)
class NetworkConfig:
    """K dueling heads on one torso, and a prior network of the same shape."""

    heads: int = 9
    """Heads K. [released]"""
    prior_scale: float = 1.0
    """Factor on the prior: Q_k = trained_k + scale * prior_k. [paper: of 1, 3 and 10; released: 10]"""
    channels: tuple[int, ...] = (32, 64, 64)
    """Channels of the torso's convolutions, for images. [released: Nature DQN]"""
    kernels: tuple[int, ...] = (8, 4, 3)
    """Kernel sizes of the torso's convolutions. [released]"""
    strides: tuple[int, ...] = (4, 2, 1)
    """Strides of the torso's convolutions. [released]"""
    grid_channels: int = 16
    """Channels of a 3 x 3 convolution, for grids; 0: a grid is a vector like any other. [MinAtar's DQN]"""
    torso: tuple[int, ...] = ()
    """Units of the torso's ReLU layers, after any convolution. [released: none]"""
    units: int = 512
    """Units U of a head's value stream, and of its advantage stream. [released]"""


@dataclass(frozen=True)
class LearningConfig(GradientConfig):
    """Double DQN per head."""

    every: int = 2
    """Steps between two gradient steps. [paper: of 2 and 4; released: 4]"""
    batch: int = 64
    """Transitions per gradient step. [paper: of 32 and 64; released: 32]"""
    learning_rate: float = 6.25e-5
    """Adam's learning rate. [released]"""
    discount: float = 0.99
    """Discount factor gamma. [released]"""
    clip: float = 5.0
    """Largest norm of the gradient of all parameters. [released]"""
    target_every: int = 10_000
    """Steps between two copies into the target network. [released]"""
    mask_probability: float = 0.9
    """Probability that a head may learn from a transition, drawn when it is stored. 1: all heads learn from all
    transitions, which is what the released code does: it averages the loss before it applies the mask. [released: 0.9,
    without effect]"""


@dataclass(frozen=True)
class ExplorationConfig:
    """One head per episode, acted on greedily, after a phase of random actions."""

    random_steps: int = 50_000
    """Steps of uniformly random actions before learning starts. [released]"""
    epsilon: float = 0.0
    """Probability of a random action in the end. [ours: the heads explore; released: 0.01]"""
    epsilon_steps: int = 0
    """Steps over which it falls from 1 to there, after the random ones; 0: at once. [ours; released: 1,000,000, an
    average of 0.55 over the paper's runs]"""


@dataclass(frozen=True)
class BootstrapConfig(TransitionConfig):
    """Train B+P, Bootstrapped DQN with randomised priors: `python -m psdrl.train --algo bootstrap --game Pong`."""

    preset: Preset = "auto"
    """Settings to start from; auto chooses by environment and device."""
    reward_transform: Literal["sign", "tanh", "none"] = "sign"
    """Applied to rewards before they are stored. [released: sign]"""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)
    replay: FrameReplayConfig = field(default_factory=FrameReplayConfig)
    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)

    def random_share(self, step: int) -> float:
        """Probability of a random action at this step."""
        exploration = self.exploration
        past = step - exploration.random_steps
        if past < 0:
            return 1.0
        if past >= exploration.epsilon_steps:
            return exploration.epsilon
        return 1.0 - (1.0 - exploration.epsilon) * past / exploration.epsilon_steps

    def check(self) -> None:
        """Refuse what cannot work."""
        super().check()
        at_least(self, _MINIMA)
        shares(self, ("learning.mask_probability", "exploration.epsilon"))


_MINIMA = {"network.heads": 1, "network.prior_scale": 0, "network.units": 1, "exploration.epsilon_steps": 0}
