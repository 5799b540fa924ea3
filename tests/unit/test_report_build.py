"""`psdrl report` from run directories: what is found, what is kept apart, what the tables say, where it is written."""

import csv
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psdrl.cli import show
from psdrl.errors import UserError
from psdrl.report import bars, comparisons, curves, diving, outcomes, paper, protocols, tables
from psdrl.report.build import build
from psdrl.report.comparisons import CLIP
from psdrl.report.outcomes import Outcome
from psdrl.report.protocols import Group
from psdrl.run.store.lock import BEAT
from tests.report_runs import write_run

ROOT = Path(__file__).parents[2]
EVALUATIONS = [(500_000, 10.0), (1_000_000, 20.0)]


def grouped(folder: Path) -> list[Group]:
    return protocols.group(protocols.unique(outcomes.find([folder]).outcomes)[0])


def table(name: str, groups: list[Group]) -> list[dict]:
    (found,) = [each for each in tables.tables(groups) if each.name == name]
    return [row.values for row in found.rows]


# What is found


def test_runs_are_found_at_any_depth_whatever_became_of_them(tmp_path: Path) -> None:
    paths = {}
    for seed, state in enumerate(("finished", "running", "crashed", "stopped")):
        done = EVALUATIONS if state == "finished" else EVALUATIONS[:1]
        paths[state] = write_run(tmp_path / "sweep" / "deep" / state, game="Pong", seed=seed, evaluations=done)
    for state in ("running", "crashed"):
        (paths[state] / ".holder.json").write_text("{}", encoding="utf-8")
    long_ago = time.time() - 60 * BEAT
    os.utime(paths["crashed"] / ".holder.json", (long_ago, long_ago))
    (tmp_path / "config.json").write_text('{"somebody": "else"}', encoding="utf-8")
    cut = paths["stopped"] / "metrics.jsonl"
    cut.write_text(cut.read_text(encoding="utf-8") + '{"step": 7', encoding="utf-8")  # killed in the middle of a line
    (tmp_path / "broken").mkdir()
    for name, text in (("config.json", "{"), ("metrics.jsonl", "")):
        (tmp_path / "broken" / name).write_text(text, encoding="utf-8")
    found = outcomes.find([tmp_path, tmp_path / "sweep"])
    assert {Path(run.source).name: run.state for run in found.outcomes} == {state: state for state in paths}
    assert [run.id for run in found.outcomes] == ["run-1", "run-2", "run-3", "run-4"], "each once"
    (sentence,) = found.unreadable
    assert "broken" in sentence


def test_a_run_tells_its_command_commit_and_minutes(tmp_path: Path) -> None:
    write_run(tmp_path / "a", game="Pong", seed=3, evaluations=EVALUATIONS, seconds=120.0)
    (run,) = outcomes.find([tmp_path]).outcomes
    assert run.command == "psdrl train Pong --seed 3"
    assert run.commit == f"{3:040x}"
    assert run.minutes == 2
    assert run.evaluations.values.tolist() == [10, 20]


def test_an_agent_is_named_by_what_differs_from_its_preset(tmp_path: Path) -> None:
    write_run(tmp_path / "a", game="Pong", evaluations=EVALUATIONS, changes={"posterior.rule": "mean"})
    write_run(tmp_path / "b", game="Pong", evaluations=EVALUATIONS, changes={"log": ("wandb",)})
    assert {run.agent for run in outcomes.find([tmp_path]).outcomes} == {"psdrl (posterior.rule mean)", "psdrl"}


# What is kept apart


@pytest.mark.parametrize(
    "other",
    [
        {"steps": 500_000, "evaluations": EVALUATIONS[:1]},
        {"preset": "cpu", "evaluations": EVALUATIONS},
        {"changes": {"atari.sticky": 0.25}, "evaluations": EVALUATIONS},
        {"changes": {"eval_every": 500_000}, "evaluations": EVALUATIONS},
        {"episodes": EVALUATIONS},
    ],
    ids=["steps", "preset", "sticky", "evaluations", "not evaluated"],
)
def test_other_protocols_are_other_rows_and_a_notice(tmp_path: Path, other: dict) -> None:
    write_run(tmp_path / "a", game="Pong", preset="paper", evaluations=EVALUATIONS)
    write_run(tmp_path / "b", **({"game": "Pong", "preset": "paper", "seed": 1} | other))
    groups = grouped(tmp_path)
    assert [row["seeds"] for row in table("scores", groups)] == [1, 1]
    (said,) = protocols.notices(groups)
    assert said.startswith("atari: runs of 2 protocols are kept apart")


def test_a_second_run_of_the_same_seed_is_left_out_aloud(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, game="Pong", evaluations=EVALUATIONS)
    kept, said = protocols.unique(outcomes.find([tmp_path]).outcomes)
    assert len(kept) == 1
    assert "is left out" in said[0]


# What the tables say


def test_scores_are_means_of_evaluations_beside_the_papers(tmp_path: Path) -> None:
    for seed, shift in enumerate((0.0, 4.0)):
        found = [(step, value + shift) for step, value in EVALUATIONS]
        write_run(tmp_path / str(seed), game="Breakout", preset="paper", seed=seed, evaluations=found)
    (row,) = table("scores", grouped(tmp_path))
    assert row["score"].value == 17
    assert (row["score"].low, row["score"].high) == (15, 19), "of two seeds: all of both"
    assert row["final"].value == 17
    assert [row[column] for column in paper.COLUMNS] == [paper.scores()[c]["Breakout"] for c in paper.COLUMNS]
    known = paper.constants()["Breakout"]
    share = 100 * (17 - known.random) / (known.human_gamer - known.random)
    first = table("table1", grouped(tmp_path))[0]
    assert first["gamer_median"].value == first["gamer_mean"].value == pytest.approx(share)


def test_run_time_is_beside_the_papers(tmp_path: Path) -> None:
    write_run(tmp_path / "a", game="Freeway", steps=500_000, evaluations=EVALUATIONS[:1], seconds=6000.0)
    row, average = table("runtime", grouped(tmp_path))
    assert row["minutes"] == 100
    assert row["million"] == 200
    assert (row["su"], row["su_spread"]) == (303, 20)
    assert average["psdrl"] == 511


def diver(solved: int | None, env: str = "deepsea-10", seed: int = 0, agent: str = "psdrl") -> Outcome:
    none = outcomes.Series.of([])
    return Outcome(
        *(f"run-{seed}", "", env, agent, seed, "finished", 3000, 3000, "deepsea", None, None, "", {}, "", None),
        *(outcomes.Series.of([(10 * i, 0.0) for i in range(1, 301)]), none, solved),
    )


def test_deepsea_is_compared_by_episodes_until_solved() -> None:
    """Who had not solved it is last, and its returns say nothing: runs may end when they have solved it."""
    runs = [diver(100, seed=0), diver(200, seed=1), diver(150, agent="mean"), diver(None, seed=1, agent="mean")]
    (group,) = protocols.group(runs)
    first = comparisons.improvements(comparisons.sides(group))[0]
    assert (first.ours.key, first.other.key) == ("psdrl", "mean")
    assert first.estimate.value == 0.75
    assert not [each for each in tables.tables([group]) if each.name == "scores"]
    rows = table("deepsea", [group])
    assert [(row["solved"], row["seeds"], row["median"], row["each"]) for row in rows] == [
        (2, 2, 150, "100, 200"),
        (1, 2, None, "150, -"),
    ]


def test_deepsea_grows_with_n() -> None:
    runs = [diver(30 * n, f"deepsea-{n}", seed) for n in (5, 10) for seed in range(3)]
    (group,) = protocols.group([*runs, diver(None, "deepsea-10", agent="mean")])
    assert {agent: sorted(sizes) for agent, sizes in diving.growth(group.envs).items()} == {"psdrl": [5, 10]}
    drawn = diving.drawing(group.envs, "deepsea")
    assert len(drawn.figure.axes) == 2
    assert "deepsea-10, PSDRL: 3 of 3 solved, median 300 episodes" in drawn.alt


def test_differences_are_sorted_clipped_and_coloured(tmp_path: Path) -> None:
    for game, factor in (("Pong", 1.0), ("Breakout", 30.0), ("Qbert", 0.5)):
        known = paper.constants()[game]
        for seed in range(3):
            value = known.random + factor * (1 + seed / 10) * (known.human_gamer - known.random) / 10
            found = [(1_000_000, value)]
            write_run(tmp_path / f"{game}{seed}", game=game, preset="paper", seed=seed, evaluations=found)
    (group,) = grouped(tmp_path)
    drawn = next(each for each in bars.drawings(group, 1) if "B+P" in each.title)
    (axes,) = drawn.figure.axes
    patches: Any = axes.patches
    widths = [patch.get_width() for patch in patches]
    assert widths == sorted(widths, reverse=True)
    assert max(widths) == CLIP
    for patch, label in zip(patches, axes.get_yticklabels(), strict=True):
        game = label.get_text().partition(",")[0]
        red = patch.get_facecolor()[0] > patch.get_facecolor()[2]
        assert red == (patch.get_width() < 0), game
    intervals = [line for line in axes.lines if line.get_color() == "black"]
    assert len(intervals) == 3
    assert any("+3" in text.get_text() for text in axes.texts), "what is cut off is written beside it"
    assert all(np.abs(line.get_xdata()).max() <= CLIP for line in intervals)


def test_curves_of_variants_lie_over_that_of_the_agent(tmp_path: Path) -> None:
    """Ablations share a panel with what they change, up to the step that all seeds have."""
    for seed in range(2):
        write_run(tmp_path / f"a{seed}", game="Pong", seed=seed, evaluations=EVALUATIONS)
        changes = {"posterior.rule": "mean"}
        write_run(tmp_path / f"b{seed}", game="Pong", seed=seed, evaluations=EVALUATIONS, changes=changes)
    (panel,) = curves.panels(grouped(tmp_path))
    assert [line.agent for line in panel.lines] == ["psdrl", "psdrl (posterior.rule mean)"]
    curve = curves.mean_curve(panel.lines[0])
    assert curve is not None
    assert curve.steps[-1] == 1_000_000
    assert curve.mean[-1] == 15, "the last five evaluations"


# Where it is written


@pytest.fixture
def one_run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs" / "a", env="CartPole-v1", episodes=[(100, 1.0), (300, 2.0)], steps=300)


def test_everything_is_written_and_old_figures_go(one_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    made = build([one_run], out)
    assert (made.runs, made.figures) == (1, 1)
    (out / "figures" / "old.png").touch()
    build([one_run], out)
    names = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    figures = ["figures/curve-cartpole-v1.png", "figures/curve-cartpole-v1.svg"]
    sheets = ["sheets/control.png", "sheets/control.svg"]
    made_tables = [f"tables/{name}.csv" for name in ("protocols", "runs", "scores")]
    assert names == sorted([".psdrl-report", "TABLE.md", "index.html", *figures, *sheets, *made_tables])
    with open(out / "tables" / "scores.csv", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert float(row["score"]) == pytest.approx((100 * 1 + 200 * 2) / 300)
    assert row["runs"] == "run-1"
    assert "| CartPole-v1 | psdrl |" in (out / "TABLE.md").read_text(encoding="utf-8")


def test_nothing_of_others_is_written_over(one_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not empty"):
        build([one_run], one_run)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file"):
        build([one_run], tmp_path / "file")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Name what to report on"),
        (["nowhere"], "nowhere does not exist"),
        (["EMPTY"], "No run was found"),
        (["RUN", "--every", "0"], "--every is 0"),
        (["RUN", "--port", "99999"], "--port is 99999"),
    ],
)
def test_mistakes_are_one_sentence(one_run: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "empty").mkdir()
    places = {"RUN": str(one_run), "EMPTY": str(tmp_path / "empty")}
    with pytest.raises(UserError, match=words) as error:
        show([*(places.get(word, word) for word in arguments), "--out", str(tmp_path / "new")])
    assert "\n" not in str(error.value)


def test_a_page_that_waits_for_runs(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    made = build([tmp_path / "runs"], tmp_path / "page", live=True)
    assert "No run has logged anything yet" in made.page.read_text(encoding="utf-8")


def test_the_readmes_figures_are_sheets_of_results() -> None:
    """`make learn` copies sheets/*.png over results/*.png, and the agents side by side."""
    suites = {panel.setting.suite for panel in curves.panels(grouped(ROOT / "results"))}
    assert {path.stem for path in (ROOT / "results").glob("*.png")} == {*suites, "side-by-side"}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 55])
def test_panels_of_a_sheet_fill_its_rows(count: int) -> None:
    at, tall = curves.cells(count)
    assert len(at) == count
    for row in range(tall):
        mine = [(left, width) for r, left, width in at if r == row]
        assert 1 <= len(mine) <= 3
        assert sum(width for _, width in mine) == pytest.approx(1)
        assert [left for left, _ in mine] == pytest.approx([i * mine[0][1] for i in range(len(mine))])
