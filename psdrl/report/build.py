"""From paths to a directory with the page, figures and tables."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from psdrl.envs.deepsea import deepsea_size
from psdrl.errors import UserError
from psdrl.report import bars, curves, diving, equal, files, measured, outcomes, page, protocols, side_by_side, style
from psdrl.report.outcomes import Outcome
from psdrl.report.page import Section
from psdrl.report.protocols import Group
from psdrl.report.style import Drawing, Picture
from psdrl.report.tables import Table, tables

MARK = ".psdrl-report"  # in a directory that we may write over
FOLDERS = ("figures", "sheets", "tables")
ORDER = {
    "table1": "atari",
    "scores": "scores",
    "differences": "comparisons",
    "improvement": "comparisons",
    "deepsea": "deepsea",
    "runtime": "runtime",
    "protocols": "runs",
    "runs": "runs",
}
TITLES = {
    "atari": "Atari, as the paper sums it up",
    "scores": "Scores",
    "comparisons": "Comparisons",
    "deepsea": "DeepSea",
    "curves": "Learning curves",
    "runtime": "Run time",
    "runs": "Runs and protocols",
}


class Made(NamedTuple):
    """What was written."""

    page: Path
    runs: int
    figures: int
    notices: list[str]


def build(
    paths: Iterable[Path], out: Path, live: bool = False, notes: Iterable[str] = (), steps: int | None = None
) -> Made:
    """Write the report of all runs at these paths into a directory; raises UserError if there are none.

    paths: run directories, directories above them (of a sweep, for one), files of results/. out: new, empty or of an
    earlier report. live: without a run the page says so, and it loads itself again when its server has a new one.
    notes: sentences that stand before all other notices. steps: judge every run as it was after so many.
    From Python: `from psdrl.report.build import build; build([Path("runs")], Path("report"))`; this signature stays."""
    files.check_out(out, MARK)
    found = outcomes.find(paths)
    if not found.outcomes and not live:
        reasons = f" ({found.unreadable[0]})" if found.unreadable else ""
        raise UserError(f"No run was found{reasons}: name directories of psdrl train, or files of results/.")
    cut, short = equal.cut(found.outcomes, steps) if steps else (found.outcomes, [])
    if not cut and not live:
        raise UserError(f"No run has made --steps {steps:,} steps: use fewer.")
    runs, twice = protocols.unique(cut)
    groups = protocols.group(runs)
    said = [*notes, *protocols.notices(groups), *short, *twice]
    made = tables(groups)
    shown = curves.panels(groups)
    problems = side_by_side.problems(groups)
    drawings = _drawings(groups, shown)
    if problems:
        drawings["comparisons"].insert(0, side_by_side.drawing(problems))
    pictures = {name: [style.picture(d) for d in each] for name, each in drawings.items()}
    sections = _sections(made, pictures)
    written = _files(made, [p for each in pictures.values() for p in each], list(_sheets(groups, shown)))
    written["TABLE.md"] = measured.table(groups).encode()
    if problems:
        written["SIDE_BY_SIDE.md"] = side_by_side.table(problems).encode()
    text = page.render(sections, said, found.unreadable, _summary(runs), live)
    files.write(out, MARK, written | {"index.html": text.encode()}, FOLDERS)  # the page last
    return Made(out / "index.html", len(runs), sum(map(len, pictures.values())), said + found.unreadable)


def _drawings(groups: list[Group], shown: list[curves.Panel]) -> dict[str, list[Drawing]]:
    """By section."""
    made: dict[str, list[Drawing]] = {"comparisons": [], "deepsea": [], "curves": list(curves.drawings(shown))}
    for number, group in enumerate(groups, 1):
        if group.protocol.archive:
            continue
        made["comparisons"] += bars.drawings(group, number)
        if group.protocol.suite == "deepsea":
            made["deepsea"].append(diving.drawing(group.envs, f"deepsea-{number}"))
    return made


def _sheets(groups: list[Group], shown: list[curves.Panel]) -> Iterator[Picture]:
    """One sheet per suite, for papers and READMEs: of DeepSea episodes until solved, of others all curves."""
    for kind in sorted({panel.setting.suite for panel in shown}):
        if kind == "deepsea":
            diver = next(g for g in groups if g.protocol.suite == kind and not g.protocol.archive)
            yield style.picture(diving.drawing(diver.envs, kind))
        else:
            yield style.picture(curves.sheet(kind, [panel for panel in shown if panel.setting.suite == kind]))


def _sections(made: list[Table], pictures: dict[str, list[Picture]]) -> list[Section]:
    found = []
    for name, title in TITLES.items():
        mine = [table for table in made if ORDER[table.name] == name]
        if mine or pictures.get(name):
            found.append(Section(name, title, pictures.get(name, []), mine))
    return found


def _summary(runs: list[Outcome]) -> str:
    envs, agents = {run.env for run in runs}, {run.agent for run in runs if not run.archive}
    games = len({env for env in envs if not deepsea_size(env)})
    open_runs = sum(not run.finished for run in runs)
    text = f"{len(runs)} runs of {len(agents)} agents on {len(envs)} environments"
    text += f" ({games} besides DeepSea)" if games < len(envs) else ""
    return text + (f"; {open_runs} not finished." if open_runs else ".")


def _files(made: list[Table], pictures: list[Picture], sheets: list[Picture]) -> dict[str, bytes]:
    found = {f"tables/{table.name}.csv": table.csv().encode() for table in made}
    for folder, several in (("figures", pictures), ("sheets", sheets)):
        for each in several:
            found |= {f"{folder}/{each.name}.png": each.png, f"{folder}/{each.name}.svg": each.svg}
    return found
