"""A baseline of our own writing with the structure of the authors' released code.

Frames are encoded again at every use, networks run one time step at a time, the actions of all states are stacked into
one forward-model call, episodes are padded to the longest, and the posterior has one mean per output, all in PyTorch's
default layout and with its default optimiser. Where that is what the plain path does, the plain path's functions serve.
It computes the same numbers with the paper's sampling rule; only the structure is theirs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor

from psdrl.agents.psdrl import oracle
from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.agents.psdrl.autoencoder import Autoencoder
from psdrl.agents.psdrl.learning import make_optimisers
from psdrl.agents.psdrl.lookahead import Happened
from psdrl.agents.psdrl.models import Models
from psdrl.agents.psdrl.oracle import EncodeOnUse, Lookahead
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.agents.psdrl.value import THRESHOLD, MinEnsemble
from psdrl.agents.psdrl.world_model import SampledModel
from psdrl.kernels.convolution import GemmConv2d, GemmConvTranspose2d
from psdrl.replay.episodes import Replay


class DefaultLayout(Autoencoder):
    """The autoencoder in PyTorch's default memory layout, as the released code has it."""

    def images(self, observations: torch.Tensor) -> torch.Tensor:
        """Observations as numbers in [0, 1], channels first."""
        return observations.to(next(self.parameters()).dtype) / 255


def as_published(agent: PsdrlAgent) -> PsdrlAgent:
    """Put an agent's autoencoder into the default layout, and give it the optimisers PyTorch gives by default."""
    autoencoder = agent.models.autoencoder
    assert isinstance(autoencoder, Autoencoder)
    autoencoder.__class__ = DefaultLayout
    for layer in autoencoder.modules():
        if isinstance(layer, (GemmConv2d, GemmConvTranspose2d)):
            layer.__class__ = type(layer).__base__  # type: ignore[assignment]  # ATen's convolution
    autoencoder.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    agent.optimisers = make_optimisers(agent.models, agent.config, fused=False)
    return agent


def lookahead(
    models: Models,
    sample: SampledModel,
    value: MinEnsemble,
    latents: Tensor,
    hidden: Tensor,
    steps: int = 1,
    happened: Happened | None = None,
) -> Lookahead:
    """`oracle.lookahead` with the |A| actions of all states stacked into one call of every network; one step."""
    assert steps == 1, "the released code looks one step ahead"
    model, states = models.forward_model, len(latents)
    repeated = latents.repeat_interleave(model.num_actions, 0)
    actions = torch.arange(model.num_actions, device=latents.device).repeat(states)
    h = model.next_hidden(repeated, actions, hidden.repeat_interleave(model.num_actions, 0))
    prediction = model.predicted(model.features(h, repeated, actions), sample.weight, sample.bias)
    z, reward, unseen = prediction[:, :-1], prediction[:, -1], torch.zeros(())
    if happened is not None:
        errors = oracle.surprises(models, sample, latents, hidden, happened)
        of_z, of_reward, unseen = (error.repeat_interleave(model.num_actions, 0) for error in errors)
        z, reward = z + of_z, reward + of_reward
    omega = models.termination(z) + unseen
    following = torch.where(omega < THRESHOLD, value(torch.cat([z, h], 1)), 0.0)
    returns = reward + value.discount * following
    return Lookahead(returns.view(states, -1), h.view(states, model.num_actions, -1))


@contextmanager
def stacked() -> Iterator[None]:
    """The plain path within looks ahead as the released code does."""
    with mock.patch.object(oracle, "lookahead", lookahead):
        yield


@torch.no_grad()
def posterior_mean(models: Models, replay: Replay, config: PsdrlConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Means (Z + 1, k) and the covariance's Cholesky factor, from materialised features, one output at a time."""
    latents, forward_model = EncodeOnUse(models, replay), models.forward_model
    longest = max(episode.length for episode in replay.episodes)
    starts = torch.tensor([episode.start for episode in replay.episodes])
    lengths = torch.tensor([episode.length for episode in replay.episodes])
    hidden = forward_model.no_hidden(len(starts))
    features, targets = [], []
    for t in range(longest):
        now = (starts + torch.minimum(torch.tensor(t), lengths - 1)) % replay.num_slots  # padded
        z, following, actions = latents[now], latents[(now + 1) % replay.num_slots], replay.actions[now]
        hidden = forward_model.next_hidden(z, actions, hidden)
        real = lengths > t
        features.append(forward_model.features(hidden, z, actions)[real])
        targets.append(torch.cat([following, replay.rewards[now, None].to(z)], 1)[real])
    phi, y = torch.cat(features).double(), torch.cat(targets).double()
    prior, noise = config.posterior.prior[0], config.posterior.noise[0]
    precision = torch.eye(phi.shape[1], dtype=torch.float64) / prior + phi.T @ phi / noise
    covariance = torch.linalg.inv(precision)
    means = [covariance @ (phi.T @ y[:, j]) / noise for j in range(y.shape[1])]
    return torch.stack(means), torch.linalg.cholesky(covariance)
