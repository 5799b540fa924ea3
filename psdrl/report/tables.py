"""Tables: rows of values with the runs behind them, as CSV and for the page."""

import csv
import io
from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from psdrl.envs.deepsea import deepsea_size
from psdrl.report import comparisons, paper, statistics
from psdrl.report.comparisons import Side
from psdrl.report.outcomes import Outcome
from psdrl.report.protocols import Group
from psdrl.report.scores import final, score
from psdrl.report.statistics import Estimate
from psdrl.report.style import ids, label


class Column(NamedTuple):
    """A column: its key in the rows, its heading, and how numbers are written."""

    key: str
    title: str
    form: str = ""

    def text(self, value: Any) -> str:
        """A value for people."""
        if value is None:
            return ""
        if isinstance(value, Estimate):
            form = self.form or ".2f"
            inner = "" if value.low is None else f" [{value.low:{form}}, {value.high:{form}}]"
            return f"{value.value:{form}}{inner}"
        return f"{value:{self.form}}" if self.form and not isinstance(value, str) else str(value)


class Row(NamedTuple):
    """Values by column, and the runs that they come from."""

    values: dict[str, Any]
    runs: list[str]


class Table(NamedTuple):
    """A table of the page, and a CSV file."""

    name: str
    title: str
    caption: str
    columns: list[Column]
    rows: list[Row]

    def csv(self) -> str:
        """All digits; an estimate has three columns."""
        intervals = {
            c.key for c in self.columns if any(isinstance(row.values.get(c.key), Estimate) for row in self.rows)
        }
        head = [
            key
            for c in self.columns
            for key in ([c.key, f"{c.key}_low", f"{c.key}_high"] if c.key in intervals else [c.key])
        ]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*head, "runs"])
        for row in self.rows:
            cells: list[Any] = []
            for column in self.columns:
                value = row.values.get(column.key)
                if column.key in intervals:
                    cells += list(value) if isinstance(value, Estimate) else [value, None, None]
                else:
                    cells.append(value)
            writer.writerow([*cells, " ".join(row.runs)])
        return text.getvalue()


def sort_value(value: Any) -> Any:
    """What a column is sorted by."""
    return value.value if isinstance(value, Estimate) else value


def tables(groups: list[Group]) -> list[Table]:
    """All tables that these runs have something for."""
    numbered = [(i, group) for i, group in enumerate(groups, 1) if not group.protocol.archive]
    made = [
        _table1(numbered),
        _scores(numbered),
        _improvements(numbered),
        _deepsea(numbered),
        _runtime(numbered),
        _differences(numbered),
        _protocols(groups),
        _runs(groups),
    ]
    return [table for table in made if table.rows]


def _mean(values: list[float]) -> Estimate | None:
    return statistics.mean(np.array(values)) if values else None


# Table 1


def _table1(numbered: list[tuple[int, Group]]) -> Table:
    forms = [Column(key, f"{title} (%)", ".1f") for key, title in paper.METRICS.items()]
    columns = [
        Column("protocol", "protocol"),
        Column("agent", "agent"),
        Column("games", "games"),
        *forms,
        Column("iqm", "IQM (%)", ".1f"),
    ]
    rows = []
    for number, group in numbered:
        for each in comparisons.aggregates(comparisons.sides(group)):
            name = f"{each.side.name}, these games" if each.side.published else each.side.name
            estimates = {**each.metrics, "iqm": each.iqm}
            values = {key: _percent(value) for key, value in estimates.items()}
            runs = [] if each.side.published else _runs_of(group, each.side.key)
            rows.append(Row({"protocol": number, "agent": name, "games": len(each.games), **values}, runs))
    if rows:
        for column, name in paper.COLUMNS.items():
            printed = {metric: paper.table1()[metric][column] for metric in paper.METRICS}
            rows.append(Row({"protocol": "paper", "agent": f"{name} (paper), as printed", "games": 55, **printed}, []))
    caption = (
        "Table 1 of the paper: percent of the human gamer's and of the human record's score above random play, over "
        "the games that were run, with 95 % stratified bootstrap intervals over seeds; clipped from above only. The "
        "paper's columns are recomputed over the same games, and last as it printed them for all 55."
    )
    return Table("table1", "Table 1: Atari", caption, columns, rows)


def _percent(estimate: Estimate) -> Estimate:
    return Estimate(*(None if part is None else 100 * part for part in estimate))  # type: ignore[arg-type]


def _runs_of(group: Group, agent: str) -> list[str]:
    return ids(run for runs in group.of(agent).values() for run in runs)


# By environment


def _cells(numbered: list[tuple[int, Group]]) -> Iterator[tuple[int, Group, str, str, list[Outcome]]]:
    for number, group in numbered:
        for env, agents in group.envs.items():
            for agent, runs in agents.items():
                yield number, group, env, agent, runs


def _scores(numbered: list[tuple[int, Group]]) -> Table:
    printed = [Column(column, f"{name} (paper)", ",.0f") for column, name in paper.COLUMNS.items()]
    columns = [
        *(
            Column("env", "environment"),
            Column("agent", "agent"),
            Column("protocol", "protocol"),
            Column("seeds", "seeds"),
        ),
        *(Column("score", "score", ",.2f"), Column("final", "final", ",.2f"), *printed),
        *(
            Column("random", "random", ",.1f"),
            Column("human_gamer", "gamer", ",.1f"),
            Column("human_record", "record", ",.0f"),
        ),
    ]
    rows = []
    for number, _, env, agent, runs in _cells(numbered):
        if deepsea_size(env):  # a run may end when it has solved it: its mean return says how soon it ended
            continue
        values: dict[str, Any] = {"env": env, "agent": label(agent), "protocol": number, "seeds": len(runs)}
        values["score"] = _mean([v for run in runs if (v := score(run)) is not None])
        values["final"] = _mean([v for run in runs if (v := final(run)) is not None])
        values |= {column: paper.scores()[column].get(env) for column in paper.COLUMNS}
        known = paper.constants().get(env)
        rows.append(Row(values | (known._asdict() if known else {}), ids(runs)))
    caption = (
        "score: mean of the evaluations over the whole run, as in the paper, or of the training episodes where a run "
        "was not evaluated (each weighted by its steps); final: mean of the last 5 evaluations, or of the last 20 "
        "training episodes (5 if they have 500 steps or more). Means over seeds with 95 % bootstrap intervals, "
        "beside the paper's scores. DeepSea has a table of its own."
    )
    return Table("scores", "Scores by environment", caption, columns, rows)


def _differences(numbered: list[tuple[int, Group]]) -> Table:
    columns = [
        Column("protocol", "protocol"),
        Column("game", "game"),
        Column("agent", "agent"),
        Column("against", "against"),
    ]
    columns.append(Column("difference", "difference", "+.3f"))
    rows = [
        Row(
            {
                "protocol": number,
                "game": d.game,
                "agent": d.ours.name,
                "against": d.other.name,
                "difference": d.estimate,
            },
            _behind(group, d.game, d.ours, d.other),
        )
        for number, group in numbered
        for d in comparisons.all_differences(comparisons.sides(group))
    ]
    caption = (
        "Difference in normalised score (0: random play, 1: human gamer) by game, with 95 % bootstrap intervals; not "
        "clipped."
    )
    return Table("differences", "Differences by game", caption, columns, rows)


def _behind(group: Group, env: str, *several: Side) -> list[str]:
    return [i for side in several if not side.published for i in ids(group.envs[env][side.key])]


def _improvements(numbered: list[tuple[int, Group]]) -> Table:
    columns = [
        Column("protocol", "protocol"),
        Column("agent", "X"),
        Column("against", "Y"),
        Column("envs", "environments"),
    ]
    columns.append(Column("probability", "P(X > Y)", ".2f"))
    rows = []
    for number, group in numbered:
        for each in comparisons.improvements(comparisons.sides(group)):
            names = {"protocol": number, "agent": each.ours.name, "against": each.other.name, "envs": each.envs}
            own = [side for side in (each.ours, each.other) if not side.published]
            runs = [i for side in own for i in _runs_of(group, side.key)]
            rows.append(Row(names | {"probability": each.estimate}, runs))
    caption = (
        "Probability that a run of X scores more than one of Y, on an environment drawn at random; a tie is a half. "
        "On DeepSea: that it solves it after fewer episodes; a run that has not solved it is last."
    )
    return Table("improvement", "Probability of improvement", caption, columns, rows)


def _deepsea(numbered: list[tuple[int, Group]]) -> Table:
    columns = [
        *(Column("env", "environment"), Column("n", "N"), Column("agent", "agent"), Column("protocol", "protocol")),
        *(
            Column("solved", "solved"),
            Column("seeds", "seeds"),
            Column("median", "median episodes", "g"),
            Column("each", "episodes by seed"),
        ),
    ]
    rows = []
    for number, _, env, agent, runs in _cells(numbered):
        if (size := deepsea_size(env)) is None:
            continue
        solved = [run.solved for run in runs if run.solved]
        whole = median([run.solved or np.inf for run in runs])
        values = {
            "env": env,
            "n": size,
            "agent": label(agent),
            "protocol": number,
            "solved": len(solved),
            "seeds": len(runs),
        }
        values |= {"median": float(whole) if np.isfinite(whole) else None}
        rows.append(Row(values | {"each": ", ".join(str(run.solved or "-") for run in runs)}, ids(runs)))
    caption = (
        "DeepSea: episodes until solved, by seed; -: not solved when the run ended. No median where half the seeds or "
        "more failed."
    )
    return Table("deepsea", "DeepSea: episodes until solved", caption, columns, rows)


def _runtime(numbered: list[tuple[int, Group]]) -> Table:
    printed = [
        column
        for key, name in paper.COLUMNS.items()
        for column in (Column(key, f"{name} (paper)", ",.0f"), Column(f"{key}_spread", "±", ",.0f"))
    ]
    columns = [
        *(
            Column("env", "environment"),
            Column("agent", "agent"),
            Column("protocol", "protocol"),
            Column("machine", "device"),
        ),
        *(Column("steps", "steps", ","), Column("minutes", "minutes", ",.1f"), Column("spread", "±", ",.1f")),
        *(Column("million", "minutes per 1M steps", ",.0f"), *printed),
    ]
    rows = []
    for number, _, env, agent, runs in _cells(numbered):
        timed = [run for run in runs if run.minutes and run.steps]
        if not timed:
            continue
        minutes = np.array([run.minutes for run in timed], float)
        steps = np.array([run.steps for run in timed], float)
        values: dict[str, Any] = {"env": env, "agent": label(agent), "protocol": number, "steps": int(steps.mean())}
        values |= {"machine": "; ".join(sorted({run.machine for run in timed}))}
        values |= {
            "minutes": float(minutes.mean()),
            "spread": float(minutes.std()),
            "million": float((1e6 * minutes / steps).mean()),
        }
        values |= _published(env)
        rows.append(Row(values, ids(timed)))
    if rows:
        average = _published("Average")
        rows.append(Row({"env": "average of the paper's seven games", **average}, []))
    caption = (
        "Minutes of a run, mean and deviation over seeds: of learning and acting by its own clock, or of one core for "
        "runs of results/. Per 1,000,000 steps in proportion, beside the paper's minutes for 1,000,000 steps on "
        "an A100."
    )
    return Table("runtime", "Run time", caption, columns, rows)


def _published(game: str) -> dict[str, float]:
    """The paper's minutes and their deviations, of the games that it names."""
    found = paper.runtime().get(game, {})
    minutes = {column: mean for column, (mean, _) in found.items()}
    return minutes | {f"{column}_spread": deviation for column, (_, deviation) in found.items()}


# What everything comes from


def _protocols(groups: list[Group]) -> Table:
    columns = [
        *(
            Column("protocol", "protocol"),
            Column("suite", "suite"),
            Column("steps", "steps", ","),
            Column("preset", "preset"),
        ),
        *(Column("measure", "measured by"), Column("task", "options of the task"), Column("state", "state")),
        *(Column("count", "runs"), Column("unlike", "not the paper's")),
    ]
    rows = []
    for number, group in enumerate(groups, 1):
        p = group.protocol
        state = "earlier settings" if p.archive else "finished" if p.finished else "not finished"
        values = {"protocol": number, "suite": p.suite, "steps": p.steps, "preset": p.preset, "measure": p.measure}
        values |= {"task": ", ".join(f"{name} {value}" for name, value in p.task) or "default", "state": state}
        unlike = ", ".join(p.unlike_the_paper()) if p.suite == "atari" else ""
        rows.append(Row(values | {"count": len(group.runs), "unlike": unlike}, ids(group.runs)))
    caption = "Runs of different protocols are averaged and compared apart; tables name a protocol by its number here."
    return Table("protocols", "Protocols", caption, columns, rows)


def _runs(groups: list[Group]) -> Table:
    columns = [
        *(Column("run", "run"), Column("env", "environment"), Column("agent", "agent"), Column("seed", "seed")),
        *(
            Column("state", "state"),
            Column("steps", "steps", ","),
            Column("budget", "of", ","),
            Column("protocol", "protocol"),
        ),
        *(
            Column("score", "score", ",.2f"),
            Column("final", "final", ",.2f"),
            Column("solved", "solved"),
            Column("minutes", "minutes", ",.1f"),
        ),
        *(Column("commit", "commit"), Column("command", "command"), Column("source", "where"), Column("note", "note")),
    ]
    rows = []
    for number, group in enumerate(groups, 1):
        for run in group.runs:
            values = {
                "run": run.id,
                "env": run.env,
                "agent": run.agent,
                "seed": run.seed,
                "state": run.state,
                "steps": run.steps,
            }
            values |= {
                "budget": run.budget,
                "protocol": number,
                "score": score(run),
                "final": final(run),
                "solved": run.solved,
            }
            values |= {"minutes": run.minutes, "commit": run.commit or run.version or "unknown", "command": run.command}
            rows.append(Row(values | {"source": run.source, "note": run.note}, [run.id]))
    rows.sort(key=lambda row: int(row.values["run"].partition("-")[2]))
    caption = (
        "Every run, with the commit and the command that made it; a link elsewhere on this page shows the runs behind "
        "a number."
    )
    return Table("runs", "Runs", caption, columns, rows)
