"""DeepSea: episodes until it is solved, against N and by agent."""

from collections import defaultdict
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.lines import Line2D

from psdrl.envs.deepsea import SOLVED, WINDOW, deepsea_size
from psdrl.report.outcomes import Outcome
from psdrl.report.style import GREY, LOOK, STYLES, Drawing, colour, ids, label, new_figure

Envs = dict[str, dict[str, list[Outcome]]]  # environment, agent, runs in order of seeds
TICKS = [10, 20, 50, 100, 200, 400, 800, 1600, 3200, 6400, 12800]


def episodes(run: Outcome) -> int:
    """Episodes until solved, or those of the whole run."""
    return run.solved or len(run.episodes.steps)


def spread(count: int, width: float) -> np.ndarray:
    """Offsets that keep the marks of `count` seeds apart."""
    return np.linspace(-width, width, count) if count > 1 else np.zeros(1)


def growth(envs: Envs) -> dict[str, dict[int, list[Outcome]]]:
    """Runs by agent and N, of every agent that most seeds solved at two sizes or more: else no median is known."""
    found: dict[str, dict[int, list[Outcome]]] = defaultdict(dict)
    for env, agents in envs.items():
        for agent, runs in agents.items():
            most = 2 * sum(run.solved is not None for run in runs) > len(runs)
            if agent in STYLES and most and not env.endswith("-image"):
                found[agent][deepsea_size(env) or 0] = runs
    return {agent: by_size for agent, by_size in found.items() if len(by_size) > 1}


def seed_mark(axes: Any, run: Outcome, at: tuple[float, float], shade: str, unsolved: str) -> None:
    """A seed: a dot, or a hollow mark that points to where it would have been solved."""
    face, marker = (shade, "o") if run.solved else ("none", unsolved)
    axes.plot(*at, marker, color=shade, mfc=face, ms=3, mew=0.7)


def sizes(axes: Any, found: dict[str, dict[int, list[Outcome]]]) -> None:
    """Episodes until solved against N, one mark per seed."""
    shown = sorted({n for by_size in found.values() for n in by_size})
    for agent, by_size in found.items():
        _, shade, line = STYLES[agent]
        at = []
        for n, runs in by_size.items():
            beside = [other for other in found if n in found[other]]
            at.append(n + 1.1 * (beside.index(agent) - (len(beside) - 1) / 2))
            for run, shift in zip(runs, spread(len(runs), 0.45), strict=True):
                seed_mark(axes, run, (at[-1] + shift, episodes(run)), shade, "^")
        middle = [float(np.median([episodes(run) for run in runs])) for runs in by_size.values()]
        axes.plot(at, middle, line, color=shade, lw=1, label=f"{label(agent)} (line: median)")
    grid = np.linspace(shown[0], shown[-1], 50)
    axes.plot(grid, 2.0**grid, ":", color=GREY, lw=1, label="$2^N$: random actions")
    most = max(episodes(run) for by_size in found.values() for runs in by_size.values() for run in runs)
    axes.set(yscale="log", xlabel="N (size of the grid)", xticks=shown, ylim=(40, 10 * most))
    axes.set(ylabel="episodes until solved", title="Growth with N")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, _below(axes)), frameon=False)


def _below(axes: Any) -> float:
    """Where a legend begins: under the label of the horizontal axis, whatever the figure's height."""
    return -0.4 / (axes.figure.get_figheight() - 1)


def episode_ticks(found: list[int]) -> tuple[float, float, list[int]]:
    """Limits of a logarithmic axis around these numbers, and at least two ticks."""
    low, high = max((t for t in TICKS if t < min(found)), default=5), 1.1 * max(found)
    if sum(low <= t <= high for t in TICKS) < 2:
        high = min((t for t in TICKS if t > high), default=2 * high)
    return low, high, [t for t in TICKS if low <= t <= high]


def strip(axes: Any, envs: Envs) -> None:
    """One row per environment and agent, one mark per seed: solved (dot) or not solved when the run ended."""
    rank = {agent: i for i, agent in enumerate(STYLES)}
    rows = [
        (env, agent, agents[agent])
        for env, agents in envs.items()
        for agent in sorted(agents, key=lambda agent: rank.get(agent, len(rank)))
    ]
    names = []
    for y, (env, agent, runs) in enumerate(rows):
        for run, shift in zip(runs, spread(len(runs), 0.27), strict=True):
            seed_mark(axes, run, (episodes(run), y + shift), colour(agent), ">")
        first = y == 0 or env != rows[y - 1][0]
        names.append(f"{env.replace('deepsea', 'DeepSea')}   {label(agent)}" if first else label(agent))
        if first and y:
            axes.axhline(y - 0.5, color=GREY, lw=0.6)
    axes.set(yticks=range(len(rows)), yticklabels=names)
    axes.grid(axis="y", visible=False)
    axes.set(xscale="log", xlabel="episodes", title="By agent, one mark per seed")
    low, high, ticks = episode_ticks([episodes(run) for _, _, runs in rows for run in runs])
    axes.set(xlim=(low, high), xticks=ticks, xticklabels=[str(t) for t in ticks])
    axes.minorticks_off()
    axes.set_ylim(len(rows) - 0.4, -0.6)
    where = {"loc": "upper center", "bbox_to_anchor": (0.4, _below(axes))}
    axes.legend(handles=_kinds(rows), **where, ncols=2, frameon=False)


def _kinds(rows: list[tuple[str, str, list[Outcome]]]) -> list[Line2D]:
    """A legend of the marks that occur."""
    kinds = {run.solved is not None for _, _, runs in rows for run in runs}
    look = {True: ("o", "black", "solved"), False: (">", "none", "not solved when the run ended")}
    return [
        Line2D([], [], ls="none", marker=look[kind][0], color="black", mfc=look[kind][1], ms=3, label=look[kind][2])
        for kind in sorted(kinds, reverse=True)
    ]


def drawing(envs: Envs, name: str) -> Drawing:
    """Both views; the second alone unless an agent solved several sizes."""
    rows, found = sum(map(len, envs.values())), growth(envs)
    both = bool(found)
    figure = new_figure(5 + 4 * both, max(3.2 if both else 2.4, 1.2 + 0.25 * rows))
    with mpl.rc_context(LOOK):
        if both:
            sizes(figure.add_subplot(1, 2, 1), found)
        strip(figure.add_subplot(1, 1 + both, 1 + both), envs)
    caption = (
        f"DeepSea rewards one path of N steps in 2^N. Solved: the treasure in {SOLVED} of {WINDOW} consecutive "
        "episodes. Each mark is a seed; a hollow one was not solved when its run ended."
    )
    runs = [run for agents in envs.values() for runs in agents.values() for run in runs]
    return Drawing(name, "DeepSea: episodes until solved", caption, _alt(envs), figure, ids(runs))


def _alt(envs: Envs) -> str:
    said = []
    for env, agents in envs.items():
        for agent, runs in agents.items():
            solved = [run.solved for run in runs if run.solved]
            median = f", median {np.median(solved):g} episodes" if solved else ""
            said.append(f"{env}, {label(agent)}: {len(solved)} of {len(runs)} solved{median}")
    return f"Episodes until DeepSea is solved. {'; '.join(said)}."
