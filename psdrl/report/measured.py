"""TABLE.md: one row per environment, agent and protocol, for people who read a repository."""

import shlex

import numpy as np

from psdrl.envs.deepsea import SOLVED, WINDOW, deepsea_size
from psdrl.report.outcomes import Outcome
from psdrl.report.protocols import Group, by_size
from psdrl.report.scores import final
from psdrl.report.style import STYLES
from psdrl.run.records import ARCHIVE, suite

HEAD = [
    "| environment | method | flags | seeds | solved | episodes | last | steps | minutes |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
]
CHOICE = ("--env", "--game", "--seed", "--steps", "--logdir")  # flags that the other columns tell


def flags(run: Outcome) -> str:
    """What its command asks for beyond environment, seed and steps."""
    words = iter(shlex.split(run.command))
    kept = []
    for word in words:
        if word in CHOICE:
            next(words, None)
        else:
            kept.append(word)
    start = next((i for i, word in enumerate(kept) if word.startswith("--")), len(kept))
    return shlex.join(kept[start:])


def row(env: str, agent: str, runs: list[Outcome], with_flags: bool) -> str:
    """One row of the table."""
    deepsea = deepsea_size(env) is not None
    solved = [run.solved for run in runs if run.solved]
    minutes = [run.minutes for run in runs if run.minutes is not None]
    asked = "; ".join(f"`{each}`" for each in sorted({flags(run) for run in runs}) if each) if with_flags else ""
    values = [v for run in runs if (v := final(run)) is not None]
    return (
        f"| {env} | {agent} | {asked} | {', '.join(str(run.seed) for run in runs)} "
        f"| {f'{len(solved)} of {len(runs)}' if deepsea else ''} "
        f"| {', '.join(str(run.solved or '-') for run in runs) if deepsea else ''} "
        f"| {', '.join(f'{value:.2f}' for value in values)} "
        f"| {max(run.steps for run in runs):,} | {f'{np.max(minutes):.1f}' if minutes else ''} |"
    )


def table(groups: list[Group]) -> str:
    """Markdown: finished runs, then the archive of earlier settings."""
    lines = [
        "# Measured runs",
        "",
        "One row per environment, method and protocol, made by `psdrl report` from `SUITE/METHOD.jsonl.gz`, whose",
        f"lines hold the commands. solved: seeds that found {SOLVED} of {WINDOW} consecutive treasures, and after how",
        "many episodes each; last: mean return of the last 20 episodes (5 where they have 500 steps or more), per",
        "seed; minutes: of one core, per run, largest.",
        "",
        *HEAD,
        *_rows([g for g in groups if g.protocol.finished and not g.protocol.archive], with_flags=True),
    ]
    archive = [group for group in groups if group.protocol.archive]
    if archive:
        text = f"What `{ARCHIVE}` holds, by the names that docs/experiments.md calls `tuning/ENVIRONMENT/METHOD`;"
        lines += ["", "## Runs with earlier settings", "", text, "its lines hold the commands.", "", *HEAD]
        lines += _rows(archive, with_flags=False)
    return "\n".join(lines) + "\n"


def _rows(groups: list[Group], with_flags: bool) -> list[str]:
    rank = {agent: i for i, agent in enumerate(STYLES)}
    order = {"deepsea": 0, "control": 1, "atari": 2, "minatar": 3}
    cells = [
        (
            order[suite(env)],
            by_size(env),
            rank.get(agent, len(rank)),
            agent,
            group.protocol.steps or 0,
            str(group.protocol),
            runs,
        )
        for group in groups
        for env, agents in group.envs.items()
        for agent, runs in agents.items()
    ]
    return [row(cell[1][1], cell[3], cell[-1], with_flags) for cell in sorted(cells, key=lambda cell: cell[:-1])]
