"""The plain path: every phase of an update as the paper writes it, step by step.

It is the oracle of the fast path (`learning`, `posterior`, `planning`), has the same signatures, and serves
`--update-path plain`. Frames are encoded whenever they are used, the networks run one time step at a time, and every
action gets a forward-model call of its own.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from psdrl.agents.psdrl.learning import Latents, Losses, Optimisers, Sampler, gradient_step
from psdrl.agents.psdrl.lookahead import Happened
from psdrl.agents.psdrl.models import Models
from psdrl.agents.psdrl.regression import Statistics
from psdrl.agents.psdrl.rollout import plain_sweep
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.agents.psdrl.value import THRESHOLD, MinEnsemble
from psdrl.agents.psdrl.world_model import SampledModel
from psdrl.replay.episodes import Replay


class EncodeOnUse:
    """Latent states of replay slots, encoded at every use."""

    def __init__(self, models: Models, replay: Replay) -> None:
        self.encoder, self.replay = models.autoencoder, replay
        self.encoder.renew_scale(lambda: self._latents(replay.stored_slots()), models.forward_model)

    @torch.no_grad()
    def __getitem__(self, slots: Tensor) -> Tensor:
        """z (n, Z) of the observations in slots (n,)."""
        return self.encoder.scaled(self._latents(slots))

    @torch.no_grad()
    def _latents(self, slots: Tensor) -> Tensor:
        return self.encoder.plain_latents(self.replay.frames(slots))


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
            loss = autoencoder.plain_loss(replay.frames(slots))
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
        hidden = forward_model.no_hidden(size)
        for start in range(0, length, config.forward.window):
            loss = termination_loss = torch.zeros((), device=hidden.device)
            steps = range(start, min(start + config.forward.window, length))
            hidden = hidden.detach()
            for t in steps:
                now, following = latents[batch.slots[:, t]], latents[batch.slots[:, t + 1]]
                prediction, hidden = forward_model(now, batch.actions[:, t], hidden)
                target = torch.cat([following, batch.rewards[:, t, None].to(now)], 1)
                loss = loss + forward_model.loss(prediction, target) / len(steps)
                for error in termination.plain_losses(following, batch.terminated[:, t], prediction[:, :-1].detach()):
                    termination_loss = termination_loss + error / len(steps)
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
    hidden = forward_model.no_hidden(len(episodes))
    for t in range(int(lengths.max())):
        active = int((lengths > t).sum())
        now = (starts[:active] + t) % replay.num_slots
        z, following, actions = latents[now], latents[(now + 1) % replay.num_slots], replay.actions[now]
        hidden = forward_model.next_hidden(z, actions, hidden[:active])
        targets = torch.cat([following, replay.rewards[now, None].to(z)], 1)
        statistics.add(forward_model.features(hidden, z, actions), targets)
    return statistics


class Lookahead(NamedTuple):
    """What each action leads to in the sampled model."""

    returns: Tensor  # (n, A) r^ + gamma * v^
    hidden: Tensor  # (n, A, H) h'


def step(models: Models, sample: SampledModel, z: Tensor, actions: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
    """z^ (n, Z), h' (n, H), r^ (n,) and omega (n,) of one action (n,) per state."""
    forward_model = models.forward_model
    h = forward_model.next_hidden(z, actions, hidden)
    prediction = forward_model.predicted(forward_model.features(h, z, actions), sample.weight, sample.bias)
    following = prediction[:, :-1]
    return following, h, prediction[:, -1], models.termination(following)


def lookahead(
    models: Models,
    sample: SampledModel,
    value: MinEnsemble,
    latents: Tensor,
    hidden: Tensor,
    steps: int = 1,
    happened: Happened | None = None,
) -> Lookahead:
    """Eq. 6 and 7: K-step returns of all actions from latent states (n, Z) with hidden states (n, H)."""
    returns, next_hidden = [], []
    errors = None if happened is None else surprises(models, sample, latents, hidden, happened)
    for action in range(models.forward_model.num_actions):
        actions = torch.full((len(latents),), action, device=latents.device)
        z, h, reward, omega = step(models, sample, latents, actions, hidden)
        if errors is not None:
            z, reward = z + errors[0], reward + errors[1]
            omega = models.termination(z) + errors[2]
        after = followed(models, sample, value, z, h, steps - 1)
        returns.append(reward + value.discount * torch.where(omega < THRESHOLD, after, 0.0))
        next_hidden.append(h)
    return Lookahead(torch.stack(returns, 1), torch.stack(next_hidden, 1))


def surprises(
    models: Models, sample: SampledModel, latents: Tensor, hidden: Tensor, happened: Happened
) -> tuple[Tensor, Tensor, Tensor]:
    """How far z' (n, Z), r and omega (n,) lay from what was predicted of the action taken; omega is that of the z' that
    followed."""
    z, _, reward, _ = step(models, sample, latents, happened.actions, hidden)
    omega = models.termination(happened.latents)
    return happened.latents - z, happened.rewards - reward, happened.ends - omega


def followed(
    models: Models, sample: SampledModel, value: MinEnsemble, latents: Tensor, hidden: Tensor, steps: int
) -> Tensor:
    """The return (n,) of V's greedy policy for so many steps of the sampled model, then V; of equally good actions it
    takes the first."""
    if not steps:
        return value(torch.cat([latents, hidden], 1))
    returns = lookahead(models, sample, value, latents, hidden).returns
    actions = torch.isclose(returns, returns.amax(1, keepdim=True)).int().argmax(1)
    z, h, reward, omega = step(models, sample, latents, actions, hidden)
    after = followed(models, sample, value, z, h, steps - 1)
    return reward + value.discount * torch.where(omega < THRESHOLD, after, 0.0)


def train_value(
    models: Models,
    optimisers: Optimisers,
    replay: Replay,
    latents: Latents,
    sample: Sampler,
    model: SampledModel,
    config: PsdrlConfig,
) -> Losses:
    """Line 12: per iteration one sweep through a batch, one gradient step per time step."""
    value, losses = models.value, []
    sweep = plain_sweep(models.forward_model, replay, latents, config)

    @torch.no_grad()
    def planned(slots: Tensor, z: Tensor, hidden: Tensor) -> Tensor:
        happened = Happened.at(replay, latents, slots) if config.value.hindsight else None
        return value.backup(lookahead(models, model, models.target, z, hidden, happened=happened).returns)

    for _ in range(config.planning_iterations):
        batch = sample()
        states, traced = list(sweep(batch)), None
        for done, (slots, z, hidden) in enumerate(states):
            if done % config.value.target_every == 0:
                value.update_target(models.target)
            if config.value.trace and done == 0:
                ahead = torch.stack([planned(*state) for state in states])
                traced = value.traced(ahead, batch.rewards.T, batch.terminated.T)
            target = planned(slots, z, hidden) if traced is None else traced[done]
            loss = value.losses(torch.cat([z, hidden], 1), target)
            gradient_step(optimisers["value"], loss.sum())
            losses.append(loss.detach().mean())
    return {"value": torch.stack(losses).mean()} if losses else {}
