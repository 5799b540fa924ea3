"""A baseline of our own writing with the structure of the authors' released code.

Frames are encoded again at every use, networks run one time step at a time, every action has a forward-model call of
its own, episodes are padded to the longest, and the posterior has one mean per output. It computes the same numbers
as the plain path with the paper's sampling rule; only the structure is theirs.
"""

import torch

from psdrl.config import Config
from psdrl.models import Models
from psdrl.plain import EncodeOnUse, train_autoencoder, train_forward, train_value
from psdrl.replay import Replay

__all__ = ["EncodeOnUse", "posterior_mean", "train_autoencoder", "train_forward", "train_value"]


@torch.no_grad()
def posterior_mean(models: Models, replay: Replay, config: Config) -> tuple[torch.Tensor, torch.Tensor]:
    """Means (Z + 1, k) and the covariance's Cholesky factor, from materialised features, one output at a time."""
    latents, forward_model = EncodeOnUse(models, replay), models.forward_model
    longest = max(episode.length for episode in replay.episodes)
    starts = torch.tensor([episode.start for episode in replay.episodes])
    lengths = torch.tensor([episode.length for episode in replay.episodes])
    hidden = forward_model.output.weight.new_zeros(len(starts), config.forward.recurrent)
    features, targets = [], []
    for t in range(longest):
        now = (starts + torch.minimum(torch.tensor(t), lengths - 1)) % replay.num_slots  # padded
        z, following, actions = latents[now], latents[(now + 1) % replay.num_slots], replay.actions[now]
        hidden = forward_model.next_hidden(z, actions, hidden)
        real = lengths > t
        features.append(forward_model.features(hidden, z, actions)[real])
        targets.append(torch.cat([following, replay.rewards[now, None].to(z)], 1)[real])
    phi, y = torch.cat(features).double(), torch.cat(targets).double()
    p = config.posterior
    precision = torch.eye(phi.shape[1], dtype=torch.float64) / p.prior_latent + phi.T @ phi / p.noise_latent
    covariance = torch.linalg.inv(precision)
    means = [covariance @ (phi.T @ y[:, j]) / p.noise_latent for j in range(y.shape[1])]
    return torch.stack(means), torch.linalg.cholesky(covariance)
