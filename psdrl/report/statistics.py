"""Bootstrap intervals and the aggregates of Agarwal et al. (2021, "Deep RL at the edge of the statistical precipice").

Definitions are those of rliable. `rliable.library` itself cannot be imported beside pandas 3: it needs arch < 8, whose
last version, 7.2.0, fails there (deprecate_kwarg). Its `metrics` module is the oracle of the tests. Scores are lists of
arrays, one (seeds,) per game: games may have different numbers of seeds. Intervals are percentiles over resampled
seeds, game by game (stratified); there are none where no game has two seeds."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]
Scores = Sequence[Array]  # by game: (seeds,)
DRAWS = 2000
LEVEL = 95.0


class Estimate(NamedTuple):
    """A number and its 95 % interval, if the seeds allow one."""

    value: float
    low: float | None
    high: float | None


def resampled(scores: Scores, seed: int, draws: int = DRAWS) -> list[Array]:
    """For each game (draws, seeds): its seeds, drawn with replacement."""
    rng = np.random.default_rng(seed)
    return [values[rng.integers(len(values), size=(draws, len(values)))] for values in scores]


def interval(draws: Array) -> tuple[Array, Array]:
    """Percentiles over the first axis."""
    low, high = np.percentile(draws, [(100 - LEVEL) / 2, (100 + LEVEL) / 2], axis=0)
    return low, high


def _estimate(value: float, draws: Array, known: bool) -> Estimate:
    if not known:
        return Estimate(float(value), None, None)
    low, high = interval(draws)
    return Estimate(float(value), float(low), float(high))


def _several(*samples: Scores) -> bool:
    return any(len(values) > 1 for scores in samples for values in scores)


def mean(values: Array) -> Estimate:
    """Mean over seeds."""
    return _estimate(values.mean(), resampled([values], 0)[0].mean(1), len(values) > 1)


def difference(ours: Array, others: Array) -> Estimate:
    """Difference of two means over seeds; a number of the paper is a sample of one."""
    draws = resampled([ours], 0)[0].mean(1) - resampled([others], 1)[0].mean(1)
    return _estimate(ours.mean() - others.mean(), draws, _several([ours], [others]))


def iqm(scores: Scores) -> Estimate:
    """Interquartile mean over all runs of all games: the mean without the lowest and the highest quarter."""
    draws = np.concatenate(resampled(scores, 0), axis=1)
    value = stats.trim_mean(np.concatenate(scores), 0.25)
    return _estimate(value, stats.trim_mean(draws, 0.25, axis=1), _several(scores))


def median(scores: Scores) -> Estimate:
    """Median over games of their means over seeds."""
    draws = np.median([drawn.mean(1) for drawn in resampled(scores, 0)], axis=0)
    return _estimate(np.median([values.mean() for values in scores]), draws, _several(scores))


def average(scores: Scores, clip: float = np.inf) -> Estimate:
    """Mean over games of their means over seeds, each at most `clip`."""
    draws = np.mean([np.minimum(drawn.mean(1), clip) for drawn in resampled(scores, 0)], axis=0)
    value = np.mean([min(values.mean(), clip) for values in scores])
    return _estimate(float(value), draws, _several(scores))


class Profile(NamedTuple):
    """Share of runs with a score above tau, and its interval; each (taus,)."""

    value: Array
    low: Array | None
    high: Array | None


def profile(scores: Scores, taus: Array) -> Profile:
    """Performance profile: the share of all runs above each tau."""

    def above(runs: Array) -> Array:
        return 1 - np.searchsorted(np.sort(runs), taus, side="right") / len(runs)

    value = above(np.concatenate(scores))
    if not _several(scores):
        return Profile(value, None, None)
    draws = np.concatenate(resampled(scores, 0), axis=1)
    return Profile(value, *interval(np.stack([above(runs) for runs in draws])))


def improvement(ours: Scores, others: Scores) -> Estimate:
    """Probability that a run of ours is better than one of the others, on a game drawn at random; a tie is a half."""

    def better(x: Array, y: Array) -> Array:
        """(..., seeds of x) and (..., seeds of y) to (...): Mann and Whitney's U by its number of pairs."""
        mine, theirs = x[..., :, None], y[..., None, :]
        return ((mine > theirs) + 0.5 * (mine == theirs)).mean((-2, -1))

    value = np.mean([better(x, y) for x, y in zip(ours, others, strict=True)])
    pairs = zip(resampled(ours, 0), resampled(others, 1), strict=True)
    draws = np.mean([better(x, y) for x, y in pairs], axis=0)
    return _estimate(float(value), draws, _several(ours, others))
