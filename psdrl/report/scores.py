"""Scores of runs, and what the paper makes of them."""

from collections.abc import Mapping

import numpy as np

from psdrl.report import paper
from psdrl.report.outcomes import Outcome, Series

LONG = 500  # steps: averages of such long episodes take in fewer of them
LAST, LAST_LONG, LAST_EVALUATIONS = 20, 5, 5


def score(run: Outcome) -> float | None:
    """Mean of the evaluations over the run, as in the paper. A run without evaluations: mean return of its training
    episodes, each weighted by its steps, as if it were asked at every step for the episode that it is in."""
    if run.evaluated:
        return float(run.evaluations.values.mean())
    lengths = np.diff(run.episodes.steps, prepend=0)
    return float(np.average(run.episodes.values, weights=lengths)) if lengths.sum() > 0 else None


def recent(run: Outcome) -> int:
    """How many of the last returns make the final value: 5 evaluations; of training 20 episodes, 5 if they are long."""
    if run.evaluated:
        return LAST_EVALUATIONS
    steps = run.episodes.steps
    return LAST_LONG if len(steps) and steps[-1] / len(steps) >= LONG else LAST


def final(run: Outcome) -> float | None:
    """Mean of the last returns."""
    values = run.curve.values[-recent(run) :]
    return float(values.mean()) if len(values) else None


def smooth(run: Outcome, grid: np.ndarray) -> np.ndarray:
    """The learning curve at each step of the grid: mean of the last returns; NaN before the first and after the end."""
    series: Series = run.curve
    sums = np.concatenate([[0.0], np.cumsum(series.values)])
    until = np.searchsorted(series.steps, grid, side="right")
    since = np.maximum(0, until - recent(run))
    with np.errstate(invalid="ignore"):
        means = (sums[until] - sums[since]) / (until - since)
    return np.where(grid <= run.steps, means, np.nan)


def metrics(scores: Mapping[str, float]) -> dict[str, float]:
    """The four numbers of Table 1, in percent, from scores by game."""
    known = paper.constants()
    h = np.array([known[game].gamer(value) for game, value in scores.items()])
    w = np.array([known[game].record(value) for game, value in scores.items()])
    found = (np.median(h), h.mean(), w.mean(), np.minimum(w, 1).mean())
    return {name: 100 * float(value) for name, value in zip(paper.METRICS, found, strict=True)}
