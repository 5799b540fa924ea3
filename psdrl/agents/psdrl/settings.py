"""Every setting of PSDRL. Each default says where it comes from: [paper] its hyperparameter table or text, [released] a
fact of the authors' code that the paper leaves out, [ours] a choice of this implementation."""

from dataclasses import dataclass, field
from typing import Literal

from psdrl.agents.psdrl import validation
from psdrl.config import Config

Preset = Literal["auto", "paper", "cpu", "deepsea", "minatar", "control", "debug"]
Rule = Literal["exact", "mean", "released", "none"]


@dataclass(frozen=True)
class AutoencoderConfig:
    """Autoencoder (Eq. 1), used for image observations; vector observations are their own latent state."""

    channels: tuple[int, ...] = (48, 96, 192, 384)
    """Channels of the encoder's convolutions. [released]"""
    kernels: tuple[int, ...] = (4, 4, 4, 4)
    """Kernel sizes of the encoder's convolutions. [released]"""
    strides: tuple[int, ...] = (2, 2, 2, 2)
    """Strides of the encoder's convolutions. [released]"""
    decoder_kernels: tuple[int, ...] = (4, 4, 4, 5)
    """Kernel sizes of the decoder's transposed convolutions. [released]"""
    latent: int = 0
    """Latent dimensions by an additional linear layer; 0: the flattened last convolution, 1536. [paper]"""
    learning_rate: float = 1e-4
    """Adam's learning rate. [paper]"""
    iterations: int = 3
    """Training iterations per update, of B gradient steps with inner batch L each. [paper]"""
    mean_frame: bool = False
    """Subtract the mean of about 1,024 stored frames and scale what is left to unit variance; both are renewed in
    every update. [paper: no]"""


@dataclass(frozen=True)
class LatentConfig:
    """Scale of the latent states that all models see; refreshed once per update from the replay buffer."""

    standardise: bool = False
    """Subtract each dimension's mean and divide by its standard deviation; with places, each channel's. [paper: no;
    ours: docs/experiments.md]"""


@dataclass(frozen=True)
class ForwardConfig:
    """Forward model (Eq. 2): a GRU cell, a feature network, a linear output layer."""

    layers: int = 5
    """Layers of the network on [h', z, a], the linear output layer included. [paper]"""
    units: int = 2292
    """Units of each layer, and the number of features k. [paper]"""
    recurrent: int = 756
    """Recurrent hidden units; 0: no memory, for observations that say all: h stays zero, and states that are equal are
    predicted once. [paper]"""
    feature_activation: Literal["linear", "tanh"] = "linear"
    """Activation of the last feature layer. [released: linear]"""
    gain: float = 1.0
    """Factor on the initial weights of the first feature layer. [ours: 1 is PyTorch's initialisation]"""
    skip: bool = False
    """Also give the output layer the feature network's inputs [h', z, a], so that what stays as it was and what an
    action always does need not be learned by gradient steps. [paper: no; ours: docs/experiments.md]"""
    local: bool = False
    """One feature network and one output layer for all places of a latent state that is a grid (MinAtar; an autoencoder
    with latent 0): a place sees h', the 3 x 3 places around it and the action, which also has a factor for what each
    unit sees; the reward is linear in each unit's maximum over the places. Needs tanh features. [paper: no; ours:
    docs/experiments.md]"""
    window: int = 4
    """Steps l of truncated backpropagation through time. [paper; the released code has 5]"""
    learning_rate: float = 1e-4
    """Adam's learning rate. [paper]"""
    iterations: int = 3
    """Training iterations per update, of ceil(L/l) gradient steps each; the termination model shares them. [paper]"""
    reward_weight: float = 1.0
    """Weight of the reward's squared error in Eq. 2; 0: 3 / var(reward) of the buffer, within [1, 1000], or, with P
    places, P / var(reward), within [1, 100 P]: as much as a plane of standardised numbers. [paper: 1]"""

    @property
    def hidden(self) -> int:
        """Size of h: without memory one number, which stays zero."""
        return max(1, self.recurrent)


@dataclass(frozen=True)
class TerminationConfig:
    """Termination model (Eq. 3)."""

    layers: int = 4
    """Layers, the linear output layer included. [paper]"""
    units: int = 1536
    """Units of each hidden layer. [paper]"""
    learning_rate: float = 1e-4
    """Adam's learning rate. [paper]"""
    threshold: float = 0.5
    """A state is taken for absorbing if its estimate reaches this. [paper, Eq. 7]"""
    local: bool = False
    """The same hidden layers at every place of the grid, then their maximum over the places. [paper: no; ours:
    docs/experiments.md]"""
    predicted: bool = False
    """Learn from the forward model's predictions of the states as well as from the states: predictions are what
    planning asks about, and they are blurred. [paper: no; ours: docs/experiments.md]"""
    weight: float = 1.0
    """Weight of an absorbing state's squared error in Eq. 3: rare ends else stay below the threshold. [paper: 1]"""


@dataclass(frozen=True)
class ValueConfig:
    """Value network and planning (Eq. 5 to 7)."""

    layers: int = 5
    """Layers, the linear output layer included. [paper]"""
    units: int = 2292
    """Units of each hidden layer. [paper]"""
    learning_rate: float = 1e-4
    """Adam's learning rate. [paper]"""
    iterations: int = 3
    """Training iterations kappa per update, of L gradient steps each. [paper]"""
    target_every: int = 4
    """Gradient steps between two copies into the target network; the count restarts with each batch. [paper]"""
    target_rate: float = 1.0
    """How far the target network goes towards the value network at each of these copies; 1: all the way. [paper] Below
    1 it is an average of past value networks, and acting uses it too. [ours: docs/experiments.md]"""
    networks: int = 1
    """Value networks, trained on the same targets; what counts is the smallest of their values, for the best of several
    noisy ones is too high. [paper: 1; ours: docs/experiments.md]"""
    random_share: float = 0.0
    """Share of random actions that planning reckons with: targets mix the mean over actions into the maximum, so states
    from which a slip is fatal are worth less. [paper: 0; ours: docs/experiments.md]"""
    discount: float = 0.99
    """Discount factor gamma. [paper]"""
    sweep: Literal["forward", "backward"] = "forward"
    """Order of a sweep's gradient steps through the sequences: with time [paper, released], or against it: V's changes
    then reach the states before them in the same sweep. [ours: docs/experiments.md]"""
    start: Literal["zero", "episode"] = "zero"
    """Hidden state at the start of a sequence in planning: zero [paper], or what its episode up to there leads to, as
    in acting; sequences of L steps from zero never see the hidden states of long episodes."""


@dataclass(frozen=True)
class PosteriorConfig:
    """Bayesian linear regression on the output layer (Eq. 4)."""

    rule: Rule = "exact"
    """exact: draw from Eq. 4. released: the authors' code, w = mu + eps C with C = scale (Phi^T Phi + ridge I)^-1.
    mean: the mean of Eq. 4, a control without sampling. none: no posterior, the trained output layer."""
    prior_latent: float = 1e3
    """Prior variance sigma_S^2 of latent state parameters. [paper]"""
    prior_reward: float = 1e3
    """Prior variance sigma_R^2 of reward parameters. [paper]"""
    noise_latent: float = 1.0
    """Noise variance sigma^2 of the latent targets. [paper: 1 for all]"""
    noise_reward: float = 1.0
    """Noise variance sigma^2 of the reward target. [paper: 1 for all]"""
    released_ridge: float = 100.0
    """Ridge of rule `released`. [released]"""
    released_scale: float = 1e-3
    """Scale of rule `released`. [released]"""


@dataclass(frozen=True)
class ReplayConfig:
    """Replay buffer and batches."""

    capacity: int = 100_000
    """Capacity C in transitions; whole episodes leave first in, first out. [paper]"""
    batch: int = 125
    """Sequences B per batch. [paper]"""
    length: int = 250
    """Steps L per sequence; shrinks to the shortest episode while no episode is that long. [paper; released]"""
    ends: Literal["rare", "even"] = "rare"
    """How often an episode's last step is drawn: L times less than others, for sequences start anywhere within [paper,
    released: rare], or as often: they may hang over at both ends and are moved inside [ours: docs/experiments.md]."""
    device: Literal["auto", "device", "host"] = "auto"
    """Where the frames lie: on the run's device, or in (pinned) host memory, from where each batch is copied; auto: on
    the device if they take less than a quarter of its free memory. On a CPU both are the same. [ours]"""
    time_limit_terminates: bool = False
    """Store a time limit as a termination, as the released code does. [ours: truncation is not termination]"""


@dataclass(frozen=True)
class PolicyConfig:
    """Interaction with the environment."""

    update_every: int = 1000
    """Steps m between two updates. [paper]"""
    update_every_early: int = 250
    """Steps m between two updates in the early phase. [paper]"""
    early_steps: int = 100_000
    """Length of the early phase in steps. [paper]"""
    epsilon: float = 0.001
    """Policy noise: probability of a random action. [paper]"""
    random_action_hidden: Literal["advance", "keep"] = "advance"
    """What a random action does to the hidden state: advance [paper, line 17] or keep [released]."""


@dataclass(frozen=True)
class PsdrlConfig(Config):
    """Train PSDRL: `python -m psdrl.train --game Pong --compile`, or `--env deepsea-10` for a small problem."""

    preset: Preset = "auto"
    """Settings to start from; auto chooses by environment and device."""
    update_path: Literal["fast", "plain"] = "fast"
    """fast: exact reformulations, the same numbers up to float rounding. plain: the paper's loops, the oracle."""
    reward_transform: Literal["tanh", "none", "clip"] = "tanh"
    """Applied to rewards before they are stored. [released: tanh, with which the published scores were made]"""
    loss_reduction: Literal["sum", "mean"] = "sum"
    """Over dimensions in Eq. 1 and 2: sum [paper] or mean [released]."""
    autoencoder: AutoencoderConfig = field(default_factory=AutoencoderConfig)
    latent: LatentConfig = field(default_factory=LatentConfig)
    forward: ForwardConfig = field(default_factory=ForwardConfig)
    termination: TerminationConfig = field(default_factory=TerminationConfig)
    value: ValueConfig = field(default_factory=ValueConfig)
    posterior: PosteriorConfig = field(default_factory=PosteriorConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)

    @property
    def rule(self) -> Rule:
        """The sampling rule in force."""
        return self.posterior.rule

    @property
    def plans_within_episodes(self) -> bool:
        """Whether a state's h in planning is that of its episode: so it is set, or there is no memory, and h is 0."""
        return self.value.start == "episode" or self.forward.recurrent == 0

    @property
    def planning_iterations(self) -> int:
        """kappa."""
        return self.value.iterations

    def update_period(self, step: int) -> int:
        """Steps m between updates at this step."""
        return self.policy.update_every_early if step < self.policy.early_steps else self.policy.update_every

    def epsilon(self, step: int) -> float:
        """Probability of a random action at this step."""
        return self.policy.epsilon

    def check(self) -> None:
        """Refuse what cannot work."""
        super().check()
        validation.check(self)
