"""Every setting of SU. Each default says where it comes from: [paper] PSDRL's appendix on SU, [released] a fact of the
implementation that SU's authors ran (github.com/DavidJanz/successor_uncertainties_atari), [ours] a choice of this
implementation."""

from dataclasses import dataclass, field
from typing import Literal

from psdrl.agents.transitions import FrameReplayConfig, GradientConfig, TransitionConfig
from psdrl.config import at_least, positive
from psdrl.errors import UserError

Preset = Literal["auto", "paper", "cpu", "deepsea", "minatar", "control", "debug"]


@dataclass(frozen=True)
class NetworkConfig:
    """Local features phi and successor features psi on one torso, and one weight vector w for both."""

    features: int = 64
    """Numbers k of phi(s, a), of psi(s, a) and of w. [released]"""
    joint_normalisation: bool = False
    """Divide phi(s, .) by one norm over all actions, as the released code does: with 18 actions the norm of each
    phi(s, a) is then about 0.24, and a step adds an 18th as much to the precision. [ours: each has norm 1]"""
    initial_w: float = 1.0
    """Factor on w at the start. 0: a reward never seen is expected to be 0, as the posterior's prior has it; 1: to be
    some random number. [released: Xavier-uniform]"""
    fixed_phi: bool = False
    """Never train phi's layer: without a torso phi stays what it was, random features, and so does what the posterior
    has seen of them. Adam moves a trained phi even where rewards are tiny. [ours: for DeepSea; Janz et al. fix phi in
    their tabular experiments]"""
    residual: bool = False
    """psi(s, a) = phi(s, a) + a linear output that starts at 0, without ReLU: an action never taken has the uncertainty
    of its own phi, and no dead unit cuts the way of a feature back through the steps. No loss of psi trains phi then.
    [ours: for DeepSea; released: psi is an output of its own with ReLU, and trains phi]"""
    channels: tuple[int, ...] = (32, 64, 64)
    """Channels of the torso's convolutions, for images. [released: Nature DQN]"""
    kernels: tuple[int, ...] = (8, 4, 3)
    """Kernel sizes of the torso's convolutions. [released]"""
    strides: tuple[int, ...] = (4, 2, 1)
    """Strides of the torso's convolutions. [released]"""
    grid_channels: int = 16
    """Channels of a 3 x 3 convolution, for grids; 0: a grid is a vector like any other. [MinAtar's DQN]"""
    torso: tuple[int, ...] = (1024,)
    """Units of the torso's ReLU layers, after any convolution. [released]"""


@dataclass(frozen=True)
class LearningConfig(GradientConfig):
    """Three losses of equal weight: reward, successor features, Q."""

    every: int = 2
    """Steps between two gradient steps. [paper: of 2 and 4; released: 4]"""
    batch: int = 64
    """Transitions per gradient step. [paper: of 32 and 64; released: 32]"""
    learning_rate: float = 5e-5
    """Adam's learning rate. [released]"""
    discount: float = 0.99
    """Discount factor gamma. [released]"""
    clip: float = 10.0
    """Largest norm of the gradient of all parameters. [released]"""
    target_every: int = 10_000
    """Steps between two copies into the target network. [released]"""
    draws: int = 100
    """Draws from which the probability is estimated that a next action is the best. [released]"""
    next_action: Literal["posterior", "released"] = "posterior"
    """posterior: w is drawn, so that the next actions' values covary as their successor features say. released: each
    action's value is drawn by itself, with its variance in the place of its standard deviation; at beta 1e-3 the best
    mean wins nearly always. [ours]"""


@dataclass(frozen=True)
class PosteriorConfig:
    """Bayesian linear regression of rewards on phi, in float64: w ~ N(w, beta^2 precision^-1)."""

    beta: float = 1e-3
    """A STANDARD DEVIATION, that of the likelihood: the covariance is beta^2 precision^-1. [paper: the "likelihood
    prior", of 1e-1, 1e-3 and 1e-5; released: documented as a variance, used as a deviation, and so tuned]"""
    ridge: float = 1.0
    """The precision starts as this times the identity: the prior's standard deviation is beta / sqrt(ridge).
    [released]"""
    forgetting: float = 1e-5
    """Share of the precision, prior included, that is lost with each step. [released]"""
    action_noise: bool = True
    """Add independent noise N(0, beta^2) to each action's value in each step: it stays where the posterior is sure.
    [released]"""


@dataclass(frozen=True)
class ExplorationConfig:
    """Thompson sampling after a phase of random actions."""

    random_steps: int = 100_000
    """Steps of uniformly random actions before learning starts; the posterior never sees them. [released]"""
    draw_every: int = 250
    """Steps of each environment between two draws of w, whatever episodes begin between; with each draw the posterior
    takes in what was seen since the last. [released]"""


@dataclass(frozen=True)
class SuccessorConfig(TransitionConfig):
    """Train SU, Successor Uncertainties: `python -m psdrl.train --algo successor --game Pong`."""

    preset: Preset = "auto"
    """Settings to start from; auto chooses by environment and device."""
    reward_transform: Literal["sign", "tanh", "none"] = "sign"
    """Applied to rewards before they are stored. [released: sign]"""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)
    posterior: PosteriorConfig = field(default_factory=PosteriorConfig)
    replay: FrameReplayConfig = field(default_factory=FrameReplayConfig)
    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)

    def check(self) -> None:
        """Refuse what cannot work."""
        super().check()
        at_least(self, _MINIMA)
        positive(self, ("posterior.beta", "posterior.ridge"))
        if not 0 <= self.posterior.forgetting < 1:
            raise UserError(f"--posterior.forgetting is {self.posterior.forgetting} but must lie in [0, 1).")


_MINIMA = {"network.features": 1, "network.initial_w": 0, "learning.draws": 1, "exploration.draw_every": 1}
