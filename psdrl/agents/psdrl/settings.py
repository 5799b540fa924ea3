"""Every setting of PSDRL. Each default says where it comes from: [paper] its hyperparameter table or text, [released] a
fact of the authors' code that the paper leaves out, [ours] a choice of this implementation."""

from dataclasses import dataclass, field
from typing import Literal

from psdrl.agents.psdrl import validation
from psdrl.config import Config

Preset = Literal["auto", "paper", "cpu", "deepsea", "minatar", "control", "debug"]
Rule = Literal["exact", "mean", "released", "none"]
Quirk = Literal["mean-loss", "keep-hidden", "time-limit-ends"]
EARLY_STEPS = 100_000  # updates are more frequent until then [paper]


@dataclass(frozen=True)
class AutoencoderConfig:
    """Autoencoder (Eq. 1), used for image observations; vector observations are their own latent state."""

    channels: tuple[int, ...] = (48, 96, 192, 384)
    """Channels of the encoder's convolutions; `psdrl.agents.psdrl.autoencoder.layers` derives kernels, strides and the
    decoder's layers. [released]"""
    latent: int = 0
    """Latent dimensions by an additional linear layer; 0: the flattened last convolution, 1536. [paper]"""
    learning_rate: float = 1e-4
    """Adam's learning rate. [paper]"""
    iterations: int = 3
    """Training iterations per update, of B gradient steps with inner batch L each. [paper]"""


@dataclass(frozen=True)
class ForwardConfig:
    """Forward model (Eq. 2): a GRU cell, a feature network, a linear output layer."""

    layers: int = 5
    """Layers of the network on [h', z, a], the linear output layer included. [paper]"""
    units: int = 2292
    """Units of each layer, and the number of features k. [paper]"""
    recurrent: int = 756
    """Recurrent hidden units; 0: no recurrence, for fully observed problems: h stays zero, and equal states are
    predicted once. [paper]"""
    features: Literal["linear", "tanh", "tanh+inputs"] = "linear"
    """The last feature layer is linear [released] or tanh; tanh+inputs also hands the feature network's inputs
    [h', z, a] to the output layer, so what stays as it was needs no gradient steps. [ours: docs/experiments.md]"""
    gain: float = 1.0
    """Factor on the initial weights of the first feature layer. [ours: 1 is PyTorch's initialisation]"""
    window: int = 4
    """Steps l of truncated backpropagation through time. [paper; the released code has 5]"""
    learning_rate: float = 1e-4
    """Adam's learning rate. [paper]"""
    iterations: int = 3
    """Training iterations per update, of ceil(L/l) gradient steps each; the termination model shares them. [paper]"""
    reward_weight: float = 1.0
    """Weight of the reward's squared error in Eq. 2; 0: 3 / var(reward) of the buffer, within [1, 1000], or, on a grid
    of P cells, P / var(reward), within [1, 100 P]: as much as a plane of standardised numbers. [paper: 1]"""

    @property
    def hidden(self) -> int:
        """Size of h: without recurrence one number, which stays zero."""
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
    predicted: bool = False
    """Learn from predicted states as well as from stored ones: planning asks about predictions, which are blurred.
    [paper: no; ours: docs/experiments.md]"""
    weight: float = 1.0
    """Weight of an absorbing state's squared error in Eq. 3; with 1 the estimates of rare ends stay below 0.5.
    [paper: 1; ours: docs/experiments.md]"""


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
    """psi' <- psi' + rate (psi - psi') at each copy. [paper: 1] Below 1 the target network averages past value
    networks, and acting uses it. [ours: docs/experiments.md]"""
    networks: int = 1
    """Value networks, trained on the same targets; their minimum is used: a maximum over noisy estimates is biased
    upwards. [paper: 1; ours: docs/experiments.md]"""
    random_share: float = 0.0
    """target = (1 - share) max + share mean over actions: states from which a slip is fatal are worth less. [paper: 0;
    ours: docs/experiments.md]"""
    discount: float = 0.99
    """Discount factor gamma. [paper]"""
    lookahead: int = 1
    """Steps K that acting looks ahead in the sampled model: each action, then K - 1 steps of V's greedy policy, then V.
    [paper: 1; ours: docs/learning.md]"""
    hindsight: bool = False
    """Plan from stored transitions with what happened there: the prediction [z', r, omega] of every action is moved by
    the error of the one that was taken, so that only what another action would have changed is the model's. [paper: no;
    ours: docs/experiments.md]"""
    trace: float = 0.0
    """lambda of Peng's Q(lambda): y_t = (1 - lambda) m_t + lambda (r_t + gamma y_{t+1}) along stored sequences, where
    m_t is the target of Eq. 5 and y = m at the last step. The targets of a sweep are made at its start. [paper: 0;
    ours: docs/experiments.md]"""
    sweep: Literal["paper", "episode", "backward"] = "paper"
    """How planning goes through a batch. paper: with time, h = 0 at the start of a sequence. episode: every state has
    the h of its episode, as in acting; sequences of L steps from zero never see the hidden states of long episodes.
    backward: the same against time, so V's changes reach the states before them in the same sweep. [ours:
    docs/experiments.md]"""


@dataclass(frozen=True)
class PosteriorConfig:
    """Bayesian linear regression on the output layer (Eq. 4)."""

    rule: Rule = "exact"
    """exact: draw from Eq. 4. released: the authors' code, w = mu + eps C with C = 1e-3 (Phi^T Phi + 100 I)^-1.
    mean: the mean of Eq. 4, a control without sampling. none: no posterior, the trained output layer."""
    prior: tuple[float, ...] = (1e3, 1e3)
    """Prior variances sigma_S^2 of latent state parameters and sigma_R^2 of reward parameters; one: both. [paper]"""
    noise: tuple[float, ...] = (1.0, 1.0)
    """Noise variances sigma^2 of latent targets and of the reward; one: both. [paper: 1 for all]"""
    resample: float = 1.0
    """Probability that an update draws new noise eps for w = mu + L^-T eps. Below 1 a draw lasts several updates: it
    follows the posterior with the same eps, and planning has the time to follow it. [paper: 1; ours:
    docs/experiments.md]"""


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
    """How often an episode's last step is drawn: L times less often than others, because sequences start anywhere
    within [paper, released: rare], or as often: starts outside are moved inside [ours: docs/experiments.md]."""
    device: Literal["auto", "device", "host"] = "auto"
    """Where the frames lie: on the run's device, or in (pinned) host memory, from where each batch is copied; auto: on
    the device if they take less than a quarter of its free memory. On a CPU both are the same. [ours]"""


@dataclass(frozen=True)
class PolicyConfig:
    """Interaction with the environment."""

    update_every: tuple[int, ...] = (250, 1000)
    """Steps m between two updates, in the first 100,000 steps and after them; one number: throughout. [paper]"""
    epsilon: float = 0.001
    """Policy noise: probability of a random action. [paper]"""


@dataclass(frozen=True)
class PsdrlConfig(Config):
    """Train PSDRL: `python -m psdrl.train --game Pong --compile`, or `--env deepsea-10` for a small problem."""

    preset: Preset = "auto"
    """Settings to start from; auto chooses by environment and device."""
    update_path: Literal["fast", "plain"] = "fast"
    """fast: exact reformulations, the same numbers up to float rounding. plain: the paper's loops, the oracle."""
    reward_transform: Literal["tanh", "none", "clip"] = "tanh"
    """Applied to rewards before they are stored. [released: tanh, with which the published scores were made]"""
    released: tuple[Quirk, ...] = ()
    """What to do as the released code does where it departs from the paper. mean-loss: Eq. 1 and 2 average over
    dimensions instead of summing. keep-hidden: a random action does not advance h (line 17). time-limit-ends: a time
    limit is stored as a termination."""
    standardise: bool = False
    """Scale frames by their mean and contrast, and latent states per dimension (on a grid per channel) to mean 0 and
    variance 1, renewed from the buffer in every update. [paper: no; ours: docs/experiments.md]"""
    grid: bool = False
    """One feature network and one output layer for all cells of a latent state that is a grid (MinAtar; an autoencoder
    with latent 0), and the same for the termination model: a cell sees h', the 3 x 3 cells around it and the action;
    rewards and ends are linear in each unit's maximum over the cells. Needs tanh features. [paper: no; ours:
    docs/experiments.md]"""
    encoder: str | None = None
    """An encoder of one's own, MODULE:CLASS, instead of the autoencoder or the identity. See docs/library.md."""
    world_model: str | None = None
    """A world model of one's own, MODULE:CLASS, instead of the paper's. See docs/library.md."""
    autoencoder: AutoencoderConfig = field(default_factory=AutoencoderConfig)
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
    def loss_reduction(self) -> Literal["sum", "mean"]:
        """Over dimensions in Eq. 1 and 2."""
        return "mean" if "mean-loss" in self.released else "sum"

    @property
    def plans_within_episodes(self) -> bool:
        """Whether planning takes a state's h from its episode: as `sweep` says, or without recurrence, where h is 0."""
        return self.value.sweep != "paper" or self.forward.recurrent == 0

    @property
    def planning_iterations(self) -> int:
        """kappa."""
        return self.value.iterations

    def update_period(self, step: int) -> int:
        """Steps m between updates at this step."""
        return self.policy.update_every[0 if step < EARLY_STEPS else -1]

    def epsilon(self, step: int) -> float:
        """Probability of a random action at this step."""
        return self.policy.epsilon

    def check(self) -> None:
        """Refuse what cannot work."""
        super().check()
        validation.check(self)
