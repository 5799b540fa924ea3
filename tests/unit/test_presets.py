"""Presets behind published results: their resolved settings are those of presets.md."""

import json
from pathlib import Path
from typing import Any

import pytest

import psdrl
from psdrl.config import lookup
from tests.helpers import dotted_names

PINNED = Path(__file__).with_name("presets.md")
RUNS: dict[str, dict[str, str]] = {
    "deepsea-10": {"env": "deepsea-10"},
    "deepsea-20": {"env": "deepsea-20"},
    "CartPole-v1": {"env": "CartPole-v1"},
    "minatar/asterix": {"env": "minatar/asterix"},
    "Pong, cpu": {"game": "Pong", "preset": "cpu"},
    "Pong, paper": {"game": "Pong", "preset": "paper"},
}
OWN = {"game", "env", "logdir", "device"}  # what a user names, and no preset sets


def pinned() -> dict[str, dict[str, Any]]:
    """Run -> setting -> value, as in presets.md."""
    lines = [line for line in PINNED.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    heads, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {run: {row[0]: json.loads(row[i]) for row in rows} for i, run in enumerate(heads) if i}


@pytest.mark.parametrize("run", RUNS)
def test_preset_is_the_one_of_the_published_results(run: str) -> None:
    config = psdrl.configure(**RUNS[run], device="cpu")
    found = {name: json.loads(json.dumps(lookup(config, name))) for name in dotted_names(config) if name not in OWN}
    table = pinned()[run]
    different = [
        f"{name}: {found.get(name, 'no such setting')} now, {table.get(name, 'absent')} in {PINNED.name}"
        for name in sorted(found.keys() | table.keys())
        if name not in found
        or name not in table
        or (found[name], type(found[name])) != (table[name], type(table[name]))
    ]
    assert not different, (
        f"The preset of {run} has changed, and published results rest on it. If meant, change tests/unit/{PINNED.name} "
        "too, and measure results/ anew or say that they belong to the old preset:\n" + "\n".join(different)
    )


def test_every_column_is_compared() -> None:
    assert list(pinned()) == list(RUNS)
