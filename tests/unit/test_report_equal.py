"""`psdrl report --steps`: equal steps, and all agents side by side."""

from pathlib import Path

import numpy as np
import pytest

from psdrl.cli import show
from psdrl.envs.deepsea import SOLVED, WINDOW
from psdrl.errors import UserError
from psdrl.report import equal, outcomes, protocols, side_by_side
from psdrl.report.build import build
from tests.report_runs import write_run

EPISODES = [(100, 1.0), (200, 2.0), (300, 30.0)]


def write_agents(folder: Path, steps: dict[str, int]) -> None:
    for algo, count in steps.items():
        write_run(
            folder / algo, env="CartPole-v1", algo=algo, steps=count, episodes=[e for e in EPISODES if e[0] <= count]
        )


def test_a_longer_run_is_judged_by_its_beginning(tmp_path: Path) -> None:
    write_run(tmp_path / "a", env="CartPole-v1", steps=300, episodes=EPISODES, seconds=90.0)
    (run,), said = equal.cut(outcomes.find([tmp_path]).outcomes, 200)
    assert (run.steps, run.budget, run.finished, said) == (200, 200, True, [])
    assert run.episodes.values.tolist() == [1, 2]
    assert run.minutes == pytest.approx(1.5 * 200 / 300)


def test_runs_of_other_lengths_meet_in_one_protocol_and_shorter_ones_stay_out(tmp_path: Path) -> None:
    write_agents(tmp_path, {"psdrl": 300, "bootstrap": 200, "successor": 100})
    found = outcomes.find([tmp_path]).outcomes
    assert len(protocols.group(found)) == 3
    kept, (sentence,) = equal.cut(found, 200)
    (group,) = protocols.group(kept)
    assert group.agents == ["psdrl", "bootstrap"]
    assert sentence == "Left out: 1 with fewer than 200 steps."


@pytest.mark.parametrize("steps", [WINDOW * 10, 10**6], ids=["longer than asked", "shorter than asked"])
def test_deepsea_counts_until_it_is_solved(tmp_path: Path, steps: int) -> None:
    returns = [0.0] * 30 + [0.99] * (WINDOW + SOLVED)
    ends = [(10 * (i + 1), value) for i, value in enumerate(returns)]
    write_run(tmp_path / "a", env="deepsea-10", steps=ends[-1][0], episodes=ends)
    (before,) = outcomes.find([tmp_path]).outcomes
    (run,), _ = equal.cut([before], steps)
    assert before.solved is not None
    assert (before.solved > steps / 10) == (run.solved is None)
    if steps > before.steps:
        assert run is before


def test_side_by_side_shows_every_seed_of_every_agent(tmp_path: Path) -> None:
    write_agents(tmp_path / "runs", {"psdrl": 300, "bootstrap": 200})
    write_run(tmp_path / "runs" / "s1", env="CartPole-v1", seed=1, steps=200, episodes=[(200, 7.0)])
    made = build([tmp_path / "runs"], tmp_path / "two", steps=200)
    assert not (made.page.parent / "SIDE_BY_SIDE.md").exists(), "two agents are no table"
    write_agents(tmp_path / "more", {"dreamer": 200})
    made = build([tmp_path / "runs", tmp_path / "more"], tmp_path / "three", steps=200)
    *_, head, _, row = (made.page.parent / "SIDE_BY_SIDE.md").read_text(encoding="utf-8").splitlines()
    assert head == "| problem | PSDRL | Bootstrapped DQN + priors | DreamerV2 |"
    assert row == "| CartPole-v1, 200 steps | 4.2 (1.5, 7.0) | 1.5 (1.5) | 1.5 (1.5) |"
    assert (made.page.parent / "figures" / "side-by-side.png").exists()


def test_the_figure_has_a_mark_per_seed_and_a_row_per_agent(tmp_path: Path) -> None:
    write_agents(tmp_path, {"psdrl": 200, "bootstrap": 200, "dreamer": 200})
    for seed in (0, 1):
        write_run(tmp_path / f"d{seed}", env="deepsea-10", seed=seed, steps=20, episodes=[(10, 0.0), (20, 0.0)])
    for algo in ("bootstrap", "dreamer"):
        write_run(tmp_path / f"d-{algo}", env="deepsea-10", algo=algo, steps=10, episodes=[(10, 0.0)])
    found = side_by_side.problems(protocols.group(equal.cut(outcomes.find([tmp_path]).outcomes, 100)[0]))
    figure = side_by_side.drawing(found).figure
    assert [axes.get_title() for axes in figure.axes] == ["CartPole-v1, 100 steps", "DeepSea-10"]
    seeds = [line for line in figure.axes[1].lines if line.get_marker() == ">"]
    assert sorted(float(np.asarray(line.get_xdata())[0]) for line in seeds) == [1, 1, 2, 2]


@pytest.mark.parametrize(("steps", "words"), [("0", "--steps is 0"), ("301", "No run has made --steps 301")])
def test_mistakes_are_one_sentence(tmp_path: Path, steps: str, words: str) -> None:
    run = write_run(tmp_path / "run", env="CartPole-v1", steps=300, episodes=EPISODES)
    with pytest.raises(UserError, match=words):
        show([str(run), "--steps", steps, "--out", str(tmp_path / "new")])
