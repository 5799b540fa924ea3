"""Run directories as `psdrl train` leaves them, with made-up returns: what tests of the report read."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from psdrl.agents import registry
from psdrl.report import paper

STEPS = 1_000_000
EVERY = 10_000


@cache
def _settings(choice: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    return registry.preset(dict(choice) | {"device": "cpu"})[0].to_dict()


def write_run(
    folder: Path,
    *,
    seed: int = 0,
    evaluations: Sequence[tuple[int, float]] = (),
    episodes: Sequence[tuple[int, float]] = (),
    seconds: float = 0.0,
    steps: int = STEPS,
    changes: dict[str, Any] | None = None,
    **choice: Any,
) -> Path:
    """A run of `choice` (game or env, preset, algo) with these evaluations and episodes of training (step, return)."""
    settings = _settings(tuple(sorted(choice.items()))) | {"seed": seed, "steps": steps, "device": "cuda"}
    for name, value in (changes or {}).items():
        group, _, setting = name.rpartition(".")
        settings = settings | ({group: settings[group] | {setting: value}} if group else {setting: value})
    words = ["psdrl", "train", str(choice.get("game") or choice.get("env")), "--seed", str(seed)]
    record = {"version": "0.1.0", "commit": f"{seed:040x}", "command": words, "config": settings}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(record), encoding="utf-8")
    lines = [{"step": step, "eval/return": value} for step, value in evaluations]
    lines += [{"step": step, "train/return": value} for step, value in episodes]
    if seconds:
        lines.append({"step": max(line["step"] for line in lines), "time/value": seconds})
    lines.sort(key=lambda line: line["step"])
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder


def write_benchmark(folder: Path, games: Sequence[str], seeds: int, algos: Sequence[str] = ("psdrl",)) -> None:
    """games x seeds x agents in the paper's protocol: evaluations that grow to about twice the paper's mean score, so
    that their mean is about the paper's, and 200 episodes of training."""
    rng = np.random.default_rng(0)
    steps = np.arange(EVERY, STEPS + 1, EVERY)
    for game in games:
        known = paper.constants()[game]
        for algo in algos:
            level = paper.scores()["psdrl" if algo == "psdrl" else "bp"][game]
            for seed in range(seeds):
                reached = level * rng.uniform(0.8, 1.2)
                noise = 0.05 * abs(reached - known.random) * rng.normal(size=len(steps))
                values = known.random + 2 * (reached - known.random) * steps / STEPS + noise
                ends = np.sort(rng.choice(np.arange(100, STEPS), size=200, replace=False))
                write_run(
                    folder / f"{game}-{algo}-{seed}",
                    game=game,
                    preset="paper",
                    algo=algo,
                    seed=seed,
                    evaluations=list(zip(steps.tolist(), values.tolist(), strict=True)),
                    episodes=[(int(end), float(known.random)) for end in ends],
                    seconds=3600.0 * (8 + seed),
                )
