"""Figures of comparisons: differences by game, IQM, performance profiles, probability of improvement."""

from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from psdrl.report.comparisons import (
    CLIP,
    SEVERAL,
    Aggregate,
    Difference,
    Improvement,
    Side,
    aggregates,
    differences,
    improvements,
    profiles,
    references,
    shared,
    sides,
)
from psdrl.report.curves import slug
from psdrl.report.protocols import Group
from psdrl.report.statistics import Estimate
from psdrl.report.style import (
    BLUE,
    GREY,
    LEVELS,
    LOOK,
    OTHERS,
    PAPER_STYLES,
    RED,
    STYLES,
    Drawing,
    ids,
    legend_below,
    new_figure,
)

TOGETHER = 5  # games: fewer of them, and all agents share a figure
TAUS = np.linspace(-0.5, 2.5, 121)


def drawings(group: Group, number: int) -> Iterator[Drawing]:
    """All comparisons of a group, which is the protocol of this number."""
    found = sides(group)
    learners = [side for side in found if side.key not in LEVELS]
    yield from _difference_drawings(group, learners, number)
    made = aggregates(found)
    if max((len(each.games) for each in made), default=0) >= SEVERAL:
        yield _iqm(group, made, number)
    if len(shared(*learners) if learners else []) >= SEVERAL:
        yield _profile(group, learners, number)
    better = [each for each in improvements(found) if _ordered(each, found)]
    if better:
        yield _improvement(group, better, number)


def _ordered(each: Improvement, found: list[Side]) -> bool:
    """One of the two directions: the first agent of several over all others, or all over the paper, if that has more
    than one run to be better than: it published one number per game."""
    return each.envs >= SEVERAL if each.other.published else each.ours is found[0]


def _row_height(rows: int) -> float:
    return 1.5 + 0.17 * rows


def _estimate_bar(axes: Any, y: float, estimate: Estimate, clip: float = np.inf) -> None:
    """The interval of a bar or dot."""
    if estimate.low is not None and estimate.high is not None:
        low, high = np.clip([estimate.low, estimate.high], -clip, clip)
        axes.plot([low, high], [y, y], color="black", lw=0.9, solid_capstyle="butt")


# Differences


def _difference_drawings(group: Group, found: list[Side], number: int) -> Iterator[Drawing]:
    for other in references(found):
        rows = [d for ours in found if ours.key != other.key or other.published for d in differences(ours, other)]
        if len({d.game for d in rows}) < TOGETHER:
            parts = [("", rows)]
        else:
            parts = [(ours.name, [d for d in rows if d.ours is ours]) for ours in found]
        for ours_name, part in parts:
            if part:
                yield _difference(group, sorted(part, key=lambda d: -d.estimate.value), other, ours_name, number)


def _difference(group: Group, rows: list[Difference], other: Side, ours: str, number: int) -> Drawing:
    """Bars, the best on top, blue where ours is better."""
    figure = new_figure(6.4, _row_height(len(rows)))
    with mpl.rc_context(LOOK):
        axes = figure.add_subplot()
        for y, row in enumerate(rows):
            value = row.estimate.value
            shown = float(np.clip(value, -CLIP, CLIP))
            axes.barh(y, shown, color=BLUE if value >= 0 else RED, height=0.72, alpha=0.85)
            _estimate_bar(axes, y, row.estimate, CLIP)
            if abs(value) > CLIP:
                side = "left" if value > 0 else "right"
                axes.annotate(
                    f"{value:+.1f}",
                    (shown, y),
                    (3 if value > 0 else -3, 0),
                    textcoords="offset points",
                    ha=side,
                    va="center",
                    fontsize=6.5,
                )
        names = [row.game if ours else f"{row.game}, {row.ours.name}" for row in rows]
        axes.set(yticks=range(len(rows)), yticklabels=names, xlim=(-CLIP - 0.3, CLIP + 0.3))
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        axes.axvline(0, color=GREY, lw=0.8)
        axes.set(xlabel="difference in normalised score (0: random play, 1: human gamer)")
        axes.set_title(f"{ours or 'Each agent'} against {other.name}")
        handles: list[Any] = [Patch(color=BLUE, label="better"), Patch(color=RED, label="worse")]
        handles.append(Line2D([], [], color="black", lw=0.9, label="95 % bootstrap interval"))
        legend_below(figure, handles, 3)
    better = sum(row.estimate.value > 0 for row in rows)
    caption = (
        f"{ours or 'Each agent'} against {other.name}, by game, largest first; bars end at {CLIP:g}, numbers say how "
        "far they go. "
        f"Protocol: {group.protocol}. {_unlike(group) if other.published else ''}"
    )
    best, worst = (f"{row.game}, {row.estimate.value:+.2f}" for row in (rows[0], rows[-1]))
    favour = f"{better} of {len(rows)} bars are in favour of {ours or 'our agents'}"
    alt = f"{favour}; the largest is {best}, the smallest {worst}."
    agents = {row.ours.key for row in rows} | (set() if other.published else {other.key})
    runs = [run for agent in sorted(agents) for mine in group.of(agent).values() for run in mine]
    name = slug("difference", number, ours, "against", other.name)
    return Drawing(name, f"{ours or 'Agents'} against {other.name}", caption, alt, figure, ids(runs))


def _unlike(group: Group) -> str:
    unlike = group.protocol.unlike_the_paper()
    return f"Not the paper's protocol: {', '.join(unlike)}." if unlike else "The paper's protocol."


# IQM


def _iqm(group: Group, made: list[Aggregate], number: int) -> Drawing:
    """Dots with intervals, one row per agent and column of the paper."""
    figure = new_figure(6.4, _row_height(len(made)))
    with mpl.rc_context(LOOK):
        axes = figure.add_subplot()
        for y, each in enumerate(made):
            shade = PAPER_STYLES[each.side.key][0] if each.side.published else BLUE
            _estimate_bar(axes, y, each.iqm)
            axes.plot(each.iqm.value, y, "D" if each.side.published else "o", color=shade, ms=5, zorder=3)
        names = [f"{each.side.name}, {_games(len(each.games))}" for each in made]
        axes.set(
            yticks=range(len(made)),
            yticklabels=names,
            xlabel="IQM of normalised score (0: random play, 1: human gamer)",
        )
        axes.set_ylim(len(made) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        axes.set_title("Interquartile mean")
    caption = (
        "Interquartile mean over all runs of all games, with its 95 % stratified bootstrap interval. The paper "
        f"published means over seeds, not runs: its values are those of the means. Protocol: {group.protocol}. "
        + _unlike(group)
    )
    alt = "Interquartile means: " + "; ".join(f"{each.side.name} {each.iqm.value:.2f}" for each in made) + "."
    return Drawing(slug("iqm", number), "Interquartile mean", caption, alt, figure, ids(group.runs))


def _games(count: int) -> str:
    return f"{count} game{'s' if count != 1 else ''}"


# Performance profiles


def _profile(group: Group, found: list[Side], number: int) -> Drawing:
    """Share of runs above each score."""
    figure = new_figure(6.4, 3.4 + 0.17 * len(found))
    others = iter(OTHERS * (1 + len(found)))
    handles = []
    with mpl.rc_context(LOOK):
        axes = figure.add_subplot()
        for side, each in profiles(found, TAUS):
            if side.published:
                style = PAPER_STYLES[side.key]
            else:
                style = STYLES[side.key][1:] if side.key in STYLES else next(others)
            axes.step(TAUS, each.value, where="post", color=style[0], ls=style[1], lw=1.3)
            if each.low is not None and each.high is not None:
                axes.fill_between(TAUS, each.low, each.high, step="post", color=style[0], alpha=0.15, lw=0)
            handles.append(Line2D([], [], color=style[0], ls=style[1], lw=1.3, label=side.name))
        axes.set(xlabel="normalised score τ (0: random play, 1: human gamer)", ylabel="share of runs with score > τ")
        axes.set(xlim=(TAUS[0], TAUS[-1]), ylim=(-0.02, 1.02), title="Performance profile")
        legend_below(figure, handles, 2)
    caption = (
        "Share of runs above each score, shaded the 95 % stratified bootstrap interval, over the games that all agents "
        f"have; the paper's lines are of means over seeds. Protocol: {group.protocol}. {_unlike(group)}"
    )
    alt = "Performance profiles: the share of runs above a normalised score falls from 1 to 0 as the score grows."
    return Drawing(slug("profile", number), "Performance profile", caption, alt, figure, ids(group.runs))


# Probability of improvement


def _improvement(group: Group, better: list[Improvement], number: int) -> Drawing:
    """Rows `X > Y`."""
    figure = new_figure(6.4, _row_height(len(better)))
    with mpl.rc_context(LOOK):
        axes = figure.add_subplot()
        for y, each in enumerate(better):
            _estimate_bar(axes, y, each.estimate)
            axes.plot(each.estimate.value, y, "o", color=BLUE if each.estimate.value >= 0.5 else RED, ms=5, zorder=3)
        axes.set(yticks=range(len(better)), yticklabels=[f"{each.ours.name} > {each.other.name}" for each in better])
        axes.set_ylim(len(better) - 0.4, -0.6)
        axes.set(xlim=(-0.03, 1.03), xlabel="P(X > Y)", title="Probability of improvement")
        axes.grid(axis="y", visible=False)
        axes.axvline(0.5, color=GREY, lw=0.8)
    caption = (
        "Probability that a run of X scores more than one of Y on an environment drawn at random, with its 95 % "
        f"stratified bootstrap interval; {_what(group)}. Protocol: {group.protocol}."
    )
    alt = "; ".join(f"{e.ours.name} over {e.other.name}: {e.estimate.value:.2f}" for e in better) + "."
    return Drawing(slug("improvement", number), "Probability of improvement", caption, alt, figure, ids(group.runs))


def _what(group: Group) -> str:
    if group.protocol.suite == "deepsea":
        return "DeepSea: better is who solves it after fewer episodes, and who has not solved it is last"
    return "a column of the paper counts as one run"
