"""Sheets: what was foreseen beside what happened, over some steps of an episode."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from psdrl.report.style import BLACK, BLUE, LOOK, ORANGE, OTHERS, legend_below, new_figure
from psdrl.view.pictures import Numbers, Painter, Picture

COLUMNS = 8  # pictures in a row, at most
PANELS = 8  # numbers of a vector, at most


def columns(count: int) -> list[int]:
    """Which of so many steps are shown in a row: the first, the last, evenly spread."""
    return sorted({round(x) for x in np.linspace(0, count - 1, min(COLUMNS, count))})


def strip(rows: Mapping[str, Sequence[Picture]], steps: Sequence[int]) -> Figure:
    """Pictures by row and step."""
    figure = new_figure(1.5 + 1.15 * len(steps), 0.5 + 1.2 * len(rows))
    _pictures(figure, rows, steps)
    return figure


def _pictures(figure: Any, rows: Mapping[str, Sequence[Picture]], steps: Sequence[int]) -> None:
    with mpl.rc_context(LOOK):
        grid = figure.subplots(len(rows), len(steps), squeeze=False)
        for r, (name, pictures) in enumerate(rows.items()):
            for c, (picture, step) in enumerate(zip(pictures, steps, strict=True)):
                axes = grid[r][c]
                axes.imshow(picture, interpolation="nearest")
                axes.set(xticks=[], yticks=[])
                axes.spines[:].set_visible(False)
                if r == 0:
                    axes.set_title(f"step {step}")
                if c == 0:
                    axes.set_ylabel(name, rotation=0, ha="right", va="center")


def prediction_lines(names: Sequence[str], start: int, truth: Numbers, foreseen: Numbers) -> Figure:
    """A vector's numbers after each step (T, n): what came and what the sampled model said."""
    figure, panels = _panels(len(names))
    at = start + 1 + np.arange(len(truth))
    with mpl.rc_context(LOOK):
        for i, (axes, name) in enumerate(zip(panels, names, strict=True)):
            axes.plot(at, truth[:, i], color=BLACK, lw=1)
            axes.plot(at, foreseen[:, i], "--", color=ORANGE, lw=1)
            _steps(axes, name)
        handles = [Line2D([], [], color=BLACK, label="observed")]
        handles.append(Line2D([], [], color=ORANGE, ls="--", label="predicted one step ahead"))
        legend_below(figure, handles, 2)
    return figure


def _steps(axes: Any, title: str) -> None:
    """An axis of whole steps."""
    axes.set(title=title, xlabel="step of the episode")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def _panels(count: int) -> tuple[Figure, list[Any]]:
    wide = min(4, count)
    tall = -(-count // wide)
    figure = new_figure(2.6 * wide, 0.6 + 2 * tall)
    with mpl.rc_context(LOOK):
        found = figure.subplots(tall, wide, squeeze=False).ravel()
    for axes in found[count:]:
        axes.remove()
    return figure, list(found[:count])


def rollout_sheet(
    rows: Mapping[str, Sequence[Picture]], steps: Sequence[int], start: int, lines: dict[str, Any]
) -> Figure:
    """Pictures of K models, of their disagreement, and the spread of their rewards and values over time."""
    figure = new_figure(1.5 + 1.15 * len(steps), 3.2 + 1.2 * len(rows))
    parts: Any = figure.subfigures(2, 1, height_ratios=[0.4 + 1.2 * len(rows), 2.8])
    above, below = parts
    _pictures(above, rows, steps)
    with mpl.rc_context(LOOK):
        panels = below.subplots(1, 2)
    _spread(panels, start, **lines)
    _models_legend(below, len(lines["rewards"]))
    return figure


def rollout_lines(names: Sequence[str], start: int, truth: Numbers, several: Numbers, lines: dict[str, Any]) -> Figure:
    """The same of a vector's numbers: truth (T, n), models (K, T, n)."""
    figure, panels = _panels(len(names) + 2)
    at = start + 1 + np.arange(len(truth))
    with mpl.rc_context(LOOK):
        for i, (axes, name) in enumerate(zip(panels, names, strict=False)):
            for k, one in enumerate(several):
                axes.plot(at, one[:, i], color=_style(k)[0], ls=_style(k)[1], lw=1)
            axes.plot(at, truth[:, i], color=BLACK, lw=1.4)
            _steps(axes, name)
    _spread(panels[-2:], start, **lines)
    _models_legend(figure, len(several))
    return figure


def _style(k: int) -> tuple[str, str]:
    return ((BLUE, "-"), *OTHERS)[k % (1 + len(OTHERS))]


def _spread(panels: Sequence[Any], start: int, realised: Numbers, rewards: Numbers, values: Numbers) -> None:
    """Predicted rewards and values (K, T) over time, and what was realised (T,)."""
    at = start + 1 + np.arange(len(realised))
    with mpl.rc_context(LOOK):
        for axes, several, words in ((panels[0], rewards, "predicted reward"), (panels[1], values, "value V")):
            for k, one in enumerate(several):
                axes.plot(at, one, color=_style(k)[0], ls=_style(k)[1], lw=1)
            _steps(axes, words)
        panels[0].plot(at, realised, color=BLACK, lw=1.4)


def _models_legend(figure: Any, count: int) -> None:
    with mpl.rc_context(LOOK):
        handles = [Line2D([], [], color=_style(k)[0], ls=_style(k)[1], label=f"model {k + 1}") for k in range(count)]
        handles.append(Line2D([], [], color=BLACK, lw=1.4, label="what happened"))
        figure.legend(handles=handles, loc="outside lower center", ncols=min(6, len(handles)), frameon=False)


def choice_sheet(start: int, parts: dict[str, Numbers], taken: Sequence[int], names: Sequence[str]) -> Figure:
    """Of each action over time: reward, value and sum of the posterior mean, shaded what the draws span.

    parts: name to (M, T, A), the mean first."""
    figure = new_figure(7.5, 1.2 + 2 * len(parts))
    at = start + np.arange(len(taken))
    with mpl.rc_context(LOOK):
        panels = figure.subplots(len(parts), 1, sharex=True)
        for axes, (title, numbers) in zip(panels, parts.items(), strict=True):
            for a in range(len(names)):
                shade, line = _style(a)
                axes.plot(at, numbers[0, :, a], line, color=shade, lw=1.2)
                if len(numbers) > 1:
                    low, high = numbers[1:, :, a].min(0), numbers[1:, :, a].max(0)
                    axes.fill_between(at, low, high, color=shade, alpha=0.12, lw=0)
            axes.set_ylabel(title)
        sums = panels[-1]
        best = parts[list(parts)[-1]][0]
        marks = best[np.arange(len(taken)), taken]
        sums.plot(at, marks, "o", ms=2.5, color=BLACK)
        panels[0].set_title(f"Lines: posterior mean; shaded: least to largest of {len(numbers) - 1} draws")
        _steps(sums, "")
        handles = [Line2D([], [], color=_style(a)[0], ls=_style(a)[1], label=name) for a, name in enumerate(names)]
        handles.append(Line2D([], [], ls="none", marker="o", ms=2.5, color=BLACK, label="action taken"))
        legend_below(figure, handles, min(6, len(handles)))
    return figure


class ChoiceFilm:
    """The frame on the left; on the right, of each action, a bar for the mean and a dot for each draw."""

    def __init__(self, parts: dict[str, Numbers], names: Sequence[str], painter: Painter) -> None:
        self.parts, self.names, self.painter = parts, names, painter

    def frame(self, observation: Numbers, t: int, step: int, taken: int) -> Picture:
        """Step t of the part, which is step `step` of the episode."""
        figure = Figure(figsize=(2.2 + 2 * len(self.parts), 1.0 + 0.22 * max(6, len(self.names))), layout="constrained")
        with mpl.rc_context(LOOK):
            grid = figure.subplots(1, 1 + len(self.parts), width_ratios=[1.1] + [1] * len(self.parts))
            grid[0].imshow(self.painter.picture(observation), interpolation="nearest")
            grid[0].set(xticks=[], yticks=[], title=f"step {step}")
            rows = np.arange(len(self.names))
            for axes, (title, numbers) in zip(grid[1:], self.parts.items(), strict=True):
                shades = [ORANGE if a == taken else BLUE for a in rows]
                axes.barh(rows, numbers[0, t], color=shades, height=0.7, alpha=0.6)
                for one in numbers[1:, t]:
                    axes.plot(one, rows, ".", color=BLACK, ms=2)
                low, high = min(0.0, numbers.min()), max(0.0, numbers.max())
                room = 0.05 * (high - low) or 0.1
                axes.set(xlim=(low - room, high + room), title=title, yticks=rows)
                axes.set_yticklabels(self.names if axes is grid[1] else [])
                axes.invert_yaxis()
            figure.supxlabel("bars: posterior mean, orange the action taken; dots: draws", fontsize=7)
        return _rendered(figure)


def _rendered(figure: Figure) -> Picture:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    figure.set_dpi(100)
    canvas.draw()
    picture = np.asarray(canvas.buffer_rgba())[..., :3]
    return picture[: picture.shape[0] // 2 * 2, : picture.shape[1] // 2 * 2].copy()  # video needs even sizes
