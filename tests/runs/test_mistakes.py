"""Mistakes that people really make: each is answered by one sentence on stderr and exit code 2, without a traceback,
and nothing on disk has changed. Most run in this process; a handful run as a user's shell would."""

import importlib.util
import json
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from psdrl import cli
from tests.conftest import Outcome, Run

SMALL = ("--preset", "debug", "--device", "cpu", "--eval-every", "0")
TINY = ("deepsea-4", *SMALL, "--steps", "40")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 40 steps; tests work on copies."""
    logdir = tmp_path_factory.mktemp("mistakes") / "run"
    assert cli.train([*TINY, "--logdir", str(logdir)]) == 0
    return logdir


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Path:
    """A working directory with a run, a run without checkpoint, a file and a full folder."""
    shutil.copytree(finished, tmp_path / "run")
    shutil.copytree(finished, tmp_path / "young", ignore=shutil.ignore_patterns("checkpoint-*"))
    (tmp_path / "thesis.tex").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    found = [p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(found)}


def check_one_sentence(outcome: Outcome, says: str) -> None:
    assert outcome.code == 2, outcome
    assert "Traceback" not in outcome.out + outcome.err
    lines = outcome.err.strip().splitlines()
    assert len(lines) == 1, f"one sentence, not {outcome.err!r}"
    assert lines[0].startswith("error: ")
    assert lines[0].endswith((".", "?")), lines[0]
    assert says in lines[0], lines[0]


# What was typed after `psdrl`, and what the sentence says.
MISTAKES: dict[str, tuple[tuple[str, ...], str]] = {
    "command with a typo": (("trian", "Pong"), "did you mean psdrl train?"),
    "game without a command": (("Pong",), "did you mean psdrl train Pong?"),
    "flag without a command": (("--game", "Pong"), "psdrl train"),
    "no environment": (("train", *SMALL), "psdrl train Pong"),
    "game with a typo": (("train", "Pnog"), "did you mean Pong"),
    "game with a typo, as a flag": (("train", "--game", "Breakuot"), "did you mean Breakout"),
    "environment with a typo": (("train", "--env", "CartPol-v1"), "did you mean CartPole-v1"),
    "DeepSea without a size": (("train", "deepsea", *SMALL), "deepsea-N"),
    "Atari by gymnasium's name": (("train", "ALE/Pong-v5", *SMALL), "Pong"),
    "unknown MinAtar game": (("train", "minatar/pong", *SMALL), "MinAtar"),
    "two environments": (("train", "Pong", "--env", "deepsea-4"), "Pong and --env deepsea-4 are two"),
    "two words": (("train", "Pong", "Breakout"), "Pong and Breakout are two"),
    "continuous actions": (("train", "Pendulum-v1", *SMALL), "discrete"),
    "module that is not there": (("train", "nowhere:Thing-v0", *SMALL), "nowhere"),
    "unknown agent": (("train", "Pong", "--algo", "psdlr"), "did you mean psdrl?"),
    "agent of another library": (("train", "Pong", "--algo", "ppo"), "use one of psdrl,"),
    "unknown preset": (("train", "Pong", "--preset", "papr"), "did you mean paper"),
    "flag with a typo": ((*("train", *TINY), "--stepps", "5"), "did you mean --steps"),
    "nested flag with a typo": ((*("train", *TINY), "--valu.units", "5"), "did you mean --value.units"),
    "group forgotten": ((*("train", *TINY), "--units", "5"), "--value.units"),
    "Stable-Baselines3's flag": ((*("train", *TINY), "--total-timesteps", "5"), "did you mean --steps?"),
    "CleanRL's flag": ((*("train", *TINY), "--env-id=Pong"), "--game"),
    "learning rate": ((*("train", *TINY), "--lr", "1e-3"), "--value.learning-rate"),
    "no steps": (("train", "deepsea-4", *SMALL, "--steps", "0"), "--steps is 0 but must be at least 1"),
    "negative steps": (("train", "deepsea-4", *SMALL, "--steps", "-5"), "--steps is -5 but must be at least 1"),
    "half a step": (("train", "deepsea-4", *SMALL, "--steps", "1.5"), "'1.5' is no whole number"),
    "words for a number": (("train", "deepsea-4", *SMALL, "--steps", "many"), "'many' is no whole number"),
    "words for a rate": ((*("train", *TINY), "--value.learning-rate", "low"), "'low' is no number"),
    "flag without its value": (("train", "deepsea-4", *SMALL, "--steps"), "--steps needs a value"),
    "no such precision": ((*("train", *TINY), "--precision", "fp16"), "did you mean bf16"),
    "switch with a value": ((*("train", *TINY), "--compile", "True"), "--no-compile"),
    "device of another library": (("train", "deepsea-4", *SMALL, "--device", "gpu"), "--device gpu"),
    "profile without end": ((*("train", *TINY), "--profile", "3"), "START:STOP"),
    "logdir is a file": ((*("train", *TINY), "--logdir", "thesis.tex"), "is a file"),
    "logdir is something else": ((*("train", *TINY), "--logdir", "full"), "not empty"),
    "other seed, same logdir": ((*("train", *TINY), "--seed", "1", "--logdir", "run"), "seed = 0 there, 1 now"),
    "never resume, but there is a run": (
        (*("train", *TINY), "--resume", "never", "--logdir", "run"),
        "--resume is never",
    ),
    "resume what is no run": (("train", "--resume", "must", "--logdir", "full"), "full is no run"),
    "resume with another agent": (
        ("train", "--logdir", "run", "--algo", "bootstrap", "--steps", "80"),
        "algo = 'psdrl'",
    ),
    "resume with another network": (("train", "--logdir", "run", "--value.units", "9", "--steps", "80"), "value.units"),
    "evaluate nothing": (("evaluate",), "psdrl evaluate runs/"),
    "evaluate what is no run": (("evaluate", "full"), "full is no run"),
    "evaluate too early": (("evaluate", "young"), "no checkpoint"),
    "evaluate a flag with a typo": (("evaluate", "run", "--episode", "3"), "did you mean --episodes"),
    "evaluate no episodes": (("evaluate", "run", "--episodes", "0"), "--episodes is 0"),
    "evaluate an unknown policy": (("evaluate", "run", "--policy", "greedy"), "--policy greedy is none of psdrl's"),
    "a video of no known format": (("evaluate", "run", "--video", "film.avi"), "must end in .mp4 or .gif"),
    "a video of two runs": (("evaluate", "run", "run", "--video", "film.gif"), "films a single run"),
    "JSON nowhere": (("evaluate", "run", "--episodes", "1", "--json", "no/where.json"), "--json no/where.json"),
    "preset with a typo": (("presets", "papr"), "did you mean paper"),
    "presets of an unknown agent": (("presets", "--algo", "rainbow"), "Unknown agent"),
    "no environment of this name": (("envs", "doom"), "doom"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistake(case: str, cli_run: Run, place: Path) -> None:
    words, says = MISTAKES[case]
    before = contents(place)
    check_one_sentence(cli_run("psdrl", *words), says)
    assert contents(place) == before


def test_there_are_thirty() -> None:
    assert len(MISTAKES) >= 30


@pytest.mark.parametrize(("package", "suffix"), [("imageio", "gif"), ("imageio_ffmpeg", "mp4")])
def test_missing_package(package: str, suffix: str, cli_run: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == package else find(name, *more))
    outcome = cli_run("evaluate", "run", "--video", f"film.{suffix}")
    check_one_sentence(outcome, f"{package.replace('_', '-')}: pip install imageio imageio-ffmpeg")
    assert not (place / f"film.{suffix}").exists()


BLIND = """
    import gymnasium, numpy as np

    class Blind(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)
        def reset(self, *, seed=None, options=None):
            self.t = 0
            return np.zeros(2, np.float32), {}
        def step(self, action):
            self.t += 1
            return np.zeros(2, np.float32), 0.0, self.t == 5, False, {}

    class Modeless(Blind):
        def __init__(self, render_mode=None):
            pass

    gymnasium.register("Blind-v0", Blind)
    gymnasium.register("Modeless-v0", Modeless)
"""


@pytest.mark.parametrize("name", ["blind_envs:Blind-v0", "blind_envs:Modeless-v0"])
def test_video_of_what_cannot_be_drawn(name: str, cli_run: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "blind_envs.py").write_text(textwrap.dedent(BLIND))
    monkeypatch.syspath_prepend(str(place))
    assert cli_run("train", name, *SMALL, "--steps", "20", "--logdir", "blind").code == 0
    outcome = cli_run("evaluate", "blind", "--video", "film.gif")
    check_one_sentence(outcome, "leave out --video")
    assert not (place / "film.gif").exists()


def script(*words: str) -> list[str]:
    start = "import sys; from psdrl.cli import main; sys.argv[0] = 'psdrl'; main()"
    return [sys.executable, "-c", start, *words]


PROCESSES: dict[str, tuple[Callable[..., list[str]], tuple[str, ...], str]] = {
    "psdrl": (script, ("train", "Pnog"), "did you mean Pong"),
    "psdrl evaluate": (script, ("evaluate", "full"), "no run"),
    "python -m psdrl.train": (
        lambda *words: [sys.executable, "-m", "psdrl.train", *words],
        ("--game", "Pong", "--lr", "1"),
        "did you mean",
    ),
    "python -m psdrl.evaluate": (
        lambda *words: [sys.executable, "-m", "psdrl.evaluate", *words],
        ("run", "--video", "film.avi"),
        ".mp4",
    ),
}


@pytest.mark.parametrize("case", PROCESSES)
def test_mistake_in_a_shell(case: str, place: Path) -> None:
    make, words, says = PROCESSES[case]
    done = subprocess.run(make(*words), cwd=place, capture_output=True, text=True)
    check_one_sentence(Outcome(done.returncode, done.stdout, done.stderr), says)


def test_a_closed_pipe_is_no_error(place: Path) -> None:
    """`psdrl train --help-all | head -1`, and a run whose reader leaves: it trains on to its end."""
    for words in (("presets",), ("train", "--help"), ("train", "--help-all"), ("train", *TINY, "--logdir", "unread")):
        with subprocess.Popen(script(*words), cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == b"", words
            assert process.wait(60) == 0, words
    assert (place / "unread" / "checkpoint-40").is_dir()
    json.loads((place / "unread" / "config.json").read_text())
