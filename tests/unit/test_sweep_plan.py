"""Cases of a sweep: each has the settings that its own command would give it, and what cannot run is refused."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from psdrl.agents import registry
from psdrl.arguments import parse_train
from psdrl.cli import exit_with
from psdrl.errors import UserError
from psdrl.sweep import command, costs, experiments, grid, plan, ranking, sweep
from psdrl.sweep.plan import Block, Case
from psdrl.sweep.progress import Eta

DEBUG = ("--preset", "debug", "--device", "cpu")
BLOCKS = {
    "two agents, presets by environment": Block(
        ("deepsea-6", "CartPole-v1"), ("psdrl", "bootstrap"), (0, 3), (), ("--device", "cpu", "--steps", "1e3")
    ),
    "an ablation": Block(("deepsea-6",), ("egreedy-exploit", "fresh-value"), (1,), (), DEBUG),
    "a pair, a switch, several numbers": Block(
        ("deepsea-6", "deepsea-20", "CartPole-v1"),
        ("psdrl",),
        (0,),
        tuple(
            grid.parse(
                [
                    "posterior.prior-latent=1e1,1e3",
                    "standardise=on,off",
                    "policy.update-every=7,20 50",
                    "--value.learning_rate=1e-3",
                ]
            )
        ),
        ("--device", "cpu", "--forward.units=32", "--no-compile"),
    ),
    "both of a pair": Block(
        ("deepsea-6",), ("psdrl",), (0,), tuple(grid.parse(["posterior.noise-reward=2,3", "posterior.noise-latent=5"]))
    ),
}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS.keys())
def test_settings_are_those_of_the_command(block: Block) -> None:
    """Planning parses flags once for many cases; a run parses all of its own."""
    cases = plan.plan([block])
    points = [point for algo in block.algos for point in grid.points(list(block.axes))]
    assert len(cases) == len(block.envs) * len(points) * len(block.seeds)
    assert len({case.name for case in cases}) == len(cases)
    for case in cases[:: max(1, len(cases) // 8)]:
        assert parse_train(list(case.arguments))[0] == case.config, str(case)


def test_a_point_changes_what_it_names() -> None:
    cases = plan.plan([BLOCKS["a pair, a switch, several numbers"]])
    assert len(cases) == 3 * 2 * 2 * 2
    found = {
        (c.env, c.config.posterior.prior, c.config.standardise, c.config.policy.update_every)  # type: ignore[attr-defined]
        for c in cases
    }
    usual = {env: registry.configure(env=env, device="cpu").posterior.prior[1] for env in ("deepsea-6", "CartPole-v1")}
    assert ("deepsea-6", (10.0, usual["deepsea-6"]), True, (7,)) in found
    assert ("CartPole-v1", (1000.0, usual["CartPole-v1"]), False, (20, 50)) in found
    assert usual["deepsea-6"] != usual["CartPole-v1"], "else the test shows nothing"
    noises = {c.config.posterior.noise for c in plan.plan([BLOCKS["both of a pair"]])}  # type: ignore[attr-defined]
    assert noises == {(5.0, 2.0), (5.0, 3.0)}


def test_names_of_games_and_seeds() -> None:
    assert plan.names_of_games("six,pong")[-2:] == ["Seaquest", "Pong"]
    assert len(plan.names_of_games("atari55")) == 55
    assert [plan.seeds(text) for text in ("3", "5:8", "1,4")] == [[0, 1, 2], [5, 6, 7], [1, 4]]
    for text in ("0", "-1", "x", "4:2", ""):
        with pytest.raises(UserError, match="number of seeds"):
            plan.seeds(text)


REFUSED = {
    "unknown game": (("--games", "Pongg"), "Unknown Atari game 'Pongg'; did you mean Pong"),
    "unknown environment": (("--envs", "CartPoll-v1"), "Unknown environment 'CartPoll-v1'; did you mean"),
    "unknown MinAtar game": (("--envs", "minatar/pong"), "Unknown MinAtar game 'pong'"),
    "unknown agent": (("--envs", "deepsea-4", "--algos", "psdrl,bootstrp"), "did you mean bootstrap?"),
    "no environment": ((), "Nothing to run"),
    "wrong key": (("--envs", "deepsea-4", "--grid", "value.discont=0.9,0.99"), "did you mean value.discount"),
    "key of another agent": (
        ("--envs", "deepsea-4", "--algos", "psdrl,bootstrap", "--grid", "posterior.prior-latent=1,2"),
        "posterior.prior-latent: bootstrap has no such setting",
    ),
    "wrong value": (("--envs", "deepsea-4", "--grid", "value.units=a,b"), "'a' is no whole number"),
    "wrong part": (("--envs", "deepsea-4", "--grid", "posterior.prior-latent=a,b"), "'a' is no number"),
    "value that cannot work": (("--envs", "deepsea-4", "--grid", "value.discount=2"), "discount"),
    "no switch": (("--envs", "deepsea-4", "--grid", "standardise=maybe"), "use on or off"),
    "grid without values": (("--envs", "deepsea-4", "--grid", "value.units"), "must be KEY=VALUE,VALUE"),
    "value twice": (("--envs", "deepsea-4", "--grid", "value.units=8,8"), "a value twice"),
    "unknown flag": (("--envs", "deepsea-4", "--stepz", "10"), "Unknown flag --stepz"),
    "flag of a single run": (("--envs", "deepsea-4", "--seed", "1"), "use --seeds"),
    "logdir": (("--envs", "deepsea-4", "--logdir", "x"), "a sweep sets it itself"),
    "too many GPUs": (("--envs", "deepsea-4", "--gpus-per-run", "4"), "--gpus-per-run is 4, but this machine has 0"),
    "half a GPU too much": (("--envs", "deepsea-4", "--gpus-per-run", "1.5"), "a share of one GPU"),
    "too many CPUs": (("--envs", "deepsea-4", "--cpus-per-run", "5000"), "no machine has more than"),
    "ASHA without a choice": (("--envs", "deepsea-4", "--asha"), "deepsea-4 has only one: add --grid"),
    "ASHA without evaluations": (
        ("--envs", "deepsea-4", "--asha", "--grid", "value.units=8,9", "--eval-every", "0"),
        "set --eval-every",
    ),
}


@pytest.mark.parametrize(("words", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_before_anything_starts(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        exit_with(command.run, ["--address", "none", "--out", str(tmp_path / "out"), *words])
    assert stop.value.code == 2
    assert said in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "out").exists()


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (cases,) = (plan.plan([Block(("deepsea-4",), flags=DEBUG)]),)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds no sweep"):
        plan.check_directory(tmp_path, cases)


def test_experiments_have_the_papers_sizes() -> None:
    def runs(name: str, scale: experiments.Scale) -> int:
        return sum(
            len(b.envs) * len(b.algos) * len(b.seeds) * len(list(grid.points(list(b.axes))))
            for b in experiments.experiment(name, scale).blocks
        )

    agents = len([a for a in ("psdrl", *experiments.BASELINES) if a in registry.AGENTS])
    assert runs("table-1", "paper") == 55 * 3 * agents
    assert runs("figure-ablation-posterior", "paper") == 6 * 3 * 3
    assert runs("figure-ablation-value", "paper") == 6 * 2 * 3
    assert runs("table-runtime", "paper") == 7 * 3 * agents
    assert runs("grid-search", "paper") == 6 * (36 + 12 + 12 + 3)
    assert runs("table-1", "small") == 6 * agents
    assert runs("deepsea", "small") == 3 * (agents + 2)  # with both epsilon-greedy schemes
    with pytest.raises(UserError, match="did you mean table-1"):
        experiments.experiment("table1", "paper")


def test_agents_join_when_the_registry_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert experiments.present(("psdrl", "no-such-agent")) == (
        ("psdrl",),
        ("Missing: no-such-agent, which this version does not have.",),
    )
    monkeypatch.setitem(registry.AGENTS, "no-such-agent", registry.AGENTS["psdrl"])
    assert experiments.present(("psdrl", "no-such-agent")) == (("psdrl", "no-such-agent"), ())


def test_the_small_grid_search_can_be_planned_and_says_so() -> None:
    """Its keys and values fit the agents of today; planned on one game to save time."""
    what = experiments.experiment("grid-search", "small")
    blocks = [Block(("Freeway",), b.algos, b.seeds, b.axes, (*b.flags, "--device", "cpu")) for b in what.blocks]
    cases = plan.plan(blocks)
    assert len(cases) == 6 + 3 + 3 + 3
    assert parse_train(list(cases[3].arguments))[0] == cases[3].config
    assert "1 environment, 1 seed, 10,000 steps, preset cpu" in experiments.small_note("grid-search", cases)


def test_the_papers_grids_fit_todays_settings() -> None:
    for algo, axes in experiments.GRIDS.items():
        start = registry.preset({"game": "Pong", "algo": algo, "preset": "paper", "device": "cpu"})[0]
        for point in grid.points(grid.parse(axes)):
            words = ["--game", "Pong", "--algo", algo, "--preset", "paper", *grid.flags(point, start)]
        parse_train(words)[0].check()


def test_cost_is_asked_once_for_equal_work(monkeypatch: pytest.MonkeyPatch) -> None:
    block = Block(
        ("deepsea-6", "CartPole-v1"), ("psdrl",), (0, 1), tuple(grid.parse(["value.discount=0.9,0.95"])), DEBUG
    )
    cases = plan.plan([block])
    asked: list[Case] = []

    def seconds(case: Case, device: str) -> float | None:
        asked.append(case)
        return None if case.env == "CartPole-v1" else 2.0 * case.config.steps

    monkeypatch.setattr(costs, "_seconds", seconds)
    prediction = costs.predict(cases, "a100")
    assert len(asked) == 2
    assert set(prediction.seconds.values()) == {2.0 * cases[0].config.steps}, "what is unknown costs what others do"
    assert prediction.unknown == ["psdrl"]
    assert costs.hours(prediction, 0.5) == pytest.approx(0.5 * 8 * 2.0 * cases[0].config.steps / 3600)


def test_the_forecast_ends_with_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The case under way is waited for, no other is begun: a thread inside of torch aborts Python at its end."""
    cases = plan.plan([Block(tuple(f"deepsea-{size}" for size in range(4, 9)), flags=DEBUG)])
    asked: list[str] = []
    begun, over = threading.Event(), threading.Event()

    def seconds(case: Case, device: str) -> float:
        asked.append(case.env)
        begun.set()
        assert over.wait(60)
        return 1.0

    monkeypatch.setattr(costs, "_seconds", seconds)
    monkeypatch.setattr(sweep, "threading", SimpleNamespace(Thread=threading.Thread, Event=lambda: over))
    with sweep._forecast(Eta([]), cases, 0.0):
        assert begun.wait(60)
    assert asked == ["deepsea-4"]
    assert "forecast" not in [thread.name for thread in threading.enumerate()]


def test_the_best_setting_is_the_one_with_the_best_mean() -> None:
    block = Block(("deepsea-4", "deepsea-5"), ("psdrl",), (0, 1), tuple(grid.parse(["value.units=8,16"])), DEBUG)
    scores: dict[tuple[str, str], Any] = {
        ("deepsea-4", "8"): 1.0,
        ("deepsea-5", "8"): 4.0,
        ("deepsea-4", "16"): 3.0,
        ("deepsea-5", "16"): 3.0,
    }
    cases = plan.plan([block])
    runs = {c: [(100, scores[c.env, c.point[0][1]] - 1), (200, scores[c.env, c.point[0][1]] + 1)] for c in cases}
    found = ranking.ranking(runs)
    assert found is not None
    rows = [(row.setting, row.runs, row.mean, row.rank) for row in found.rows]
    assert rows == [("psdrl, value.units 16", 4, 3.0, 1.5), ("psdrl, value.units 8", 4, 2.5, 1.5)]
    assert found.csv().splitlines()[1].startswith('"psdrl, value.units 16",4,3,1.5')
    missing = next(c for c in cases if c.env == "deepsea-5" and c.point[0][1] == "16")
    other = ranking.ranking({c: e for c, e in runs.items() if (c.env, c.point) != (missing.env, missing.point)})
    assert other is not None
    assert [row.setting for row in other.rows] == ["psdrl, value.units 8"], "one without a score in every game"
