"""Figures and the table of all runs: `python -m psdrl.experiments.figures [DIRECTORY]` writes SUITE.png and TABLE.md
into results/ or the directory that `python -m psdrl.experiments.learn --results DIRECTORY` filled."""

import argparse
import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D

from psdrl.envs.atari import GAMES
from psdrl.envs.deepsea import deepsea_size
from psdrl.experiments import records
from psdrl.experiments.learn import METHODS, RESULTS, SOLVED, WINDOW
from psdrl.experiments.records import Run

# Colours of Okabe and Ito, which colour-blind readers tell apart; a dash where two are near each other in grey.
STYLES: dict[str, tuple[str, str, str]] = {
    "psdrl": ("PSDRL", "#0072B2", "-"),
    "bootstrap": ("Bootstrapped DQN + priors", "#D55E00", "-"),
    "mean": ("posterior mean, ε 0.05", "#009E73", "--"),
    "released": ("released rule", "#E69F00", "-"),
    "fresh-value": ("new value network", "#CC79A7", "-"),
    "egreedy-exploit": ("ε-greedy, 50k steps", "#D55E00", "--"),
    "egreedy-explore": ("ε-greedy, 1M steps", "#56B4E9", "-."),
    "noise-1": ("noise variance 1", "#000000", "-"),
    "random": ("random play", "#777777", ":"),
    "half-episodes": ("a draw per half episode", "#777777", "-"),
    "mid-episode": ("a draw per 1.5 episodes", "#777777", "-"),
    "two-episodes": ("a draw per 2 episodes", "#777777", "-"),
}
# One option differs from PSDRL: drawn in panels of their own, in this order of colours.
OPTIONS = (
    ("#D55E00", "--"),
    ("#009E73", "-."),
    ("#E69F00", "-"),
    ("#CC79A7", "--"),
    ("#56B4E9", "-"),
    ("#000000", ":"),
    ("#777777", "-"),
    ("#000000", "--"),
)
FAR = 1.5  # lines of a panel end at the same step; runs more than so many times as long have a panel of their own
plt.rcParams |= {"font.size": 8, "axes.titlesize": 9, "legend.fontsize": 7.5, "axes.grid": True, "grid.alpha": 0.25}
plt.rcParams |= {"axes.spines.top": False, "axes.spines.right": False}
Methods = dict[str, list[Run]]  # the runs of one environment by method, in order of seeds


def by_env(runs: list[Run]) -> dict[str, Methods]:
    """Runs by environment and method; of one seed with several budgets the longest."""
    longest: dict[tuple[str, str, int], Run] = {}
    for run in sorted(runs, key=lambda run: (run.budget or 0, run.steps or 0)):
        longest[run.env, run.method, run.seed] = run
    found: dict[str, Methods] = defaultdict(lambda: defaultdict(list))
    for key in sorted(longest):
        found[key[0]][key[1]].append(longest[key])
    order = [*STYLES, *METHODS]
    rank = {name: i for i, name in reversed(list(enumerate(order)))}
    return {
        env: {name: found[env][name] for name in sorted(found[env], key=lambda m: (rank.get(m, len(order)), m))}
        for env in sorted(found, key=lambda env: (deepsea_size(env) or 999, env))
    }


def label(method: str) -> str:
    return STYLES[method][0] if method in STYLES else method


def recent(env: str) -> int:
    """Episodes that an average takes in: 20, or 5 if they have thousands of steps."""
    return 5 if env in GAMES or env == "minatar/freeway" else 20


def save(figure: Any, path: Path) -> None:
    """Write a small file that does not depend on the version of matplotlib's label."""
    what = {"metadata": {"Software": None}, "pil_kwargs": {"optimize": True}}
    figure.savefig(path, dpi=110, bbox_inches="tight", pad_inches=0.05, **what)
    plt.close(figure)


# DeepSea: episodes until it is solved


def spread(count: int, width: float) -> np.ndarray:
    """Offsets that keep the marks of `count` seeds apart."""
    return np.linspace(-width, width, count) if count > 1 else np.zeros(1)


def growth(envs: dict[str, Methods]) -> dict[str, dict[int, list[Run]]]:
    """Runs by method and N, of every method that most seeds solved at two sizes or more."""
    found: dict[str, dict[int, list[Run]]] = defaultdict(dict)
    for env, methods in envs.items():
        for method, runs in methods.items():
            most = 2 * sum(run.solved is not None for run in runs) > len(runs)  # so the median is known
            if method in STYLES and most and not env.endswith("-image"):
                found[method][deepsea_size(env) or 0] = runs
    return {method: by_size for method, by_size in found.items() if len(by_size) > 1}


def seed_mark(axes: Any, run: Run, at: tuple[float, float], colour: str, unsolved: str) -> None:
    """A seed: a dot, or a hollow mark that points to where it would have been solved."""
    face, marker = (colour, "o") if run.solved else ("none", unsolved)
    axes.plot(*at, marker, color=colour, mfc=face, ms=3, mew=0.7)


def episodes(run: Run) -> int:
    """Episodes until solved, or those of the whole run."""
    return run.solved or len(run.returns)


def sizes(axes: Any, found: dict[str, dict[int, list[Run]]]) -> None:
    """Episodes until solved against N, one mark per seed."""
    shown = sorted({n for by_size in found.values() for n in by_size})
    for method, by_size in found.items():
        _, colour, line = STYLES[method]
        at = []
        for n, runs in by_size.items():
            beside = [other for other in found if n in found[other]]
            at.append(n + 1.1 * (beside.index(method) - (len(beside) - 1) / 2))
            for run, shift in zip(runs, spread(len(runs), 0.45), strict=True):
                seed_mark(axes, run, (at[-1] + shift, episodes(run)), colour, "^")
        middle = [float(np.median([episodes(run) for run in runs])) for runs in by_size.values()]
        axes.plot(at, middle, line, color=colour, lw=1, label=f"{label(method)} (line: median)")
    grid = np.linspace(shown[0], shown[-1], 50)
    axes.plot(grid, 2.0**grid, ":", color="#777777", lw=1, label="$2^N$: random actions")
    most = max(episodes(run) for by_size in found.values() for runs in by_size.values() for run in runs)
    axes.set(yscale="log", xlabel="N (size of the grid)", xticks=shown, ylim=(40, 10 * most))
    axes.set(ylabel="episodes until solved", title="Growth with N")
    axes.legend(loc="lower right", frameon=False)


def episode_ticks(found: list[int]) -> tuple[float, float, list[int]]:
    """Limits of a logarithmic axis around these numbers, and at least two ticks."""
    marks = [10, 20, 50, 100, 200, 400, 800, 1600, 3200, 6400, 12800]
    low, high = max((t for t in marks if t < min(found)), default=5), 1.1 * max(found)
    if sum(low <= t <= high for t in marks) < 2:
        high = min((t for t in marks if t > high), default=2 * high)
    return low, high, [t for t in marks if low <= t <= high]


def strip(axes: Any, envs: dict[str, Methods]) -> None:
    """One row per environment and method, one mark per seed: solved (dot) or not solved when the run ended."""
    rows = [(env, method, runs) for env, methods in envs.items() for method, runs in methods.items()]
    for y, (_, method, runs) in enumerate(rows):
        colour = STYLES[method][1] if method in STYLES else "#777777"
        for run, shift in zip(runs, spread(len(runs), 0.27), strict=True):
            seed_mark(axes, run, (episodes(run), y + shift), colour, ">")
    names = []
    for y, (env, method, _) in enumerate(rows):
        first = y == 0 or env != rows[y - 1][0]
        names.append(f"{env.replace('deepsea', 'DeepSea')}   {label(method)}" if first else label(method))
        if first and y:
            axes.axhline(y - 0.5, color="#777777", lw=0.6)
    axes.set(yticks=range(len(rows)), yticklabels=names)
    axes.grid(axis="y", visible=False)
    axes.set(xscale="log", xlabel="episodes", title="By method, one mark per seed")
    found = [episodes(run) for _, _, runs in rows for run in runs]
    low, high, ticks = episode_ticks(found)
    axes.set(xlim=(low, high), xticks=ticks, xticklabels=[str(t) for t in ticks])
    axes.minorticks_off()
    axes.set_ylim(len(rows) - 0.4, -0.6)
    kinds = {run.solved is not None for _, _, runs in rows for run in runs}
    look = {True: ("o", "black", "solved"), False: (">", "none", "not solved when the run ended")}
    handles = [
        Line2D([], [], ls="none", marker=look[kind][0], color="black", mfc=look[kind][1], ms=3, label=look[kind][2])
        for kind in sorted(kinds, reverse=True)
    ]
    axes.legend(
        handles=handles,
        loc="upper center",
        bbox_to_anchor=(0.4, -0.4 / (axes.figure.get_figheight() - 1)),
        ncol=2,
        frameon=False,
    )


def deepsea(envs: dict[str, Methods], path: Path) -> None:
    """Both views; the second alone unless a method solved several sizes."""
    rows = sum(map(len, envs.values()))
    found = growth(envs)
    both, height = bool(found), max(2.4 if not found else 3.2, 1.2 + 0.25 * rows)
    figure, axes = plt.subplots(1, 1 + both, figsize=(5 + 4 * both, height), squeeze=False, layout="constrained")
    if both:
        sizes(axes[0, 0], found)
    strip(axes[0, -1], envs)
    figure.supxlabel(
        f"Solved: the treasure in {SOLVED} of {WINDOW} consecutive episodes. python -m psdrl.experiments.figures",
        fontsize=7,
        x=0.5,
    )
    save(figure, path)


# All other suites: learning curves


def curve(run: Run, grid: np.ndarray) -> np.ndarray:
    """Mean return of the last episodes at each step of the grid."""
    returns, last = np.array(run.returns), recent(run.env)
    counts = np.searchsorted(np.array(run.ends), grid, side="right")
    return np.array([returns[max(0, n - last) : n].mean() if n else np.nan for n in counts])


def last_step(runs: list[Run]) -> int:
    """The steps that all seeds have."""
    return min(run.steps or run.ends[-1] for run in runs)


def common(methods: Methods) -> dict[str, int]:
    """Where each method's line ends: where its shortest run does, or that of the panel's shortest method, so that means
    are compared over equal lengths; a method with far longer runs keeps its own."""
    ends = {method: last_step(runs) for method, runs in methods.items()}
    least = min(ends.values(), default=0)
    return {method: least if end <= FAR * least else end for method, end in ends.items()}


def drawn(axes: Any, method: str, runs: list[Run], end: int, style: tuple[str, str], shade: bool) -> None:
    """One method's line; what it came to later, if its runs go on, is in the legend."""
    grid = np.linspace(0, end, 121)[1:]
    lines = np.stack([curve(run, grid) for run in runs])
    begun = np.isfinite(lines).all(0)  # every seed has ended an episode
    grid, lines = grid[begun] / 1000, lines[:, begun]
    own = last_step(runs)
    later = np.mean([curve(run, np.array([own])) for run in runs])
    name = f"{label(method)} ({len(runs)}" + (f"; {later:.3g} at {own / 1000:g}k)" if own > end else ")")
    axes.plot(grid, lines.mean(0), style[1], color=style[0], lw=1.3, label=name, zorder=3 if method == "psdrl" else 2)
    if shade and len(runs) > 1:
        axes.fill_between(grid, lines.min(0), lines.max(0), color=style[0], alpha=0.18, lw=0)


def panel(axes: Any, env: str, methods: Methods) -> None:
    """Curves of one environment. Random play does not change, so it is a level: the mean of all its episodes."""
    options = iter(OPTIONS * len(methods))
    ends = common({method: runs for method, runs in methods.items() if method != "random"})
    for method, runs in methods.items():
        if method == "random":
            level = float(np.mean([score for run in runs for score in run.returns]))
            axes.axhline(level, color="#777777", ls=":", lw=1.3, label=f"random play ({len(runs)})")
            continue
        style = STYLES[method][1:] if method in STYLES else next(options)
        drawn(axes, method, runs, ends[method], style, shade=method == "psdrl" or len(methods) <= 3)
    axes.set(xlabel="environment steps (thousands)", ylabel=f"return (last {recent(env)} episodes)", title=env)
    axes.set_xlim(left=0)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False, ncol=1 + (len(methods) > 3))


def panels(env: str, methods: Methods) -> list[tuple[str, Methods]]:
    """An environment's panels: whole methods, those with far longer runs, and PSDRL with single options changed."""
    whole = {name: runs for name, runs in methods.items() if name in STYLES}
    single = {name: runs for name, runs in methods.items() if name not in STYLES}
    base = {name: whole[name] for name in whole if name == "psdrl"}
    usual = max((run.steps or 0 for runs in base.values() for run in runs), default=math.inf)
    far = {name: runs for name, runs in whole.items() if min(run.steps or 0 for run in runs) > FAR * usual}
    near = {name: runs for name, runs in whole.items() if name not in far}
    shown = [(env, near)] if set(near) - {"psdrl"} or not (far or single) else []
    if far:  # beside PSDRL, whose curve would be a few pixels wide in a panel with many
        shown.append((f"{env}, longer runs" if shown else env, base | far))
    if single:
        shown.append((f"{env}, one option changed" if shown else env, base | single))
    return shown


def cells(count: int) -> tuple[list[tuple[int, slice]], tuple[int, int]]:
    """Where panels stand, three to a row or fewer, so that every row fills the width; and the grid's size."""
    tall = math.ceil(count / 3)
    rows = [count // tall + (i < count % tall) for i in range(tall)]
    size = math.lcm(*rows)
    at = [(row, slice(i * size // n, (i + 1) * size // n)) for row, n in enumerate(rows) for i in range(n)]
    return at, (tall, size)


def curves(envs: dict[str, Methods], path: Path) -> None:
    """Learning curves of a suite."""
    shown = [(env, *each) for env, methods in envs.items() for each in panels(env, methods)]
    at, (tall, columns) = cells(len(shown))
    wide = min(3, len(shown))
    most = max(len(methods) for _, _, methods in shown)
    size = (3.7 * wide + 0.8 * (wide == 1), tall * (2.6 + 0.09 * most))
    figure = plt.figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(tall, columns)
    for cell, (env, title, methods) in zip(at, shown, strict=True):
        axes = figure.add_subplot(grid[cell])
        panel(axes, env, methods)
        axes.set_title(title)
    words = [
        "Lines: mean over seeds (their number in brackets), all as long as the shortest; in brackets, what came later.",
        "Shaded: worst to best seed. python -m psdrl.experiments.figures",
    ]
    figure.supxlabel(("\n" if wide < 3 else " ").join(words), fontsize=7)
    save(figure, path)


# The table


def row(env: str, method: str, runs: list[Run], flags: str) -> str:
    """One row of the table."""
    deepsea = deepsea_size(env) is not None
    solved = [run.solved for run in runs if run.solved]
    steps, minutes = (
        [v for v in values if v is not None] for values in zip(*((r.steps, r.cpu_minutes) for r in runs), strict=True)
    )
    return (
        f"| {env} | {method} | {f'`{flags}`' if flags else ''} "
        f"| {', '.join(str(run.seed) for run in runs)} "
        f"| {f'{len(solved)} of {len(runs)}' if deepsea else ''} "
        f"| {', '.join(str(run.solved or '-') for run in runs) if deepsea else ''} "
        f"| {', '.join(format(np.mean(run.returns[-recent(env) :]), '.2f') for run in runs)} "
        f"| {f'{max(steps):,}' if steps else ''} "
        f"| {f'{max(minutes):.1f}' if minutes else ''} |"
    )


def table(envs: dict[str, Methods], earlier: dict[str, Methods]) -> str:
    """Markdown: one row per environment and method, then the archive of earlier settings."""
    head = [
        "| environment | method | flags | seeds | solved | episodes | last | steps | minutes |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines = [
        "# Measured runs",
        "",
        "One row per environment and method, made by `python -m psdrl.experiments.figures` from",
        f"`SUITE/METHOD.jsonl.gz`, with commands. solved: seeds that found {SOLVED} of {WINDOW} consecutive treasures,",
        "and after how many episodes each; last: mean return of the last 20 episodes (Atari and MinAtar Freeway: 5),",
        "per seed; minutes: of one core, per run, largest.",
        "",
        *head,
    ]
    for env, methods in envs.items():
        lines += [row(env, method, runs, " ".join(METHODS.get(method, []))) for method, runs in methods.items()]
    if earlier:
        text = (
            f"What `{records.ARCHIVE}` holds, by the names that docs/experiments.md calls `tuning/ENVIRONMENT/METHOD`;"
        )
        lines += ["", "## Runs with earlier settings", "", text, "its lines hold the commands.", "", *head]
        lines += [row(env, m, runs, "") for env, methods in earlier.items() for m, runs in methods.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Make everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="?", type=Path, default=RESULTS)
    results = parser.parse_args().results
    archive = results / records.ARCHIVE
    try:
        envs = by_env(records.load(results))
        earlier = by_env(records.read(archive)) if archive.exists() else {}
    except records.Damaged as error:
        sys.exit(str(error))
    if not envs:
        sys.exit(f"{results} holds no runs: python -m psdrl.experiments.learn --results {results} makes some.")
    for suite in sorted({records.suite(env) for env in envs}):
        mine = {env: methods for env, methods in envs.items() if records.suite(env) == suite}
        (deepsea if suite == "deepsea" else curves)(mine, results / f"{suite}.png")
    (results / "TABLE.md").write_text(table(envs, earlier))


if __name__ == "__main__":
    main()
