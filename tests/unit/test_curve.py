"""curve.png: drawn from metrics.jsonl at the end of a run that has enough episodes, or one sentence says why not."""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from psdrl.run.callbacks import curve
from psdrl.run.callbacks.curve import RECENT, Curve


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def ended(logdir: Path, episodes: int) -> Any:
    """A run with this many episodes of ten steps, an update after each."""
    lines = [{"step": 10 * i, "train/return": i / episodes, "train/length": 10.0} for i in range(1, episodes + 1)]
    mixed = [each for line in lines for each in (line, {"step": line["step"], "loss/value": 1.0})]
    (logdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in mixed), encoding="utf-8")
    agent = SimpleNamespace(spec=SimpleNamespace(name="CartPole-v1"))
    return SimpleNamespace(logdir=logdir, agent=agent, config=SimpleNamespace(algo="psdrl"))


def test_drawn_at_the_end(tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    draw = curve.draw

    def noted(*what: Any) -> None:
        drawn.append(what)
        draw(*what)

    monkeypatch.setattr(curve, "draw", noted)
    Curve(console).on_end(ended(tmp_path, RECENT), None)
    (path, steps, returns, title), *others = drawn
    assert not others
    assert path.read_bytes().startswith(b"\x89PNG")
    assert (steps[0], steps[-1], len(returns), returns[-1]) == (10, 10 * RECENT, RECENT, 1.0)
    assert title == "CartPole-v1, psdrl"
    assert said(console) == f"Returns of all episodes: {path}\n"


def test_no_curve_of_few_episodes_or_of_a_run_that_failed(tmp_path: Path, console: Console) -> None:
    Curve(console).on_end(ended(tmp_path, RECENT - 1), None)
    Curve(console).on_end(ended(tmp_path, RECENT), ValueError("diverged"))
    assert not (tmp_path / "curve.png").exists()
    assert said(console) == ""


def test_without_matplotlib(tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    Curve(console).on_end(ended(tmp_path, RECENT), None)
    assert said(console) == "No picture of the returns: pip install matplotlib.\n"
    assert not (tmp_path / "curve.png").exists()
