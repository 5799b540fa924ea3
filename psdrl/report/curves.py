"""Learning curves: one panel per environment and protocol; methods, far longer runs and single options apart."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.lines import Line2D

from psdrl.report import statistics
from psdrl.report.outcomes import Outcome
from psdrl.report.protocols import Group, Protocol, by_size
from psdrl.report.scores import recent, smooth
from psdrl.report.style import BLUE, GREY, LEVELS, LOOK, OTHERS, STYLES, Drawing, ids, label, legend_below, new_figure

FAR = 1.5  # runs more than so many times as long as PSDRL's have a panel of their own
MOST = 8  # lines of a panel
POINTS = 120
LINE = 0.16  # inches, of a legend


class Line(NamedTuple):
    """Runs of one agent and length."""

    agent: str
    budget: int | None
    runs: list[Outcome]

    @property
    def end(self) -> int:
        """The last step that all finished seeds have."""
        return min((run.steps for run in self.runs if run.finished), default=0)

    @property
    def longest(self) -> int:
        """The last step that any seed has, or will have."""
        return max(run.steps if run.finished else max(run.steps, run.budget or 0) for run in self.runs)


class Panel(NamedTuple):
    """What is drawn together."""

    env: str
    setting: Protocol
    part: str  # "", "longer runs", "one option changed"
    lines: list[Line]

    @property
    def title(self) -> str:
        """The environment, and what sets this panel apart from others of it."""
        task = [f"{name.partition('.')[2] or name} {value}" for name, value in self.setting.task]
        return ", ".join([self.env, *task, *([self.part] if self.part else [])])

    @property
    def runs(self) -> list[Outcome]:
        """All of them."""
        return [run for line in self.lines for run in line.runs]


class Curve(NamedTuple):
    """Mean over seeds at each step, and its interval; each (points,)."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None


def mean_curve(line: Line) -> Curve | None:
    """Over the finished seeds, from where all have ended an episode to the last step that all have; None: no seed."""
    runs = [run for run in line.runs if run.finished and len(run.curve.steps)]
    if not runs:
        return None
    grid = np.linspace(0, line.end, POINTS + 1)[1:]
    lines = np.stack([smooth(run, grid) for run in runs])
    begun = np.isfinite(lines).all(0)
    grid, lines = grid[begun], lines[:, begun]
    if len(runs) < 2 or not len(grid):
        return Curve(grid, lines.mean(0), None, None)
    picks = np.random.default_rng(0).integers(len(runs), size=(1000, len(runs)))
    return Curve(grid, lines.mean(0), *statistics.interval(lines[picks].mean(1)))


# Panels


def panels(groups: list[Group]) -> list[Panel]:
    """Of all runs but those with earlier settings."""
    found: dict[tuple[Protocol, str], list[Line]] = defaultdict(list)
    for group in groups:
        if group.protocol.archive:
            continue
        for env, agents in group.envs.items():
            for agent, runs in agents.items():
                _add(found[group.protocol.setting, env], agent, group.protocol.steps, runs)
    order = sorted(found, key=lambda key: (key[0].suite, by_size(key[1]), str(key[0])))
    return [panel for setting, env in order for panel in _split(env, setting, found[setting, env])]


def _add(lines: list[Line], agent: str, budget: int | None, runs: list[Outcome]) -> None:
    """Runs that are not finished join the line of those that are."""
    same = next((line for line in lines if (line.agent, line.budget) == (agent, budget)), None)
    if same:
        same.runs.extend(runs)
    else:
        lines.append(Line(agent, budget, list(runs)))


def _split(env: str, setting: Protocol, lines: list[Line]) -> Iterator[Panel]:
    """Whole methods; those with far longer runs beside PSDRL, whose curve would be a few pixels wide among them; and
    PSDRL with single options changed, a few at a time."""
    rank = {agent: i for i, agent in enumerate(STYLES)}
    lines = sorted(lines, key=lambda line: (rank.get(line.agent, len(rank)), line.agent, line.budget or 0))
    base = [line for line in lines if line.agent == "psdrl"]
    usual = max((line.longest for line in base), default=math.inf)
    whole = [line for line in lines if line.agent in STYLES]
    far = [line for line in whole if line.longest > FAR * usual and line.agent not in LEVELS]
    near = [line for line in whole if line not in far]
    options = [line for line in lines if line.agent not in STYLES]
    learners = [line for line in near if line.agent not in LEVELS]
    if [line for line in learners if line not in base] or (near and not (far or options)):
        yield Panel(env, setting, "", near)
    levels = [line for line in whole if line.agent in LEVELS]
    if far:
        yield Panel(env, setting, "longer runs", base + far + levels)
    room = MOST - len(base)
    for i in range(0, len(options), room):
        part = "one option changed" if base else ""
        yield Panel(
            env, setting, part + (f" ({i // room + 1})" if len(options) > room else ""), base + options[i : i + room]
        )


# Drawing


def draw(axes: Any, panel: Panel) -> list[Line2D]:
    """Draw a panel; returns its legend."""
    others = iter(OTHERS * len(panel.lines))
    budgets = {line.budget for line in panel.lines if line.agent not in LEVELS}
    handles = []
    for line in panel.lines:
        style = STYLES[line.agent][1:] if line.agent in STYLES else next(others)
        name = _name(line, tell_length=len(budgets) > 1)
        if line.agent in LEVELS:
            values = np.concatenate([run.curve.values for run in line.runs])
            if len(values):
                handles.append(axes.axhline(values.mean(), color=GREY, ls=":", lw=1.3, label=name))
            continue
        _draw_line(axes, line, style, shade=line.agent == "psdrl" or len(panel.lines) <= 3)
        handles.append(Line2D([], [], color=style[0], ls=style[1], lw=1.3, label=name))
    axes.set(xlabel="environment steps (thousands)", ylabel=_ylabel(panel), title=panel.title)
    axes.set_xlim(left=0)
    return handles


def _draw_line(axes: Any, line: Line, style: tuple[str, str], shade: bool) -> None:
    curve = mean_curve(line)
    above = 3 if style[0] == BLUE else 2
    if curve is not None:
        axes.plot(curve.steps / 1000, curve.mean, style[1], color=style[0], lw=1.3, zorder=above)
        if shade and curve.low is not None and curve.high is not None:
            axes.fill_between(curve.steps / 1000, curve.low, curve.high, color=style[0], alpha=0.18, lw=0)
    for run in line.runs:
        if not run.finished and len(run.curve.steps):
            grid = np.linspace(0, run.steps, POINTS + 1)[1:]
            axes.plot(grid / 1000, smooth(run, grid), "-", color=style[0], lw=0.6, alpha=0.8, zorder=above)


def _name(line: Line, tell_length: bool) -> str:
    done = sum(run.finished for run in line.runs)
    seeds = [f"{done} seed{'s' if done != 1 else ''}"] if done else []
    seeds += [f"{len(line.runs) - done} not finished"] if done < len(line.runs) else []
    length = [f"{line.budget / 1000:g}k steps"] if tell_length and line.budget else []
    return f"{label(line.agent)} ({', '.join(length + seeds)})"


def _ylabel(panel: Panel) -> str:
    lasts = sorted({recent(run) for run in panel.runs})
    kind = "evaluations" if panel.runs[0].evaluated else "episodes"
    return f"return (last {' or '.join(map(str, lasts))} {kind})"


# Files


def slug(*parts: object) -> str:
    """A file's name."""
    return re.sub(r"[^\w.+-]+", "-", "-".join(str(part) for part in parts if part)).strip("-").lower()


def drawings(shown: list[Panel]) -> Iterator[Drawing]:
    """Each panel as a figure of its own."""
    taken: set[str] = set()
    for panel in shown:
        name = slug("curve", panel.title)
        while name in taken:  # another preset, or another way of evaluation
            name += "-b"
        taken.add(name)
        figure = new_figure(4.4, 2.9 + 0.17 * len(panel.lines))
        with mpl.rc_context(LOOK):
            legend_below(figure, draw(figure.add_subplot(), panel), 1)
        measure = f"{panel.setting.measure}; preset {panel.setting.preset}"
        caption = (
            f"{panel.title}: mean over seeds, shaded the 95 % bootstrap interval; thin: runs not finished ({measure})."
        )
        yield Drawing(name, panel.title, caption, _alt(panel), figure, ids(panel.runs))


def _alt(panel: Panel) -> str:
    """What the curves come to, in words."""
    ends = []
    for line in panel.lines:
        curve = mean_curve(line)
        if curve is not None and len(curve.mean) and line.agent not in LEVELS:
            ends.append(f"{label(line.agent)} ends at {curve.mean[-1]:.3g} after {curve.steps[-1]:,.0f} steps")
    return f"Learning curves on {panel.title}: return against environment steps. {'; '.join(ends)}."


def cells(count: int) -> tuple[list[tuple[int, float, float]], int]:
    """Where panels stand: row, left end and width as shares of the sheet; three to a row or fewer, so that every row
    fills the width. And the number of rows."""
    tall = math.ceil(count / 3)
    rows = [count // tall + (i < count % tall) for i in range(tall)]
    return [(row, i / n, 1 / n) for row, n in enumerate(rows) for i in range(n)], tall


def sheet(kind: str, shown: list[Panel]) -> Drawing:
    """All panels of a suite on one sheet. Sizes are given, in inches: to solve for them takes minutes at 55 panels."""
    at, tall = cells(len(shown))
    lines = [0] * tall
    for (row, _, _), panel in zip(at, shown, strict=True):
        lines[row] = max(lines[row], len(panel.lines))
    left, right, above, high, below = 0.6, 0.15, 0.3, 1.9, 0.5
    heights = [above + high + below + LINE * count for count in lines]
    wide, whole = 3.7 * min(3, len(shown)) + 0.8 * (len(shown) == 1), sum(heights) + 0.25
    figure = new_figure(wide, whole)
    figure.set_layout_engine("none")
    words = "Lines: mean over seeds; shaded: 95 % bootstrap interval; thin: runs not finished. psdrl report"
    with mpl.rc_context(LOOK):
        for (row, start, share), panel in zip(at, shown, strict=True):
            top = whole - sum(heights[:row]) - above
            place = (start + left / wide, (top - high) / whole, share - (left + right) / wide, high / whole)
            axes = figure.add_axes(place)
            handles = draw(axes, panel)
            beneath: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.4 / high), "borderaxespad": 0}
            axes.legend(handles=handles, **beneath, frameon=False, labelspacing=0.35)
        figure.text(0.5, 0.08 / whole, words, fontsize=7, ha="center")
    alt = " ".join(_alt(panel) for panel in shown)
    return Drawing(kind, f"Learning curves: {kind}", words, alt, figure, ids(run for p in shown for run in p.runs))
