"""Figures and the ablation table: `python -m psdrl.experiments.figures [DIRECTORY]` writes *.png and TABLE.md into
results/ or the directory that `python -m psdrl.experiments.learn --results DIRECTORY` filled."""

import argparse
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from psdrl.agents.psdrl.presets import deepsea_size
from psdrl.envs.atari import GAMES
from psdrl.experiments.learn import RESULTS, SOLVED, VARIANTS, WINDOW

LABELS = {
    "default": "PSDRL (exact sampling)",
    "released": "released sampling rule",
    "egreedy-exploit": "epsilon-greedy, 50k steps",
    "egreedy-explore": "epsilon-greedy, 1M steps",
    "fresh-value": "new value network per update",
    "noise-1": "noise variance 1",
    "mean": "posterior mean + epsilon",
    "random": "random play",
    "one-network": "one value network",
    "no-random-share": "no share of random actions",
    "no-skip": "tanh features only",
    "sticky": "sticky actions, difficulty ramping",
    "whole-state": "features of the whole state",
    "ends-of-states": "ends learned from states only",
    "two-networks": "two value networks",
}
Runs = dict[str, dict[str, list[dict[str, Any]]]]


def load(results: Path) -> Runs:
    """All stored runs by environment and variant, in order of seeds."""
    runs: Runs = defaultdict(lambda: defaultdict(list))
    for path in sorted(results.glob("*/*-seed*.json")):
        run = json.loads(path.read_text())
        runs[run["env"]][run["variant"]].append(run)
    return runs


def colour(variant: str) -> str:
    """The same colour for a variant in every figure: ten strong ones, then ten pale ones."""
    place = list(LABELS).index(variant) if variant in LABELS else len(LABELS)
    return mpl.colors.to_hex(mpl.colormaps["tab20"](2 * place % 20 + place // 10))


def caption(figure: Any, text: str) -> None:
    """What was run, below the axes."""
    figure.text(0.01, 0.01, text, fontsize=7, va="bottom", wrap=True)


def beside(figure: Any, axes: Any) -> None:
    """The legend beside the axes, where it covers nothing, and room for it and for the caption."""
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    figure.subplots_adjust(left=0.08, right=0.68, bottom=0.2)


def ladder(runs: Runs, path: Path) -> None:
    """Episodes until DeepSea-N is solved against N; hollow triangles: not solved when the run ended."""
    figure, axes = plt.subplots(figsize=(9.5, 4.8))
    names = sorted(
        (env for env in runs if deepsea_size(env) and "image" not in env), key=lambda e: deepsea_size(e) or 0
    )
    shown = [v for v in LABELS if any(v in runs[env] for env in names)]
    seeds = set()
    for i, variant in enumerate(shown):
        shift = 0.07 * (i - (len(shown) - 1) / 2)
        middle = []
        runs_of = "/".join(str(len(runs[env].get(variant, []))) for env in names)
        for env in names:
            size = deepsea_size(env) or 0
            for run in runs[env].get(variant, []):
                seeds.add(run["seed"])
                solved = run["solved"] is not None
                axes.plot(
                    size + shift,
                    run["solved"] or len(run["returns"]),
                    "o" if solved else "^",
                    color=colour(variant),
                    fillstyle="full" if solved else "none",
                    alpha=0.8,
                )
            ends = [run["solved"] for run in runs[env].get(variant, []) if run["solved"]]
            if ends and len(ends) == len(runs[env][variant]):
                middle.append((size + shift, float(np.median(ends))))
        axes.plot(
            *zip(*middle, strict=True) if middle else ([], []),
            color=colour(variant),
            label=f"{LABELS[variant]} (runs: {runs_of})",
        )
    sizes = np.array([deepsea_size(env) or 0 for env in names])
    axes.plot(sizes, 2.0**sizes, "k:", linewidth=1, label="2^N: first treasure by random actions")
    axes.set(yscale="log", xlabel="N", ylabel=f"episodes until {SOLVED} of {WINDOW} solved", xticks=sizes)
    axes.set_ylim(20, 1_000_000)
    beside(figure, axes)
    caption(
        figure,
        "Runs: seeds at each N. Dots: solved; hollow triangles: not solved when the run ended; lines: median of all "
        f"seeds.\nSeeds {min(seeds)} to {max(seeds)}; python -m psdrl.train --env deepsea-N --seed K, the flags of "
        "bench/learn.py for the other variants.",
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)


def recent(env: str) -> int:
    """Episodes that an average takes in: 20, or 5 if they have thousands of steps."""
    return 5 if env in GAMES or env == "minatar/freeway" else 20


def curve(run: dict[str, Any], grid: np.ndarray) -> np.ndarray:
    """Mean return of the last episodes at each step of the grid."""
    ends, returns, last = np.array(run["ends"]), np.array(run["returns"]), recent(run["env"])
    counts = np.searchsorted(ends, grid, side="right")
    return np.array([returns[max(0, n - last) : n].mean() if n else np.nan for n in counts])


def command(variants: dict[str, list[dict[str, Any]]]) -> str:
    """The command that made the last of the default runs, if there are any, for any seed."""
    found = variants.get("default") or next(iter(variants.values()))
    return re.sub(r"--seed \d+", "--seed K", found[-1]["command"])


def seeds(found: list[dict[str, Any]]) -> str:
    """`seed 0`, `seeds 0-4` or `seeds 0, 2`."""
    numbers = sorted(run["seed"] for run in found)
    if len(numbers) == 1:
        return f"seed {numbers[0]}"
    consecutive = numbers == list(range(numbers[0], numbers[-1] + 1))
    return "seeds " + (f"{numbers[0]}-{numbers[-1]}" if consecutive else ", ".join(map(str, numbers)))


def curves(env: str, variants: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Learning curves: mean over seeds, the range of seeds shaded."""
    figure, axes = plt.subplots(figsize=(9.5, 4.8))
    for variant, found in variants.items():
        if variant not in LABELS:
            continue
        grid = np.linspace(0, max(run["ends"][-1] for run in found), 100)[1:]
        lines = np.stack([curve(run, grid) for run in found])
        begun = np.isfinite(lines).all(0)  # every seed has ended an episode
        grid, lines = grid[begun], lines[:, begun]
        axes.plot(grid, lines.mean(0), color=colour(variant), label=f"{LABELS[variant]} ({seeds(found)})")
        axes.fill_between(grid, lines.min(0), lines.max(0), color=colour(variant), alpha=0.15, lw=0)
    axes.set(xlabel="environment steps", ylabel=f"return, mean of the last {recent(env)} episodes", title=env)
    beside(figure, axes)
    ended = "\nSolved DeepSea runs end there and go on flat." if deepsea_size(env) else ""
    caption(
        figure,
        f"Mean over seeds, shaded from the worst to the best seed.\n{command(variants)}; "
        f"flags of the other variants in bench/learn.py.{ended}",
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)


def table(runs: Runs) -> str:
    """Markdown: one row per environment and variant."""
    lines = [
        "# Measured runs",
        "",
        "One row per environment and variant, made by `python -m psdrl.experiments.figures` from the files here,",
        f"which hold the exact commands. solved: seeds that found {SOLVED} of {WINDOW} consecutive treasures,",
        "and after how many episodes each; last: mean return of the last 20 episodes (Atari and MinAtar Freeway: 5),",
        "per seed; minutes: of one core, per run, largest.",
        "",
        "| environment | variant | flags | seeds | solved | episodes | last | steps | minutes |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for env, variants in sorted(runs.items(), key=lambda item: (deepsea_size(item[0]) or 999, item[0])):
        for variant in sorted(variants, key=lambda v: list(LABELS).index(v) if v in LABELS else 99):
            found = variants[variant]
            deepsea = deepsea_size(env) is not None
            solved = [run["solved"] for run in found if run["solved"]]
            flags = " ".join(VARIANTS.get(variant, []))
            lines.append(
                f"| {env} | {LABELS.get(variant, variant)} | {f'`{flags}`' if flags else ''} "
                f"| {', '.join(str(run['seed']) for run in found)} "
                f"| {f'{len(solved)} of {len(found)}' if deepsea else ''} "
                f"| {', '.join(str(run['solved'] or '-') for run in found) if deepsea else ''} "
                f"| {', '.join(format(np.mean(run['returns'][-recent(env) :]), '.2f') for run in found)} "
                f"| {max(run['steps'] for run in found):,} "
                f"| {max(run['cpu_minutes'] for run in found):.1f} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Make everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="?", type=Path, default=RESULTS)
    results = parser.parse_args().results
    runs = load(results)
    if any(deepsea_size(env) for env in runs):
        ladder(runs, results / "deepsea.png")
    for env, variants in runs.items():
        curves(env, variants, results / f"{env.replace('/', '-')}.png")
    (results / "TABLE.md").write_text(table(runs))


if __name__ == "__main__":
    main()
