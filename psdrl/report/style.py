"""How figures look, and how they become files."""

import io
from collections.abc import Iterable
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure, FigureBase

from psdrl.report.outcomes import Outcome

# Colours of Okabe and Ito, which colour-blind readers tell apart; a dash where two are near each other in grey.
BLUE, RED, GREEN, ORANGE, PINK, SKY = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9"
BLACK, GREY = "#000000", "#777777"
STYLES: dict[str, tuple[str, str, str]] = {
    "psdrl": ("PSDRL", BLUE, "-"),
    "bootstrap": ("Bootstrapped DQN + priors", RED, "-"),
    "successor": ("Successor Uncertainties", GREEN, "-"),
    "dreamer": ("DreamerV2", BLACK, "--"),
    "mean": ("posterior mean, ε 0.05", GREEN, "--"),
    "released": ("released rule", ORANGE, "-"),
    "fresh-value": ("new value network", PINK, "-"),
    "egreedy-exploit": ("ε-greedy, 50k steps", RED, "--"),
    "egreedy-explore": ("ε-greedy, 1M steps", SKY, "-."),
    "noise-1": ("noise variance 1", BLACK, "-"),
    "random": ("random play", GREY, ":"),
    "half-episodes": ("a draw per half episode", GREY, "-"),
    "mid-episode": ("a draw per 1.5 episodes", GREY, "-"),
    "two-episodes": ("a draw per 2 episodes", GREY, "-"),
}
PAPER_STYLES = {"psdrl": (SKY, ":"), "bp": (ORANGE, ":"), "su": (PINK, ":"), "dv2": (BLACK, ":")}
LEVELS = ("random",)  # they do not learn: a level, not a curve
# Agents without a style of their own, such as PSDRL with one option changed, in this order.
OTHERS = (
    *((RED, "--"), (GREEN, "-."), (ORANGE, "-"), (PINK, "--")),
    *((SKY, "-"), (BLACK, ":"), (GREY, "-"), (BLACK, "--")),
)
LOOK: Any = {"font.size": 8, "axes.titlesize": 9, "legend.fontsize": 7.5, "axes.grid": True}
LOOK |= {"grid.alpha": 0.25, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "psdrl"}
LOOK |= {"axes.axisbelow": True}


class Drawing(NamedTuple):
    """A figure, its words, and the runs behind it."""

    name: str  # of its files
    title: str
    caption: str
    alt: str
    figure: Figure
    runs: list[str]


class Picture(NamedTuple):
    """A figure as files."""

    name: str
    title: str
    caption: str
    alt: str
    png: bytes
    svg: bytes
    width: float  # inches
    runs: list[str]


def label(agent: str) -> str:
    """An agent's name for readers."""
    return STYLES[agent][0] if agent in STYLES else agent


def colour(agent: str) -> str:
    """Its colour where there is no order of lines."""
    return STYLES[agent][1] if agent in STYLES else GREY


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, independent of any display and of pyplot's global state."""
    with mpl.rc_context(LOOK):
        return Figure(figsize=(width, height), layout="constrained")


def legend_below(figure: FigureBase, handles: Iterable[Any], columns: int) -> None:
    """A legend beneath the axes, where no curve can run through it."""
    figure.legend(handles=list(handles), loc="outside lower center", ncols=columns, frameon=False)


def picture(drawing: Drawing) -> Picture:
    """Render to PNG and SVG; the same runs and versions make the same bytes."""
    png, svg = io.BytesIO(), io.BytesIO()
    with mpl.rc_context(LOOK):
        small: Any = {"metadata": {"Software": None}, "pil_kwargs": {"optimize": True}}
        drawing.figure.savefig(png, format="png", dpi=130, **small)
        drawing.figure.set_layout_engine("none")  # where things stand is known now: a quarter of the time
        drawing.figure.savefig(svg, format="svg", metadata={"Date": None})
    width = float(drawing.figure.get_figwidth())
    words = (drawing.name, drawing.title, drawing.caption, drawing.alt)
    return Picture(*words, png.getvalue(), svg.getvalue(), width, drawing.runs)


def ids(runs: Iterable[Outcome]) -> list[str]:
    """What links of a page name."""
    return [run.id for run in runs]
