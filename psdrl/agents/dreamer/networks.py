"""The world model's networks: encoder and decoder of images and vectors, the recurrent state-space model, heads."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from psdrl.agents.dreamer.categorical import sample
from psdrl.agents.dreamer.settings import DreamerConfig, ModelConfig
from psdrl.envs.vector import EnvSpec
from psdrl.errors import UserError

SIDE = 64  # of images: the decoder's transposed convolutions end there
KERNELS, UP_KERNELS, STRIDE = (4, 4, 4, 4), (5, 5, 6, 6), 2
UPDATE_BIAS = -1.0  # of the GRU: it begins by keeping 73% of its state


class States(NamedTuple):
    """States of the recurrent model."""

    hidden: Tensor  # (..., H) h
    sample: Tensor  # (..., G C) z, one-hot

    @property
    def features(self) -> Tensor:
        """[z, h] (..., G C + H), what all heads see."""
        return torch.cat([self.sample, self.hidden], -1)


def elu_layers(inputs: int, layers: tuple[int, ...], outputs: int | None = None) -> nn.Sequential:
    """Linear layers, each followed by ELU, and perhaps a linear output."""
    parts: list[nn.Module] = []
    for units in layers:
        parts += [nn.Linear(inputs, units), nn.ELU()]
        inputs = units
    return nn.Sequential(*parts, *([nn.Linear(inputs, outputs)] if outputs is not None else []))


def initialise(network: nn.Module) -> None:
    """Glorot's uniform weights and zero biases, the defaults of the library that the released code uses."""
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class ImageEncoder(nn.Module):
    """Four convolutions, kernel 4, stride 2, no padding, ELU: 64 x 64 -> 31 -> 14 -> 6 -> 2."""

    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        widths = [channels, *(depth * 2**i for i in range(len(KERNELS)))]
        parts: list[nn.Module] = []
        for i, kernel in enumerate(KERNELS):
            parts += [nn.Conv2d(widths[i], widths[i + 1], kernel, STRIDE), nn.ELU()]
        self.layers, self.size = nn.Sequential(*parts, nn.Flatten()), 4 * widths[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings (n, E) of images (n, channels, 64, 64)."""
        return self.layers(x)


class ImageDecoder(nn.Module):
    """A linear layer to 32 depths, then four transposed convolutions: 1 -> 5 -> 13 -> 30 -> 64."""

    def __init__(self, features: int, channels: int, depth: int) -> None:
        super().__init__()
        widths = [32 * depth, 4 * depth, 2 * depth, depth, channels]
        self.first = nn.Linear(features, widths[0])
        parts: list[nn.Module] = []
        for i, kernel in enumerate(UP_KERNELS):
            parts += [nn.ConvTranspose2d(widths[i], widths[i + 1], kernel, STRIDE), nn.ELU()]
        self.layers = nn.Sequential(*parts[:-1])

    def forward(self, features: Tensor) -> Tensor:
        """Means (n, channels, 64, 64) of features (n, F)."""
        return self.layers(self.first(features)[:, :, None, None])


class VectorEncoder(nn.Module):
    """ELU layers."""

    def __init__(self, size: int, layers: tuple[int, ...]) -> None:
        super().__init__()
        self.layers, self.size = elu_layers(size, layers), (size, *layers)[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings (n, E) of vectors (n, size)."""
        return self.layers(x)


class RecurrentModel(nn.Module):
    """h_t = GRU(elu(W [z_{t-1}, a_{t-1}]), h_{t-1}); prior p(z_t | h_t); posterior q(z_t | h_t, embedding of o_t).

    Layers on several inputs are kept as one matrix per input: what does not depend on the last state (actions of all
    steps, embeddings of all observations) is computed before the scan over time, the prior of all steps after it.
    """

    def __init__(self, config: ModelConfig, embedding: int, num_actions: int) -> None:
        super().__init__()
        self.groups, self.classes, self.hidden = config.latents, config.classes, config.recurrent
        self.size = self.groups * self.classes
        units = config.units
        self.from_sample = nn.Linear(self.size, units)
        self.from_action = nn.Linear(num_actions, units, bias=False)
        self.gates = nn.Linear(units + self.hidden, 3 * self.hidden)
        self.norm = nn.LayerNorm(3 * self.hidden)
        self.prior = nn.Sequential(nn.Linear(self.hidden, units), nn.ELU(), nn.Linear(units, self.size))
        self.from_hidden = nn.Linear(self.hidden, units)
        self.from_embedding = nn.Linear(embedding, units, bias=False)
        self.posterior = nn.Linear(units, self.size)
        initialise(self)
        for parts in ((self.from_sample, self.from_action), (self.from_hidden, self.from_embedding)):
            bound = math.sqrt(6 / (sum(part.in_features for part in parts) + units))  # as one matrix would have it
            for part in parts:
                nn.init.uniform_(part.weight, -bound, bound)

    def start(self, rows: int) -> States:
        """Zeros (n, ...), before an episode's or a sequence's first observation."""
        weight = self.gates.weight
        return States(weight.new_zeros(rows, self.hidden), weight.new_zeros(rows, self.size))

    def action_inputs(self, actions: Tensor) -> Tensor:
        """W_a a (..., units) of actions (...): rows of the transposed matrix."""
        return F.embedding(actions, self.from_action.weight.T)

    def advance(self, state: States, action_input: Tensor) -> Tensor:
        """h_t (n, H) after states (n, ...) and actions, whose W_a a is given (n, units)."""
        x = F.elu(self.from_sample(state.sample) + action_input)
        parts = self.norm(self.gates(torch.cat([x, state.hidden.to(x.dtype)], -1))).to(state.hidden.dtype)
        reset, candidate, update = parts.chunk(3, -1)
        candidate = torch.tanh(torch.sigmoid(reset) * candidate)
        return torch.lerp(state.hidden, candidate, torch.sigmoid(update + UPDATE_BIAS))

    def prior_logits(self, hidden: Tensor) -> Tensor:
        """Logits (..., G, C) of p(z | h)."""
        return self._grouped(self.prior(hidden))

    def posterior_logits(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Logits (..., G, C) of q(z | h, o), with W_o embedding (..., units) given."""
        return self._grouped(self.posterior(F.elu(self.from_hidden(hidden) + embedded)))

    def _grouped(self, logits: Tensor) -> Tensor:
        """Logits as groups, in the parameters' type: softmax and KL are not formed in bfloat16."""
        return logits.to(self.gates.weight.dtype).unflatten(-1, (self.groups, self.classes))

    def observe(self, state: States, action_input: Tensor, embedded: Tensor, noise: Tensor) -> tuple[States, Tensor]:
        """The next states (n, ...) given observations, and the posterior's logits (n, G, C)."""
        hidden = self.advance(state, action_input)
        logits = self.posterior_logits(hidden, embedded)
        return States(hidden, sample(logits, noise).flatten(-2)), logits

    def foresee(self, state: States, action_input: Tensor, noise: Tensor) -> States:
        """The next states (n, ...) without observations."""
        hidden = self.advance(state, action_input)
        return States(hidden, sample(self.prior_logits(hidden), noise).flatten(-2))


class WorldModel(nn.Module):
    """Encoder, recurrent model, decoder, reward head, discount head."""

    def __init__(self, config: ModelConfig, spec: EnvSpec) -> None:
        super().__init__()
        self.spec = spec
        image = spec.kind == "image"
        if image and spec.shape[1:] != (SIDE, SIDE):
            raise UserError(f"dreamer needs images of {SIDE} x {SIDE} and got {spec.shape}: use --atari.size {SIDE}.")
        size = math.prod(spec.shape)
        channels = spec.shape[0]
        self.encoder: ImageEncoder | VectorEncoder = (
            ImageEncoder(channels, config.depth) if image else VectorEncoder(size, config.vector)
        )
        self.recurrent = RecurrentModel(config, self.encoder.size, spec.num_actions)
        features = self.recurrent.size + self.recurrent.hidden
        self.decoder: nn.Module = (
            ImageDecoder(features, channels, config.depth) if image else elu_layers(features, config.vector, size)
        )
        self.reward, self.discount = (elu_layers(features, config.heads, 1) for _ in range(2))
        for part in (self.encoder, self.decoder, self.reward, self.discount):
            initialise(part)
        shape = () if image else spec.shape
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("deviation", torch.ones(shape))

    def inputs(self, frames: Tensor) -> Tensor:
        """Observations (n, *shape) as the encoder sees them and the decoder predicts them: images in [-0.5, 0.5],
        vectors perhaps standardised."""
        x = frames.to(self.mean.dtype)
        return x / 255 - 0.5 if self.spec.kind == "image" else (x - self.mean) / self.deviation

    def embedded(self, inputs: Tensor) -> Tensor:
        """W_o embedding (n, units) of inputs (n, ...)."""
        return self.recurrent.from_embedding(self.encoder(inputs))


class Networks(nn.Module):
    """World model, actor, critic, and the slow critic."""

    def __init__(self, config: DreamerConfig, spec: EnvSpec) -> None:
        super().__init__()
        self.world = WorldModel(config.model, spec)
        features, layers = self.world.recurrent.size + self.world.recurrent.hidden, config.behaviour.layers
        self.actor = elu_layers(features, layers, spec.num_actions)
        self.critic, self.slow_critic = (elu_layers(features, layers, 1) for _ in range(2))
        for part in (self.actor, self.critic):
            initialise(part)
        self.slow_critic.requires_grad_(False)
        self.update_target()

    @torch.no_grad()
    def update_target(self) -> None:
        """Copy the critic into the slow critic, in place, where CUDA graphs read it."""
        old: list[Tensor] = list(self.slow_critic.parameters())
        new: list[Tensor] = list(self.critic.parameters())
        torch._foreach_copy_(old, new)
