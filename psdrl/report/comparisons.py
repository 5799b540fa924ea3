"""Agents against each other and against the paper: numbers only, `bars` draws them."""

from collections.abc import Iterator
from itertools import permutations
from typing import NamedTuple

import numpy as np

from psdrl.envs.deepsea import deepsea_size
from psdrl.report import paper, statistics
from psdrl.report.outcomes import Outcome
from psdrl.report.protocols import Group
from psdrl.report.scores import score
from psdrl.report.statistics import Array, Estimate, Profile
from psdrl.report.style import LEVELS, label

CLIP = 2.5  # of differences, as they are drawn
FEW = 4  # agents of which each is compared with each in figures; of more, each with PSDRL
SEVERAL = 2  # games, at least, over which aggregates say more than their scores do


class Side(NamedTuple):
    """An agent of ours, or a column of the paper, with its scores: (seeds,) by environment, (1,) for the paper."""

    key: str
    name: str
    scores: dict[str, Array]
    published: bool = False

    def normalised(self, envs: list[str]) -> list[Array]:
        """Scores of these games on the scale where random play is 0 and the human gamer 1."""
        known = paper.constants()
        return [np.array([known[env].gamer(value) for value in self.scores[env]]) for env in envs]


def merit(run: Outcome) -> float | None:
    """What runs are compared by, the more the better: the score; on DeepSea, where a run may end when it has solved it,
    how soon that was. A run that had not solved it counts as later than any other."""
    if deepsea_size(run.env):
        return -float(run.solved) if run.solved else -np.inf
    return score(run)


def sides(group: Group) -> list[Side]:
    """The agents of a group that have scores."""
    found = []
    for agent in group.agents:
        by_env = {
            env: [value for run in runs if (value := merit(run)) is not None] for env, runs in group.of(agent).items()
        }
        scores = {env: np.array(values) for env, values in by_env.items() if values}
        if scores:
            found.append(Side(agent, label(agent), scores))
    return found


def published() -> list[Side]:
    """The paper's columns."""
    return [
        Side(
            column, f"{name} (paper)", {game: np.array([value]) for game, value in paper.scores()[column].items()}, True
        )
        for column, name in paper.COLUMNS.items()
    ]


def shared(*several: Side) -> list[str]:
    """Games that all of them have and that can be normalised."""
    return [env for env in several[0].scores if env in paper.constants() and all(env in s.scores for s in several)]


# Differences by game


class Difference(NamedTuple):
    """Normalised score of one side less that of another, on one game."""

    game: str
    ours: Side
    other: Side
    estimate: Estimate


def differences(ours: Side, other: Side) -> list[Difference]:
    """By game, the largest first."""
    games = shared(ours, other)
    pairs = zip(games, ours.normalised(games), other.normalised(games), strict=True)
    found = [Difference(game, ours, other, statistics.difference(x, y)) for game, x, y in pairs]
    return sorted(found, key=lambda d: -d.estimate.value)


def references(found: list[Side]) -> list[Side]:
    """What each agent is compared with in figures: the paper's columns; other agents, or PSDRL if these are many."""
    own = [side for side in found if side.key not in LEVELS]
    return published() + (own if len(own) <= FEW else [side for side in own if side.key == "psdrl"])


def all_differences(found: list[Side]) -> Iterator[Difference]:
    """Of each agent against each column of the paper and each other agent."""
    for ours in found:
        for other in published() + [side for side in found if side is not ours]:
            yield from differences(ours, other)


# Aggregates over games


class Aggregate(NamedTuple):
    """One side over all its games; on the scale where the human gamer is 1, but for the record."""

    side: Side
    games: list[str]
    iqm: Estimate
    metrics: dict[str, Estimate]  # those of Table 1


def aggregate(side: Side, games: list[str]) -> Aggregate:
    """Over these games."""
    h = side.normalised(games)
    known = paper.constants()
    w = [np.array([known[game].record(value) for value in side.scores[game]]) for game in games]
    table1 = (statistics.median(h), statistics.average(h), statistics.average(w), statistics.average(w, clip=1.0))
    return Aggregate(side, games, statistics.iqm(h), dict(zip(paper.METRICS, table1, strict=True)))


def aggregates(found: list[Side]) -> list[Aggregate]:
    """Of each agent, over all the games that it has; of the paper over the games that any of them has."""
    own = [aggregate(side, shared(side)) for side in found if shared(side)]
    games = sorted({game for each in own for game in each.games})
    return own + ([aggregate(side, games) for side in published()] if games else [])


def profiles(found: list[Side], taus: Array) -> list[tuple[Side, Profile]]:
    """Performance profiles over the games that all sides have, the paper's among them."""
    games = shared(*found) if found else []
    if not games:
        return []
    return [(side, statistics.profile(side.normalised(games), taus)) for side in [*found, *published()]]


class Improvement(NamedTuple):
    """Probability that a run of one side is better than one of the other."""

    ours: Side
    other: Side
    envs: int
    estimate: Estimate


def improvements(found: list[Side]) -> list[Improvement]:
    """Of each agent over each other one, and over the paper's columns; needs no normalisation."""
    pairs = list(permutations(found, 2)) + [(ours, other) for ours in found for other in published()]
    made = []
    for ours, other in pairs:
        envs = [env for env in ours.scores if env in other.scores]
        if envs:
            estimate = statistics.improvement([ours.scores[e] for e in envs], [other.scores[e] for e in envs])
            made.append(Improvement(ours, other, len(envs), estimate))
    return made
