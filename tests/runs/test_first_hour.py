"""The first hour of a user: every command of README.md, docs/tutorial.md and docs/howto/network.md, in order, in fresh
environments.

Commands are read from the pages, so a page cannot promise what does not work. Python blocks with a title are written to
that file first. A command that would take more than a minute runs in a shorter form, which stands in SHORTER with the
reason; a form whose command has left the pages fails the test.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("psdrl", "kernels", "csrc", "docs", "bench", "tests")
BUILT = shutil.ignore_patterns("__pycache__", "*.so", ".lock")
SHORTER = {
    # hours: Pong on a CPU
    "make train": "make train ARGS='--steps 300'",
    # this test is part of the suite
    "make test": "make --dry-run test",
    # three minutes
    "psdrl train CartPole-v1": "psdrl train CartPole-v1 --steps 1000",
    # as long as PSDRL, to show that it does not get there
    "psdrl train deepsea-10 --algo egreedy-exploit": "psdrl train deepsea-10 --algo egreedy-exploit --steps 500",
    # its own logdir: PSDRL's run of DeepSea-10 is there
    "psdrl train deepsea-10 --algo bootstrap": "psdrl train deepsea-10 --algo bootstrap --steps 500",
    "psdrl train deepsea-10 --algo successor": "psdrl train deepsea-10 --algo successor --steps 300",
    # hours, and minutes of compilation
    "psdrl train Pong --compile": "psdrl train Pong --compile --steps 400 --logdir runs/compiled",
    # three minutes
    "psdrl doctor": "psdrl doctor --quick",
    # seven minutes
    "psdrl train Pong --steps 20000": "psdrl train Pong --steps 400",
}


class Block(NamedTuple):
    """A code block of a page."""

    language: str
    title: str | None
    text: str


def blocks(page: Path) -> list[Block]:
    pattern = r"^```(sh|python)(?: title=\"([^\"]+)\")?\n(.*?)^```"
    found = re.findall(pattern, page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [Block(language, title or None, text) for language, title, text in found]


def commands(page: Path) -> list[str]:
    """Lines of the page's shell blocks, without their comments."""
    lines = [line for block in blocks(page) if block.language == "sh" for line in block.text.splitlines()]
    return [stripped for line in lines if (stripped := re.sub(r"\s+#.*", "", line).strip())]


README, TUTORIAL = ROOT / "README.md", ROOT / "docs" / "tutorial.md"
NETWORK = ROOT / "docs" / "howto" / "network.md"


def test_pages_have_the_commands() -> None:
    """The quick part: the forms above belong to commands, and the most important ones are there."""
    there = commands(README) + commands(TUTORIAL)
    assert set(SHORTER) <= set(there)
    assert commands(README)[:2] == ["make train", "make test"]
    assert "make train ENV=deepsea-10" in there
    assert "psdrl train deepsea-10" in there


def checkout(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=BUILT)
    (folder / "results").mkdir()
    files = [path for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".")]
    for path in (*files, *(ROOT / "results").glob("*.*")):
        shutil.copy(path, folder / path.relative_to(ROOT))
    return folder


class Shell:
    """Runs a page's blocks one after another in one directory."""

    def __init__(self, folder: Path, path: Path) -> None:
        self.folder = folder
        unset = ("PYTHONPATH", "VIRTUAL_ENV", "PYTEST_CURRENT_TEST")
        self.environment = {name: value for name, value in os.environ.items() if name not in unset}
        self.environment["PATH"] = f"{path}{os.pathsep}{os.environ['PATH']}"
        # Tests run side by side: threads that wait for each other on busy cores made a run five times as long.
        self.environment["OMP_NUM_THREADS"] = "1"

    def read(self, page: Path) -> None:
        for block in blocks(page):
            if block.language == "python":
                (self.folder / (block.title or "block.py")).write_text(block.text, encoding="utf-8")
                continue
            for line in block.text.splitlines():
                command = re.sub(r"\s+#.*", "", line).strip()
                if command:
                    self.run(SHORTER.get(command, command))

    def run(self, command: str) -> None:
        if command.startswith(". "):  # activate: the path has it already
            assert (self.folder / command[2:]).exists()
            return
        done = subprocess.run(
            command, shell=True, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=1800
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"

    def recent(self, run: str) -> float:
        """Mean return of the last 20 episodes of a run."""
        lines = (self.folder / "runs" / run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        returns = [json.loads(line).get("train/return") for line in lines]
        found = [score for score in returns if score is not None][-20:]
        return sum(found) / len(found)


@pytest.mark.slow
def test_readme(tmp_path: Path) -> None:
    """`make` sets up .venv; the commands by hand then run from it."""
    project = checkout(tmp_path / "psdrl")
    shell = Shell(project, project / ".venv" / "bin")
    shell.read(README)
    assert shell.recent("deepsea-10-psdrl-0") > 0.9
    assert (project / "runs" / "deepsea-10-psdrl-0" / "curve.png").stat().st_size
    assert (project / "dive.mp4").stat().st_size
    shell.run("python block.py")


@pytest.mark.slow
def test_tutorial(tmp_path: Path) -> None:
    """From an empty directory with a checkout in it."""
    checkout(tmp_path / "psdrl")
    shell = Shell(tmp_path, tmp_path / "psdrl-env" / "bin")
    shell.read(TUTORIAL)
    shell.read(NETWORK)
    for run in ("deepsea-10-psdrl-0", "catch-Catch-v0-psdrl-0"):
        assert shell.recent(run) > 0.8, run
        assert (tmp_path / "runs" / run / "curve.png").stat().st_size
    assert shell.recent("deepsea-10-egreedy-exploit-0") < 0.5
    assert (tmp_path / "dive.mp4").stat().st_size
    assert (tmp_path / "catch.gif").stat().st_size
