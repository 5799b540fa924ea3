"""All agents on all problems in one table and one figure, for READMEs and papers."""

import math
from collections.abc import Iterable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.lines import Line2D

from psdrl.agents.registry import AGENTS
from psdrl.envs.deepsea import SOLVED, WINDOW, deepsea_size
from psdrl.report.diving import episode_ticks, episodes, seed_mark, spread
from psdrl.report.outcomes import Outcome
from psdrl.report.protocols import Group, Protocol
from psdrl.report.scores import final
from psdrl.report.style import LOOK, Drawing, colour, ids, label, new_figure

LEAST = 3  # agents, for a problem to be among them
ACROSS = 3  # panels
Problem = tuple[str, dict[str, list[Outcome]]]  # its title, and runs by agent


def problems(groups: Iterable[Group]) -> list[Problem]:
    """Problems that several agents of the registry have finished, in groups of one protocol."""
    found = []
    for group in groups:
        if group.protocol.archive or not group.protocol.finished:
            continue
        for env, by_agent in group.envs.items():
            agents = {agent: by_agent[agent] for agent in AGENTS if agent in by_agent}
            if len(agents) >= LEAST:
                found.append((_title(env, group.protocol), agents))
    return found


def _title(env: str, protocol: Protocol) -> str:
    kind, slash, game = env.partition("/")
    name = (
        f"MinAtar {game.replace('_', ' ').title()}"
        if kind == "minatar" and slash
        else env.replace("deepsea", "DeepSea")
    )
    task = [f"{option.partition('.')[2] or option} {value}" for option, value in protocol.task]
    steps = [f"{protocol.steps:,} steps"] if protocol.steps else []
    return ", ".join([name, *task, *steps])


def table(found: list[Problem]) -> str:
    """Markdown: a row per problem, a column per agent."""
    agents = [agent for agent in AGENTS if any(agent in by_agent for _, by_agent in found)]
    lines = [
        "# Side by side",
        "",
        "Mean over seeds of the last 20 training episodes (5 where they have 500 steps or more), each seed in",
        f"brackets, and minutes of one core; on DeepSea seeds that solved it ({SOLVED} of {WINDOW} consecutive",
        "treasures) and after how many episodes. Of a run that went on beyond these steps the minutes are by the share",
        "of its steps. Made by `psdrl report`, from runs of equal steps with `--steps`.",
        "",
        f"| problem | {' | '.join(label(agent) for agent in agents)} |",
        f"| --- |{' --- |' * len(agents)}",
    ]
    for title, by_agent in found:
        cells = [_cell(by_agent[agent]) if agent in by_agent else "" for agent in agents]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(runs: list[Outcome]) -> str:
    minutes = [run.minutes for run in runs if run.minutes is not None]
    time = f"; {np.mean(minutes):.1f} min" if minutes else ""
    if deepsea_size(runs[0].env):
        each = ", ".join(str(run.solved or "-") for run in runs)
        return f"{sum(run.solved is not None for run in runs)} of {len(runs)} ({each}){time}"
    values = [value for run in runs if (value := final(run)) is not None]
    return f"{np.mean(values):.1f} ({', '.join(f'{value:.1f}' for value in values)}){time}" if values else ""


def drawing(found: list[Problem]) -> Drawing:
    """A panel per problem, a row per agent, a mark per seed and a bar for their mean."""
    agents = [agent for agent in AGENTS if any(agent in by_agent for _, by_agent in found)]
    across, down = min(ACROSS, len(found)), math.ceil(len(found) / ACROSS)
    figure = new_figure(1.8 + 2.6 * across, 0.5 + down * (0.8 + 0.19 * len(agents)))
    with mpl.rc_context(LOOK):
        for i, (title, by_agent) in enumerate(found):
            axes = figure.add_subplot(down, across, i + 1)
            _panel(axes, by_agent, agents)
            axes.set(title=title, yticks=range(len(agents)))
            axes.set_yticklabels([label(agent) for agent in agents] if i % across == 0 else [])
            axes.set_ylim(len(agents) - 0.4, -0.6)
            axes.grid(axis="y", visible=False)
        marks = [("o", "black", "a seed"), ("|", "black", "mean or median"), (">", "none", "DeepSea: not solved")]
        handles = [Line2D([], [], ls="none", marker=m, color="black", mfc=f, ms=4, label=t) for m, f, t in marks]
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    caption = "Return of the last training episodes, more is better; on DeepSea episodes until solved, fewer is better."
    runs = [run for _, by_agent in found for several in by_agent.values() for run in several]
    return Drawing("side-by-side", "Side by side", caption, _alt(found), figure, ids(runs))


def _panel(axes: Any, by_agent: dict[str, list[Outcome]], agents: list[str]) -> None:
    runs = [run for several in by_agent.values() for run in several]
    dives = deepsea_size(runs[0].env) is not None
    for y, agent in enumerate(agents):
        if agent not in by_agent:
            continue
        several, at = by_agent[agent], []
        for run, shift in zip(several, spread(len(several), 0.22), strict=True):
            value = episodes(run) if dives else final(run)
            if value is None:
                continue
            at.append(value)
            if dives:
                seed_mark(axes, run, (value, y + shift), colour(agent), ">")
            else:
                axes.plot(value, y + shift, "o", color=colour(agent), ms=3)
        if at and not (dives and any(run.solved is None for run in several)):
            axes.plot(np.median(at) if dives else np.mean(at), y, "|", color=colour(agent), ms=11, mew=1.5)
    axes.set_xlabel("episodes until solved" if dives else "return")
    if dives:
        low, high, ticks = episode_ticks([episodes(run) for run in runs])
        axes.set(xscale="log", xlim=(low, high), xticks=ticks, xticklabels=[str(t) for t in ticks])
        axes.minorticks_off()


def _alt(found: list[Problem]) -> str:
    said = [
        f"{title}: {', '.join(f'{label(agent)} {_cell(runs)}' for agent, runs in by_agent.items())}"
        for title, by_agent in found
    ]
    return f"All agents side by side. {'. '.join(said)}."
