"""What the models know after an update, for the log: a bounded number of stored states, no random number.

Numbers of the newest episodes, whose hidden states are those that playing led to. Nothing here is read by training."""

from typing import NamedTuple

import torch
from torch import Tensor

from psdrl.agents.psdrl import oracle
from psdrl.agents.psdrl.learning import Latents
from psdrl.agents.psdrl.lookahead import Lookahead
from psdrl.agents.psdrl.models import Models
from psdrl.agents.psdrl.world_model import SampledModel
from psdrl.replay.episodes import Episode, Replay

STATES = 256  # most states that are looked at
WALKED = 2048  # most steps of the newest episodes that these are taken from
AHEAD = 5  # steps
EVERY = 8  # updates: at each one it would take a tenth of an update of DeepSea, 1 % of CartPole's

Metrics = dict[str, Tensor]


def newest(replay: Replay) -> list[Episode]:
    """The newest episodes, newest first, with at most WALKED transitions in all; of a longer one its beginning."""
    found: list[Episode] = []
    room = WALKED
    for episode in reversed(replay.episodes):
        if found and episode.length > room:
            break
        found.append(Episode(episode.start, min(episode.length, room)))
        room -= found[-1].length
    return found


class States(NamedTuple):
    """Stored states, and how many transitions of their episodes follow each."""

    slots: Tensor  # (n,)
    latents: Tensor  # (n, Z)
    hidden: Tensor  # (n, H)
    left: Tensor  # (n,) at least 1

    def at(self, rows: Tensor) -> "States":
        """Some of them."""
        return States(*(part[rows] for part in self))


@torch.no_grad()
def states(models: Models, replay: Replay, latents: Latents) -> States:
    """At most STATES states of the newest episodes, evenly spread."""
    some, model = newest(replay), models.forward_model
    slots, hidden = model.memory.states(model, replay, latents, some)
    left = torch.zeros(replay.num_slots, dtype=torch.int64)
    for start, length in some:
        left[(start + torch.arange(length)) % replay.num_slots] = torch.arange(length, 0, -1)
    rows = torch.linspace(0, len(slots) - 1, min(STATES, len(slots))).long().to(slots.device)
    kept = slots[rows]
    return States(kept, latents[kept], hidden[rows], left.to(kept.device)[kept])


@torch.no_grad()
def look(models: Models, replay: Replay, latents: Latents, sample: SampledModel, mean: SampledModel) -> Metrics:
    """All numbers: `explore/disagreement`, `reward/*` and `model/*`."""
    seen = states(models, replay, latents)
    found = {"explore/disagreement": disagreement(models, sample, mean, seen)}
    return found | predictions(models, replay, latents, sample, seen)


def disagreement(models: Models, sample: SampledModel, mean: SampledModel, seen: States) -> Tensor:
    """Share of the states where the greedy action of the draw is not that of the posterior mean, with the same value
    network; of equally good actions the first counts."""
    drawn, usual = (_greedy(models, each, seen) for each in (sample, mean))
    return (drawn != usual).double().mean()


def _greedy(models: Models, sample: SampledModel, seen: States) -> Tensor:
    """Actions (n,), as acting chooses them."""
    model, value = models.forward_model, models.acting_value
    none = seen.latents.new_zeros(len(seen.latents), model.num_actions)
    lookahead = Lookahead(model.fold(sample), models.termination, value)
    return lookahead.action(seen.latents, seen.hidden, none)[0]


def predictions(models: Models, replay: Replay, latents: Latents, sample: SampledModel, seen: States) -> Metrics:
    """Of the draw, with the actions that were taken: mean reward predicted and realised, the root mean squared
    difference of the two, and the error of z 1 and AHEAD steps ahead."""

    def step(some: States, k: int, z: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
        return oracle.step(models, sample, z, replay.actions[(some.slots + k) % replay.num_slots], hidden)

    z, hidden, reward, _ = step(seen, 0, seen.latents, seen.hidden)
    realised = replay.rewards[seen.slots].double()
    found = {
        "reward/predicted": reward.double().mean(),
        "reward/realised": realised.mean(),
        "reward/error": (reward.double() - realised).square().mean().sqrt(),
        **_error(replay, latents, seen, z, 1),
    }
    rows = (seen.left >= AHEAD).nonzero().squeeze(1)
    if not len(rows):
        return found
    some, z, hidden = seen.at(rows), z[rows], hidden[rows]
    for k in range(1, AHEAD):
        z, hidden, _, _ = step(some, k, z, hidden)
    return found | _error(replay, latents, some, z, AHEAD)


def _error(replay: Replay, latents: Latents, seen: States, predicted: Tensor, steps: int) -> Metrics:
    """Squared error of z, divided by that of copying the present state; none where nothing moves."""
    truth = latents[(seen.slots + steps) % replay.num_slots]
    moved = (seen.latents - truth).double().square().sum()
    return {f"model/error_{steps}": (predicted - truth).double().square().sum() / moved} if moved > 0 else {}
