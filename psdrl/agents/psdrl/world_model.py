"""The interface of world models (Eq. 2): a recurrent feature map, an output layer that the posterior replaces by draws.

`flat_model.FlatModel` is the paper's, `grid_model.GridModel` treats all cells of a grid alike. Learning, posterior,
planning and acting know this interface only."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from psdrl.agents.psdrl.descent import Tapping
from psdrl.agents.psdrl.memory import Memory, Memoryless
from psdrl.agents.psdrl.networks import TanhLayer, one_hot, plain_tanh
from psdrl.agents.psdrl.regression import Statistics
from psdrl.agents.psdrl.settings import ForwardConfig
from psdrl.kernels.window_steps import WindowNet
from psdrl.replay.episodes import Replay

if TYPE_CHECKING:
    from psdrl.agents.psdrl.narrow import Narrow


class SampledWorld(Protocol):
    """A world model with a sampled output layer, prepared for the predictions of all actions."""

    @property
    def num_actions(self) -> int:
        """A."""

    def predict(self, latents: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[z^, r^] (n A, Z + 1) of all actions, and h' (n A, H), from latent states (n, Z) and hidden states (n, H).
        Further columns of the first are not looked at."""


@dataclass
class SampledModel:
    """An output layer for the world model: a draw W~ from the posterior, or the trained W with its bias."""

    weight: Tensor  # (Z + 1, k)
    bias: Tensor  # (Z + 1,), zero for a draw: the posterior has no bias
    world: SampledWorld | None = field(default=None, repr=False)  # filled by `WorldModel.fold`


class WorldModel(nn.Module, ABC):
    """Forward model f (Fig. 1b): GRU cell, feature map phi on [h', z, onehot(a)], linear output layer W.

    Features may have any type that the model's own `predicted` and `statistics` understand."""

    output: nn.Linear  # the bias serves only the no-sampling ablations

    def __init__(self, latent: int, num_actions: int, config: ForwardConfig, reduction: str = "sum") -> None:
        """`reduction` of the squared errors over dimensions: sum [paper] or mean."""
        super().__init__()
        self.latent_size, self.num_actions, self.hidden_size = latent, num_actions, config.hidden
        self.gru = nn.GRUCell(latent + num_actions, config.hidden)
        self.memory = Memory() if config.recurrent else Memoryless(self.gru)
        self.reduction, self._automatic = reduction, config.reward_weight == 0
        self.reward_weight: Tensor
        self.register_buffer("reward_weight", torch.tensor(config.reward_weight or 1.0))

    @property
    def rows_per_state(self) -> int:
        """Rows that the feature network sees of each state and action."""
        return 1

    @property
    def widest(self) -> int:
        """Numbers that the widest layer holds of a state and action, if that is more than a row; for the cost model."""
        return 0

    def tapped_layers(self) -> list[nn.Linear]:
        """Layers whose gradient and step may be one kernel (`descent`), in the order in which `tapped` asks them."""
        return []

    def tapped(self, x: Tensor, tapping: Tapping) -> Tensor:
        """The prediction [z', r] (n, Z + 1) with the trained output layer from x = [h', z, onehot(a)], by these."""
        raise NotImplementedError

    def window_net(self) -> WindowNet | None:
        """The same as a network whose gradient steps csrc/ can take, if it is one."""
        return None

    @abstractmethod
    def feature_layers(self, x: Tensor, tanh_layer: TanhLayer = plain_tanh) -> Any:
        """Features phi(z, a, h) from x = [h', z, onehot(a)] (n, H + Z + A)."""

    @abstractmethod
    def predicted(self, features: Any, weight: Tensor, bias: Tensor) -> Tensor:
        """Prediction [z', r] (n, Z + 1) of features by an output layer."""

    @abstractmethod
    def statistics(self, device: torch.device) -> Statistics:
        """What Eq. 4 needs of features and targets, of no data yet."""

    @abstractmethod
    def prepare(self, sample: SampledModel) -> SampledWorld:
        """The world of a sampled model, which is asked for many predictions while the networks are fixed."""

    def fold(self, sample: SampledModel) -> SampledWorld:
        """The same, made once per sample: it belongs to the networks as they were when it was drawn."""
        sample.world = sample.world or self.prepare(sample)
        return sample.world

    def narrow(self, sample: SampledModel, rows: int) -> "Narrow | None":
        """The same world by codes, if for `rows` rows per target network these need fewer multiply-adds."""
        return None

    def by_scale(self, latents: Tensor) -> Tensor:
        """Latent states (n, Z) as rows of numbers, of which each column is to have one scale."""
        return latents

    def of_scale(self, numbers: Tensor) -> Tensor:
        """A number for each dimension (Z,), of one for each of these columns."""
        return numbers

    def automatic_reward_weight(self, variance: Tensor) -> Tensor:
        """The reward's weight in Eq. 2, from its variance in the buffer."""
        return (3 / variance).clamp(1, 1000)

    @torch.no_grad()
    def renew(self, replay: Replay) -> None:
        """Before its training: take the reward's weight from the stored rewards, if that is asked for."""
        if self._automatic:
            rewards = replay.rewards[replay.transition_slots()]
            self.reward_weight.copy_(self.automatic_reward_weight(rewards.double().var(correction=0)))

    def sampled(self, weight: Tensor | None) -> SampledModel:
        """Line 11: the model to plan with: a draw, or the trained output layer if there is none."""
        if weight is None:
            return SampledModel(self.output.weight.detach(), self.output.bias.detach())
        weight = weight.to(self.output.weight.dtype)
        return SampledModel(weight, weight.new_zeros(len(weight)))

    def no_hidden(self, count: int) -> Tensor:
        """h = 0 (count, H), as at the start of an episode."""
        return self.output.weight.new_zeros(count, self.hidden_size)

    def next_hidden(self, latents: Tensor, actions: Tensor, hidden: Tensor) -> Tensor:
        """h' (n, H) after actions (n,) in z (n, Z) with h (n, H)."""
        return self.gru(torch.cat([latents, one_hot(actions, self.num_actions, latents)], 1), hidden)

    @torch.no_grad()
    def flatten(self) -> None:
        """On a GPU, put the GRU's parameters into one piece of memory as cuDNN wants them, before anything keeps their
        addresses; else it copies all of them in every scan (21 MB at the paper's sizes)."""
        gru = self.gru
        weights = [gru.weight_ih, gru.weight_hh, gru.bias_ih, gru.bias_hh]
        if gru.weight_ih.is_cuda and torch.backends.cudnn.is_acceptable(gru.weight_ih):
            cudnn_gru = 3  # its number among cuDNN's kinds of recurrent networks
            torch._cudnn_rnn_flatten_weight(
                weights, len(weights), gru.input_size, cudnn_gru, gru.hidden_size, 0, 1, False, False
            )

    def scan(self, inputs: Tensor, hidden: Tensor, batch_sizes: Tensor | None = None) -> Tensor:
        """The GRU over time: inputs [z, onehot(a)] (T, B, Z + A) and h_0 (B, H) -> h_1 ... h_T (T, B, H).

        With `batch_sizes` (T,), as in a packed sequence, inputs and result are (rows, .), of fewer and fewer sequences.
        """
        weights = [self.gru.weight_ih, self.gru.weight_hh, self.gru.bias_ih, self.gru.bias_hh]
        train = torch.is_grad_enabled()  # cuDNN refuses to differentiate what ran in evaluation mode
        with torch.autocast(inputs.device.type, enabled=False):  # errors of the recurrence add up over time
            if batch_sizes is None:
                return torch.gru(inputs, hidden[None], weights, True, 1, 0.0, train, False, False)[0]
            return torch.gru(inputs, batch_sizes, hidden[None], weights, True, 1, 0.0, train, False)[0]

    def features(self, next_hidden: Tensor, latents: Tensor, actions: Tensor) -> Any:
        """Features phi(z, a, h); h enters through h'."""
        return self.feature_layers(torch.cat([next_hidden, latents, one_hot(actions, self.num_actions, latents)], 1))

    def forward(self, latents: Tensor, actions: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Prediction [z', r] (n, Z + 1) with the trained output layer, and h' (n, H)."""
        hidden = self.next_hidden(latents, actions, hidden)
        features = self.features(hidden, latents, actions)
        return self.predicted(features, self.output.weight, self.output.bias), hidden

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Eq. 2 for predictions and targets [z', r] (n, Z + 1): squared error, averaged over n."""
        error = (prediction - target).square()
        total = error[:, :-1].sum(1) + self.reward_weight * error[:, -1]
        return (total if self.reduction == "sum" else total / error.shape[1]).mean()
