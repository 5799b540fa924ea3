"""What the command line does for those who make no mistake: runs resumed by their directory, finished runs left alone,
several evaluations at once, evaluations that end."""

import inspect
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from psdrl import cli
from psdrl.agents.registry import configure, make_agent
from psdrl.envs import make_env
from psdrl.run import evaluation
from psdrl.run.loop import train
from psdrl.version import __version__
from tests.conftest import Run
from tests.helpers import ListLog

SMALL = ("--preset", "debug", "--device", "cpu", "--eval-every", "0")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 300 steps; tests work on copies."""
    logdir = tmp_path_factory.mktemp("command") / "run"
    assert cli.train(["deepsea-4", *SMALL, "--steps", "3e2", "--value.units", "7", "--logdir", str(logdir)]) == 0
    return logdir


@pytest.fixture
def my_run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "my run"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def stored(run: Path) -> dict[str, Any]:
    return json.loads((run / "config.json").read_text())["config"]


@pytest.mark.parametrize("flags", [(), ("--resume", "must")], ids=["auto", "must"])
def test_a_run_is_resumed_by_its_directory_alone(flags: tuple[str, ...], cli_run: Run, my_run: Path) -> None:
    before = stored(my_run)
    outcome = cli_run("train", *flags, "--logdir", my_run, "--steps", "340")
    assert outcome.code == 0, outcome
    assert "resumed at step 300" in " ".join(outcome.out.split())
    assert "as this run began" in outcome.out
    assert (my_run / "checkpoint-340").is_dir()
    after = stored(my_run)
    assert {name for name in before if before[name] != after[name]} <= {"steps", "logdir", "resume"}
    assert after["value"]["units"] == 7, "not the preset's"


@pytest.mark.parametrize(
    "words",
    [
        ("--steps", "100"),
        (),
        ("--resume", "must"),
        ("--env", "deepsea-4", *SMALL, "--value.units", "7", "--steps", "100"),
    ],
    ids=["shorter", "as long", "must", "with all flags"],
)
def test_a_finished_run_is_left_as_it_is(words: tuple[str, ...], cli_run: Run, my_run: Path) -> None:
    before = contents(my_run)
    outcome = cli_run("train", *words, "--logdir", my_run)
    assert outcome.code == 0
    assert "is finished: it has 300 steps" in outcome.out
    assert ("asks for 100" in outcome.out) == ("100" in words)
    assert "forecast" not in outcome.out
    assert contents(my_run) == before


def test_hints_can_be_pasted(cli_run: Run, my_run: Path) -> None:
    """A directory with a space is quoted, in the hint at a run's end and in that of a finished one."""
    for steps in ("310", "300"):
        outcome = cli_run("train", "--logdir", my_run, "--steps", steps)
        hint = outcome.out.strip().splitlines()[-1]
        assert shlex.split(hint) == ["python", "-m", "psdrl.evaluate", str(my_run)]


def test_profile_of_updates_that_never_came(cli_run: Run, tmp_path: Path) -> None:
    words = ("deepsea-4", *SMALL, "--steps", "300", "--logdir")
    assert "--profile 7:9: nothing was profiled" in cli_run("train", *words, "none", "--profile", "7:9").out
    outcome = cli_run("train", *words, "some", "--profile", "0:1")
    assert "nothing was profiled" not in outcome.out
    assert (tmp_path / "some" / "trace-0-1.json").exists()


def test_default_directory_without_a_colon(cli_run: Run, tmp_path: Path) -> None:
    assert cli_run("train", "gymnasium.envs:CartPole-v1", *SMALL, "--steps", "20").code == 0
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["gymnasium.envs-CartPole-v1-psdrl-0"]


def test_several_runs_as_json(cli_run: Run, my_run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(my_run, tmp_path / "other"))
    outcome = cli_run("evaluate", my_run, other, "--episodes", "3", "--seed", "5", "--json", "out.json")
    assert outcome.code == 0, outcome
    one, two = json.loads((tmp_path / "out.json").read_text())
    assert (one["run"], two["run"]) == (str(my_run), str(other))
    assert (one["env"], one["algo"], one["steps"], one["policy"]) == ("deepsea-4", "psdrl", 300, "sample")
    assert (one["episodes"], one["seed"], one["cut"], one["lengths"]) == (3, 5, 0, [4, 4, 4])
    assert one["mean"] == pytest.approx(np.mean(one["returns"]))
    assert one["sd"] == pytest.approx(np.std(one["returns"]))
    assert one["commit"] == json.loads((my_run / "config.json").read_text())["commit"]
    assert one["version"] == __version__
    assert one["returns"] == two["returns"] == evaluation.evaluate(evaluation.load(my_run), 3, stream=10_005)
    means = re.findall(r"mean (\S+), sd", outcome.out)
    assert means == [f"{one['mean']:.3f}", f"{two['mean']:.3f}"]


def test_json_on_stdout_is_nothing_but_json(cli_run: Run, my_run: Path) -> None:
    outcome = cli_run("evaluate", my_run, "--episodes", "1", "--json", "-")
    assert json.loads(outcome.out)[0]["episodes"] == 1
    assert "episode 1" in outcome.err


def test_seed_chooses_the_episodes(cli_run: Run, tmp_path: Path) -> None:
    assert cli_run("train", "CartPole-v1", *SMALL, "--steps", "20", "--logdir", "cart").code == 0

    def returns(*words: str) -> list[float]:
        outcome = cli_run("evaluate", "cart", "--episodes", "5", "--json", "-", *words)
        return json.loads(outcome.out)[0]["returns"]

    assert returns() == returns("--seed", "0")
    assert returns("--seed", "1") == returns("--seed", "1")
    assert returns("--seed", "1") != returns("--seed", "2")


class Endless(gymnasium.Env[Any, Any]):
    """Never ends an episode; the first observation is drawn, so that episodes differ."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0  # of all of them

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.first = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.first.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Endless.steps += 1
        return self.first.copy(), float(self.first[0]), False, False, {}


@pytest.fixture
def endless() -> Any:
    gymnasium.register("Endless-v0", lambda **options: Endless())
    Endless.steps = 0
    config = configure(env="Endless-v0", preset="debug", device="cpu", steps=60, eval_every=20, checkpoint_every=0)
    env = make_env(config)
    yield make_agent(config, env.spec), env
    env.close()
    del gymnasium.registry["Endless-v0"]


def test_an_endless_episode_is_cut(endless: Any) -> None:
    agent, _ = endless
    played = list(evaluation.play(agent, 3, max_steps=50))
    assert [(episode.length, episode.cut) for episode in played] == [(50, True)] * 3
    assert len({episode.score for episode in played}) == 3, "each starts elsewhere"
    assert evaluation.evaluate(agent, 3, max_steps=50) == [episode.score for episode in played]
    assert inspect.signature(evaluation.evaluate).parameters["max_steps"].default == 27_000, (
        "training's evaluations too"
    )


def test_the_cut_is_said(cli_run: Run, my_run: Path) -> None:
    outcome = cli_run("evaluate", my_run, "--episodes", "2", "--max-steps", "3")
    assert "2 cut at 3 steps: --max-steps" in outcome.out
    assert "cut" not in cli_run("evaluate", my_run, "--episodes", "2", "--max-steps", "0").out


def after(steps: int) -> Callable[[], bool]:
    return lambda: Endless.steps >= steps


def test_stop_ends_an_evaluation(endless: Any) -> None:
    agent, _ = endless
    assert evaluation.evaluate(agent, 3, stop=after(7)) == []
    assert Endless.steps == 7
    assert len(evaluation.evaluate(agent, 3, max_steps=5, stop=after(7 + 12))) == 2, "finished episodes are kept"


def test_stop_ends_training_from_within_an_evaluation(endless: Any) -> None:
    """The first evaluation comes at step 20 and would take 27,000 steps; what it played until then is not logged."""
    agent, env = endless
    log = ListLog()
    train(agent, env, log, after(300))
    assert Endless.steps == 300
    assert agent.step == 20
    assert log.steps_with("eval/return") == []


ENDLESS = """
    import gymnasium, numpy as np

    class Endless(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)
        made = 0
        def __init__(self):
            Endless.made += 1
            self.number = Endless.made
        def reset(self, *, seed=None, options=None):
            return np.zeros(2, np.float32), {}
        def step(self, action):
            if self.number > 1:
                print("evaluating", flush=True)
            return np.zeros(2, np.float32), 0.0, False, False, {}

    gymnasium.register("Endless-v1", Endless)
"""


def test_sigterm_during_an_evaluation_saves(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(textwrap.dedent(ENDLESS))
    flags = [
        "endless:Endless-v1",
        "--preset",
        "debug",
        "--device",
        "cpu",
        "--eval-every",
        "20",
        "--eval-episodes",
        "99",
    ]
    command = [sys.executable, "-m", "psdrl.train", *flags, "--logdir", "run"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("evaluating" in line for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, out + err
    assert "Saved at step 20." in out
    assert (tmp_path / "run" / "checkpoint-20").is_dir()


def test_version_presets_and_envs(cli_run: Run) -> None:
    assert cli_run("psdrl", "--version").out == f"psdrl {__version__}\n"
    table = cli_run("psdrl", "presets").out
    names = [line.split()[0] for line in table.splitlines()[1:-1]]
    assert names == ["paper", "cpu", "deepsea", "minatar", "control", "debug"]
    assert re.search(r"^paper +0 settings", table, re.M)
    deepsea = cli_run("psdrl", "presets", "deepsea", "--env", "deepsea-20").out
    assert re.search(r"^--steps +1000000 +32000 *$", deepsea, re.M), "4 N^3 steps"
    assert re.search(r"^--forward.recurrent +756 +0 *$", deepsea, re.M)
    assert "Why: DeepSea" in deepsea
    paper = cli_run("psdrl", "presets", "paper", "--algo", "bootstrap").out
    assert "--atari.size" not in paper, "it differs from itself in nothing"
    envs = cli_run("psdrl", "envs").out
    for example in ("Pong", "deepsea-10", "minatar/breakout", "CartPole-v1"):
        assert f"psdrl train {example}" in envs
        cli.parse_train([example])
    found = cli_run("psdrl", "envs", "INVADERS").out.splitlines()
    assert found[:2] == ["psdrl train SpaceInvaders", "psdrl train minatar/space_invaders"]
