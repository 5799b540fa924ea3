"""What has the agent learned? Questions to its models about stored transitions, and about episodes whose true state is
known: `psdrl probe RUN`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psdrl.agents.psdrl import oracle
from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.agents.psdrl.lookahead import predict
from psdrl.agents.psdrl.models import Models
from psdrl.agents.psdrl.value import THRESHOLD
from psdrl.agents.psdrl.world_model import SampledModel
from psdrl.replay.episodes import Replay

STARTS = 2000  # most states from which the model is rolled out
RIDGE = 1.0  # of read-outs, on numbers of about unit size


class Answers(NamedTuple):
    """Averages over the stored transitions."""

    ends: int
    ends_found: float  # share of the ends that are recognised
    false_ends: float  # share of the other states that are taken for an end
    ends_foreseen: float  # the same of the states that the sampled model predicts, which is what planning asks about
    false_foreseen: float
    reward_there: float  # predicted, where the reward was not zero
    reward_was: float
    reward_elsewhere: float  # mean absolute prediction where it was zero
    value: float
    following: float  # discounted return that followed
    correlation: float  # of the two
    gap: float  # best less worst action, of the one-step return


class Ahead(NamedTuple):
    """The model's predictions so many steps ahead, with the actions that were taken."""

    steps: int
    error: float  # squared error of z, divided by that of copying the present state
    reward: float  # correlation of predicted and real reward within these steps


class ReadOut(NamedTuple):
    """A number of the true state, read linearly from z in episodes that the read-out has not seen."""

    name: str
    r2: float  # share of its variance that the read-out explains
    off: float  # root mean squared error of the read-out, in units of the number
    ahead: dict[int, float]  # the same of predicted z, so many steps ahead
    copied: dict[int, float]  # the same if nothing moved


class Recorded(NamedTuple):
    """An episode that was played: observations s_0 ... s_T, actions a_0 ... a_{T-1}, numbers of its true state."""

    observations: NDArray  # (T + 1, ...)
    actions: NDArray[np.int64]  # (T,)
    labels: NDArray[np.float64]  # (T + 1, labels)


def returns_after(rewards: Tensor, discount: float) -> Tensor:
    """Discounted return (n,) from each step of an episode on."""
    total, after = 0.0, torch.zeros_like(rewards)
    for t in range(len(rewards) - 1, -1, -1):
        total = float(rewards[t]) + discount * total
        after[t] = total
    return after


class Stored(NamedTuple):
    """The replay buffer as the models see it, with the scale of the last update."""

    latents: Tensor  # (slots, Z)
    hidden: Tensor  # (slots, H)

    @classmethod
    @torch.no_grad()
    def of(cls, agent: PsdrlAgent) -> "Stored":
        """Encode what is stored, and walk through its episodes."""
        models, replay, rows = agent.models, agent.replay, agent.config.chunk_rows
        like = next(models.forward_model.parameters())
        latents = like.new_zeros(replay.num_slots, models.autoencoder.latent_size)
        for slots in replay.stored_slots().split(256):
            latents[slots] = models.autoencoder.encode(replay.frames(slots)).to(like)
        return cls(latents, models.forward_model.memory.hidden_states(models.forward_model, replay, latents, rows))


@torch.no_grad()
def answers(agent: PsdrlAgent, stored: Stored) -> Answers:
    """Ask the agent's models about all that is stored.

    In episodes that were cut by a time limit the return lacks what would have come, so V may lie above it there."""
    models, replay, config = agent.models, agent.replay, agent.config
    world, parts = models.forward_model.fold(agent.model), []
    for episode in replay.episodes:
        slots = (episode.start + torch.arange(episode.length)) % replay.num_slots
        z, h = stored.latents[slots], stored.hidden[slots]
        ahead = predict(world, models.termination, z, h)
        returns = ahead.returns(models.acting_value)
        did = (torch.arange(episode.length), replay.actions[slots])
        parts.append(
            (
                models.termination(stored.latents[(slots + 1) % replay.num_slots]) >= THRESHOLD,
                ahead.omega[did] >= THRESHOLD,
                replay.terminated[slots] > 0,
                ahead.rewards[did],
                replay.rewards[slots],
                models.acting_value(torch.cat([z, h], 1)),
                returns_after(replay.rewards[slots], config.value.discount),
                returns.amax(1) - returns.amin(1),
            )
        )
    found, foreseen, ended, taken, reward, value, following, gap = (torch.cat(p) for p in zip(*parts, strict=True))
    paid = reward != 0
    return Answers(
        ends=int(ended.sum()),
        ends_found=float(found[ended].float().mean()),
        false_ends=float(found[~ended].float().mean()),
        ends_foreseen=float(foreseen[ended].float().mean()),
        false_foreseen=float(foreseen[~ended].float().mean()),
        reward_there=float(taken[paid].mean()),
        reward_was=float(reward[paid].mean()),
        reward_elsewhere=float(taken[~paid].abs().mean()),
        value=float(value.mean()),
        following=float(following.mean()),
        correlation=_correlation(value, following),
        gap=float(gap.mean()),
    )


def _correlation(x: Tensor, y: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([x.double(), y.double()]))[0, 1])


def starts(replay: Replay, steps: int, most: int = STARTS) -> Tensor:
    """Slots (n,) that so many steps of the same episode follow, evenly spread over the buffer."""
    slots = [torch.arange(e.start, e.start + e.length - steps + 1) for e in replay.episodes if e.length >= steps]
    if not slots:
        return torch.empty(0, dtype=torch.long)
    all_slots = torch.cat(slots) % replay.num_slots
    return all_slots[torch.linspace(0, len(all_slots) - 1, min(most, len(all_slots))).long().unique()]


@torch.no_grad()
def followed(
    models: Models, sample: SampledModel, z: Tensor, hidden: Tensor, actions: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """z^ (n, Z) and r^ (n,) after each of the actions (n,), from one prediction to the next."""
    latents, rewards = [], []
    for action in actions:
        z, hidden, reward, _ = oracle.step(models, sample, z, action, hidden)
        latents.append(z)
        rewards.append(reward)
    return latents, rewards


@torch.no_grad()
def ahead(agent: PsdrlAgent, stored: Stored, sample: SampledModel, horizons: Sequence[int]) -> list[Ahead]:
    """How well a model predicts what followed in the buffer; horizons that no episode reaches are left out."""
    replay, found = agent.replay, []
    for steps in horizons:
        first = starts(replay, steps)
        if not len(first):
            continue
        path = [(first + k) % replay.num_slots for k in range(steps + 1)]
        z, parts = stored.latents, []
        for rows in torch.arange(len(first)).split(256):
            actions = [replay.actions[slots[rows]] for slots in path[:-1]]
            latents, rewards = followed(agent.models, sample, z[first[rows]], stored.hidden[first[rows]], actions)
            parts.append((latents[-1], torch.stack(rewards).sum(0)))
        prediction, reward = (torch.cat(p) for p in zip(*parts, strict=True))
        real = torch.stack([replay.rewards[slots] for slots in path[:-1]]).sum(0)
        copying = (z[first] - z[path[-1]]).square().sum()
        error = (prediction - z[path[-1]]).square().sum() / copying
        found.append(Ahead(steps, float(error), _correlation(reward, real)))
    return found


@torch.no_grad()
def read_outs(
    agent: PsdrlAgent, sample: SampledModel, episodes: Sequence[Recorded], names: Sequence[str], horizons: Sequence[int]
) -> list[ReadOut]:
    """Ridge regression of the true state's numbers on z in every other episode, tested in the rest."""
    models, model = agent.models, agent.models.forward_model
    seen = []
    for episode in episodes:
        frames, actions, labels = (torch.from_numpy(part).to(agent.device) for part in episode)
        z = torch.cat([models.autoencoder.encode(part) for part in frames.split(256)]).to(model.output.weight)
        seen.append((z, actions, labels))
    fitted, tested = seen[::2], seen[1::2]
    x, y = (torch.cat([part[i] for part in fitted]).double() for i in (0, 2))
    mean, centre = x.mean(0), y.mean(0)
    weight = torch.linalg.solve(
        (x - mean).T @ (x - mean) + RIDGE * torch.eye(x.shape[1]).to(x), (x - mean).T @ (y - centre)
    )

    def read(z: Tensor) -> Tensor:
        return (z.double() - mean) @ weight + centre

    def off(errors: list[Tensor]) -> Tensor:
        return torch.cat(errors).square().mean(0).sqrt()

    truth = torch.cat([labels for _, _, labels in tested])
    now = off([read(z) - labels for z, _, labels in tested])
    later, copied = {}, {}
    for steps in horizons:
        parts = [_later(models, sample, *episode, steps) for episode in tested if len(episode[1]) >= steps]
        if parts:
            later[steps] = off([read(z) - labels[steps:] for z, labels in parts])
            copied[steps] = off([labels[:-steps] - labels[steps:] for _, labels in parts])
    r2 = 1 - (now / truth.std(0, correction=0)).square()
    return [
        ReadOut(
            name,
            float(r2[i]),
            float(now[i]),
            {steps: float(error[i]) for steps, error in later.items()},
            {steps: float(error[i]) for steps, error in copied.items()},
        )
        for i, name in enumerate(names)
    ]


def _later(
    models: Models, sample: SampledModel, z: Tensor, actions: Tensor, labels: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    """z^ (T - k + 1, Z) that many steps after each state of an episode, and the episode's labels."""
    model, hidden = models.forward_model, [models.forward_model.no_hidden(1)]
    for t in range(len(actions)):
        hidden.append(model.next_hidden(z[t : t + 1], actions[t : t + 1], hidden[-1]))
    count = len(z) - steps
    taken = [actions[k : k + count] for k in range(steps)]
    latents, _ = followed(models, sample, z[:count], torch.cat(hidden)[:count], taken)
    return latents[-1], labels


def probe(
    agent: PsdrlAgent, episodes: Sequence[Recorded], names: Sequence[str], horizons: Sequence[int]
) -> dict[str, Any]:
    """All answers: of the stored transitions, of predictions further ahead, of read-outs from recorded episodes."""
    stored = Stored.of(agent)
    found: dict[str, Any] = {"stored": answers(agent, stored)._asdict()}
    mean = agent.draw(mean=True)
    for name, sample in (("sampled model", agent.model), ("posterior mean", mean)):
        found[name] = [row._asdict() for row in ahead(agent, stored, sample, horizons)]
    if len(episodes) > 1 and names:
        found["read-outs"] = [row._asdict() for row in read_outs(agent, agent.model, episodes, names, horizons)]
    return found
