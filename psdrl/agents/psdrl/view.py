"""What the models foresee of an episode, as numbers and decoded observations: `psdrl view RUN` draws them.

Predictions are the oracle's, one step and one action at a time."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psdrl.agents.psdrl import oracle
from psdrl.agents.psdrl.agent import TRANSFORMS, PsdrlAgent
from psdrl.agents.psdrl.value import THRESHOLD
from psdrl.agents.psdrl.world_model import SampledModel
from psdrl.errors import UserError

Numbers = NDArray[np.float64]
ROWS = 256  # states that the networks see at once


class Shown(NamedTuple):
    """A part of an episode, and the states before its steps: T steps from observations s_0 ... s_T."""

    observations: NDArray  # (T + 1, ...) as the environment gave them
    actions: NDArray[np.int64]  # (T,)
    rewards: Numbers  # (T,) as the agent stores them
    latents: Tensor  # (T + 1, Z)
    hidden: Tensor  # (T + 1, H)

    def part(self, start: int, steps: int) -> "Shown":
        """So many steps from `start` on."""
        states, taken = slice(start, start + steps + 1), slice(start, start + steps)
        return Shown(
            *(self.observations[states], self.actions[taken], self.rewards[taken]),
            *(self.latents[states], self.hidden[states]),
        )


@torch.no_grad()
def shown(agent: PsdrlAgent, observations: NDArray, actions: NDArray[np.int64], rewards: NDArray, raw: bool) -> Shown:
    """An episode from its start, h_0 = 0; `raw`: its rewards are the environment's, not yet transformed."""
    model, encoder = agent.models.forward_model, agent.models.autoencoder
    parts = torch.from_numpy(observations).to(agent.device).split(ROWS)
    latents = torch.cat([encoder.encode(part) for part in parts]).to(model.output.weight)
    taken, hidden = torch.from_numpy(actions).to(agent.device), [model.no_hidden(1)]
    for t in range(len(taken)):
        hidden.append(model.next_hidden(latents[t : t + 1], taken[t : t + 1], hidden[-1]))
    kept = TRANSFORMS[agent.config.reward_transform](rewards) if raw else rewards
    return Shown(observations, actions, np.asarray(kept, np.float64), latents, torch.cat(hidden))


def stored(agent: PsdrlAgent, number: int) -> Shown:
    """An episode of the replay buffer, 0 the newest."""
    replay = agent.replay
    if number >= len(replay.episodes):
        raise UserError(
            f"--episode is {number}, but the replay buffer holds {len(replay.episodes)}: use a smaller one."
        )
    episode = replay.episodes[-1 - number]
    slots = (episode.start + torch.arange(episode.length + 1)) % replay.num_slots
    slots = slots.to(replay.device)
    parts = (replay.frames(slots), replay.actions[slots[:-1]], replay.rewards[slots[:-1]])
    observations, actions, rewards = (part.cpu().numpy() for part in parts)
    return shown(agent, observations, actions, rewards, raw=False)


def truth(agent: PsdrlAgent, observations: NDArray) -> Numbers:
    """Observations (n, ...) on the scale of decoded ones."""
    numbers = observations.astype(np.float64)
    return numbers / 255 if agent.spec.kind == "image" else numbers


@torch.no_grad()
def decoded(agent: PsdrlAgent, latents: Tensor) -> Numbers:
    """Observations (..., *shape) of latent states (..., Z)."""
    flat = latents.reshape(-1, latents.shape[-1])
    try:
        parts = [agent.models.autoencoder.decode(part) for part in flat.split(ROWS)]
    except NotImplementedError:
        name = agent.config.encoder or type(agent.models.autoencoder).__name__
        raise UserError(f"--encoder {name} has no decode(latents): without it there is nothing to look at.") from None
    return torch.cat(parts).reshape(*latents.shape[:-1], *agent.spec.shape).double().cpu().numpy()


def samples(agent: PsdrlAgent, count: int, seed: int) -> list[SampledModel]:
    """Models drawn from the posterior, with a generator of their own; a single one if there is no posterior."""
    model, generator = agent.models.forward_model, torch.Generator(agent.device).manual_seed(seed)
    if agent.posterior.rule == "none":
        return [model.sampled(None)]
    return [model.sampled(weight) for weight in agent.posterior.draws(count, generator)]


class Prediction(NamedTuple):
    """One step ahead of each state, with the action that was taken."""

    observations: Numbers  # (T, ...) decoded
    rewards: Numbers  # (T,)


@torch.no_grad()
def prediction(agent: PsdrlAgent, episode: Shown) -> Prediction:
    """By the model that the agent sampled last."""
    taken = torch.from_numpy(episode.actions).to(agent.device)
    z, _, reward, _ = oracle.step(agent.models, agent.model, episode.latents[:-1], taken, episode.hidden[:-1])
    return Prediction(decoded(agent, z), reward.double().cpu().numpy())


class Rollouts(NamedTuple):
    """K models from the same state with the same actions; after each of T steps."""

    observations: Numbers  # (K, T, ...) decoded
    rewards: Numbers  # (K, T)
    values: Numbers  # (K, T) V(z^, h')

    @property
    def disagreement(self) -> Numbers:
        """Standard deviation over models (T, ...), of each number of the observation."""
        return self.observations.std(0)


@torch.no_grad()
def rollouts(agent: PsdrlAgent, episode: Shown, several: list[SampledModel]) -> Rollouts:
    """From the first state of the part, with its actions."""
    models, taken = agent.models, torch.from_numpy(episode.actions).to(agent.device)
    found = []
    for sample in several:
        z, hidden, steps = episode.latents[:1], episode.hidden[:1], []
        for action in taken.split(1):
            z, hidden, reward, _ = oracle.step(models, sample, z, action, hidden)
            steps.append((z, reward, models.acting_value(torch.cat([z, hidden], 1))))
        found.append([torch.cat(part) for part in zip(*steps, strict=True)])
    latents, rewards, values = (torch.stack(part) for part in zip(*found, strict=True))
    return Rollouts(decoded(agent, latents), rewards.double().cpu().numpy(), values.double().cpu().numpy())


class Choices(NamedTuple):
    """Where an action comes from: r^ and what follows, gamma 1[omega < 0.5] V, whose sum acting maximises."""

    rewards: Numbers  # (M, T, A); the posterior mean first, then the draws
    values: Numbers  # (M, T, A)

    @property
    def returns(self) -> Numbers:
        """(M, T, A)."""
        return self.rewards + self.values


@torch.no_grad()
def choices(agent: PsdrlAgent, episode: Shown, several: list[SampledModel]) -> Choices:
    """Of the posterior mean and of each draw, in every state of the part but its last."""
    models, value = agent.models, agent.models.acting_value
    z, hidden = episode.latents[:-1], episode.hidden[:-1]
    rewards, values = [], []
    for sample in [agent.draw(mean=True), *several]:
        for action in range(agent.spec.num_actions):
            taken = torch.full((len(z),), action, device=z.device)
            following, h, reward, omega = oracle.step(models, sample, z, taken, hidden)
            after = oracle.followed(models, sample, value, following, h, value.lookahead - 1)
            rewards.append(reward)
            values.append(value.discount * torch.where(omega < THRESHOLD, after, 0.0))
    shape = 1 + len(several), agent.spec.num_actions, len(z)
    parts = (torch.stack(x).view(shape).transpose(1, 2).double().cpu().numpy() for x in (rewards, values))
    return Choices(*parts)
