"""Runs judged after equal steps (`psdrl report --steps N`), whatever they were given beyond."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from psdrl.envs.deepsea import deepsea_size, solved_after
from psdrl.report.outcomes import Outcome, Series


def cut(outcomes: Iterable[Outcome], steps: int) -> tuple[list[Outcome], list[str]]:
    """The runs as they were after so many steps, and a sentence about those that never made them.

    DeepSea's runs may end when it is solved, and their budgets go with its size: shorter ones stay as they are."""
    whole, short = [], 0
    for run in outcomes:
        if run.steps >= steps:
            whole.append(_until(run, steps))
        elif deepsea_size(run.env) and run.finished:
            whole.append(run)
        else:
            short += 1
    return whole, [f"Left out: {short} with fewer than {steps:,} steps."] if short else []


def _until(run: Outcome, steps: int) -> Outcome:
    """The minutes are the run's by the share of its steps: logs tell an update's seconds, not the environment's."""
    episodes = _head(run.episodes, steps)
    return replace(
        run,
        state="finished",
        budget=steps,
        steps=steps,
        minutes=None if run.minutes is None else run.minutes * steps / run.steps,
        episodes=episodes,
        evaluations=_head(run.evaluations, steps),
        solved=solved_after(episodes.values.tolist()) if deepsea_size(run.env) else None,
    )


def _head(series: Series, steps: int) -> Series:
    count = int(np.searchsorted(series.steps, steps, side="right"))
    return Series(series.steps[:count], series.values[:count])
