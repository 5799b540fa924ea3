"""The report's numbers: the paper's Table 1 from its scores, rliable's aggregates, protocols that are kept apart."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from psdrl.report import outcomes, paper, protocols, scores, statistics
from psdrl.report.outcomes import Outcome, Series

ROOT = Path(__file__).parents[2]


def make(**changes) -> Outcome:
    run = Outcome(
        id="run-1",
        source="somewhere",
        env="Pong",
        agent="psdrl",
        seed=0,
        state="finished",
        budget=100,
        steps=100,
        preset="paper",
        commit=None,
        version=None,
        command="psdrl train Pong",
        settings=None,
        machine="",
        minutes=None,
        episodes=Series.of([(10, 1.0), (40, 2.0)]),
        evaluations=Series.of([]),
        solved=None,
    )
    return replace(run, **changes)


def test_table_1_of_the_paper_from_its_scores():
    """15 of 16 cells; psdrl/report/data/README.md says why the other one may differ."""
    found = {column: scores.metrics(paper.scores()[column]) for column in paper.COLUMNS}
    wrong = [
        (metric, column, round(found[column][metric], 2))
        for metric, printed in paper.table1().items()
        for column in paper.COLUMNS
        if round(found[column][metric]) != printed[column]
    ]
    assert wrong == [("gamer_mean", "dv2", 100.80)]


def test_aggregates_are_those_of_rliable():
    metrics = pytest.importorskip("rliable.metrics", reason="rliable is not installed")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 7)), rng.normal(size=(3, 7)).round()
    ours, others = list(x.T), list(y.T)
    assert statistics.iqm(ours).value == pytest.approx(metrics.aggregate_iqm(x))
    assert statistics.median(ours).value == pytest.approx(metrics.aggregate_median(x))
    assert statistics.average(ours).value == pytest.approx(metrics.aggregate_mean(x))
    assert statistics.improvement(ours, others).value == pytest.approx(metrics.probability_of_improvement(x, y))
    taus = np.array([-1.0, 0.0, 1.0])
    assert statistics.profile(others, taus).value == pytest.approx([np.mean(y > tau) for tau in taus])


def test_a_score_is_the_mean_of_evaluations_or_of_training_by_steps():
    assert scores.score(make()) == pytest.approx((10 * 1 + 30 * 2) / 40)
    assert scores.score(make(evaluations=Series.of([(50, 3.0), (100, 5.0)]))) == 4.0
    assert scores.score(make(episodes=Series.of([]))) is None


@pytest.mark.parametrize(
    "other",
    [
        {"budget": 200, "steps": 200},
        {"preset": "cpu"},
        {"state": "stopped"},
        {"command": "psdrl train Pong --atari.sticky 0.25"},
        {"settings": {"atari.sticky": 0.25}},
        {"evaluations": Series.of([(50, 3.0)])},
    ],
)
def test_protocols_are_never_mixed(other):
    groups = protocols.group([make(), make(seed=1), make(id="run-2", seed=2, **other)])
    assert sorted(len(group.runs) for group in groups) == [1, 2]
    assert "2 protocols are kept apart" in protocols.notices(groups)[0]


def test_all_of_results_is_read():
    found = outcomes.find([ROOT / "results"])
    assert not found.unreadable
    assert len(found.outcomes) > 300
