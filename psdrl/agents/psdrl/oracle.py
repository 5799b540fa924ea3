"""The plain path: every phase of an update as the paper writes it, step by step.

It is the oracle of the fast path (`learning`, `posterior`, `planning`), has the same signatures, and serves
`--update-path plain`. Frames are encoded whenever they are used, the networks run one time step at a time, and every
action gets a forward-model call of its own.
"""

import torch
from torch import Tensor

from psdrl.agents.psdrl.encoder import Encoder
from psdrl.agents.psdrl.learning import Latents, Losses, Optimisers, Sampler, forward_loss, gradient_step
from psdrl.agents.psdrl.lookahead import lookahead
from psdrl.agents.psdrl.models import Models, SampledModel, value_of
from psdrl.agents.psdrl.planning import follow
from psdrl.agents.psdrl.regression import Statistics
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.replay.episodes import Replay


class EncodeOnUse:
    """Latent states of replay slots, encoded at every use."""

    def __init__(self, models: Models, replay: Replay) -> None:
        self.models, self.replay = models, replay
        if models.needs_refresh:
            models.refresh(self._encoded(replay.stored_slots()), replay.rewards[replay.transition_slots()])

    @torch.no_grad()
    def __getitem__(self, slots: Tensor) -> Tensor:
        """z (n, Z) of the observations in slots (n,)."""
        return self.models.scaled(self._encoded(slots))

    @torch.no_grad()
    def _encoded(self, slots: Tensor) -> Tensor:
        return self.models.autoencoder.encode_plainly(self.replay.frames(slots))


def autoencoder_loss(autoencoder: Encoder, observations: Tensor, reduction: str) -> Tensor:
    """Eq. 1 for observations (n, c, 64, 64): squared error of the reconstruction, averaged over n."""
    images, reconstructed = autoencoder.reconstruct_plainly(observations)
    error = (reconstructed - images).square().flatten(1)
    return (error.sum(1) if reduction == "sum" else error.mean(1)).mean()


def train_autoencoder(
    models: Models, optimisers: Optimisers, replay: Replay, sample: Sampler, config: PsdrlConfig
) -> Losses:
    """Line 6 of Algorithm 1: per iteration B gradient steps, each on the L observations of one sequence."""
    autoencoder = models.autoencoder
    if not autoencoder.trained:
        return {}
    losses = []
    for _ in range(config.autoencoder.iterations):
        for slots in sample().slots[:, :-1]:
            loss = autoencoder_loss(autoencoder, replay.frames(slots), config.loss_reduction)
            gradient_step(optimisers["autoencoder"], loss)
            losses.append(loss.detach())
    return {"autoencoder": torch.stack(losses).mean()} if losses else {}


def train_forward(
    models: Models, optimisers: Optimisers, latents: Latents, sample: Sampler, config: PsdrlConfig
) -> Losses:
    """Lines 7 and 8: windows of l steps of truncated backpropagation through time, the hidden state carried on."""
    forward_model, termination = models.forward_model, models.termination
    losses, termination_losses = [], []
    for _ in range(config.forward.iterations):
        batch = sample()
        size, length = batch.actions.shape
        hidden = forward_model.output.weight.new_zeros(size, config.forward.hidden)
        for start in range(0, length, config.forward.window):
            loss = termination_loss = torch.zeros((), device=hidden.device)
            steps = range(start, min(start + config.forward.window, length))
            hidden = hidden.detach()
            for t in steps:
                now, following = latents[batch.slots[:, t]], latents[batch.slots[:, t + 1]]
                prediction, hidden = forward_model(now, batch.actions[:, t], hidden)
                target = torch.cat([following, batch.rewards[:, t, None].to(now)], 1)
                error = forward_loss(prediction, target, models.reward_weight, config.loss_reduction)
                loss = loss + error / len(steps)
                delta = batch.terminated[:, t]
                states = [following]
                if config.termination.predicted:
                    states.append(prediction[:, :-1].detach())
                for state in states:
                    squared = (termination(state) - delta).square()
                    error = (torch.where(delta > 0, config.termination.weight, 1.0) * squared).mean()
                    termination_loss = termination_loss + error / len(steps) / len(states)
            gradient_step(optimisers["forward"], loss)
            gradient_step(optimisers["termination"], termination_loss)
            losses.append(loss.detach())
            termination_losses.append(termination_loss.detach())
    if not losses:
        return {}
    return {"forward": torch.stack(losses).mean(), "termination": torch.stack(termination_losses).mean()}


@torch.no_grad()
def buffer_statistics(models: Models, replay: Replay, latents: Latents) -> Statistics:
    """Features and targets of all stored transitions. Hidden states run from zero through each whole episode; at
    time t the episodes that are still running go on together, so nothing is padded."""
    forward_model = models.forward_model
    statistics = forward_model.statistics(replay.device)
    episodes = sorted(replay.episodes, key=lambda episode: -episode.length)
    starts = torch.tensor([episode.start for episode in episodes], device=replay.device)
    lengths = torch.tensor([episode.length for episode in episodes])
    hidden = forward_model.output.weight.new_zeros(len(episodes), forward_model.gru.hidden_size)
    for t in range(int(lengths.max())):
        active = int((lengths > t).sum())
        now = (starts[:active] + t) % replay.num_slots
        z, following, actions = latents[now], latents[(now + 1) % replay.num_slots], replay.actions[now]
        hidden = forward_model.next_hidden(z, actions, hidden[:active])
        targets = torch.cat([following, replay.rewards[now, None].to(z)], 1)
        statistics.add(forward_model.features(hidden, z, actions), targets)
    return statistics


@torch.no_grad()
def hidden_states(models: Models, replay: Replay, latents: Latents) -> Tensor:
    """h_t (slots, H) of all stored states but the last of each episode; episodes that still run go on together."""
    forward_model = models.forward_model
    table = forward_model.output.weight.new_zeros(replay.num_slots, forward_model.gru.hidden_size)
    for t in range(max(episode.length for episode in replay.episodes) - 1):
        starts = [episode.start for episode in replay.episodes if episode.length > t + 1]
        now = (torch.tensor(starts, device=replay.device) + t) % replay.num_slots
        hidden = forward_model.next_hidden(latents[now], replay.actions[now], table[now])
        table[(now + 1) % replay.num_slots] = hidden
    return table


def train_value(
    models: Models,
    optimisers: Optimisers,
    latents: Latents,
    sample: Sampler,
    model: SampledModel,
    config: PsdrlConfig,
    hidden_states: Tensor | None = None,
) -> Losses:
    """Line 12: per iteration one sweep through a batch, one gradient step per time step.

    Sequences start with h = 0, or with that of their first state in `hidden_states` (slots, H)."""
    losses = []
    for _ in range(config.planning_iterations):
        batch = sample()
        size, length = batch.actions.shape
        hidden = model.weight.new_zeros(size, config.forward.hidden)
        if hidden_states is not None:
            hidden = hidden_states[batch.slots[:, 0]]
        along = [hidden]
        with torch.no_grad():
            for t in range(length - 1):
                z = latents[batch.slots[:, t]]
                along.append(models.forward_model.next_hidden(z, batch.actions[:, t], along[-1]))
        times = range(length) if config.value.sweep == "forward" else reversed(range(length))
        for done, t in enumerate(times):
            if done % config.value.target_every == 0:
                follow(models.value, models.target, config.value.target_rate)
            hidden = along[t]
            with torch.no_grad():
                z = latents[batch.slots[:, t]]
                ahead = lookahead(
                    models.forward_model,
                    model,
                    models.termination,
                    models.target,
                    z,
                    hidden,
                    config.value.discount,
                    config.termination.threshold,
                )
                share = config.value.random_share
                target = (1 - share) * ahead.returns.amax(1) + share * ahead.returns.mean(1)
            errors = torch.stack([value_of(network, z, hidden) - target for network in models.value])
            loss = errors.square().mean(1)  # of each network
            gradient_step(optimisers["value"], loss.sum())
            losses.append(loss.detach().mean())
    return {"value": torch.stack(losses).mean()} if losses else {}
