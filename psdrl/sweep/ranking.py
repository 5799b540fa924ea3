"""Which setting of a grid is best: by evaluation return averaged over run, seeds and games, as in the appendix."""

import csv
import io
from collections import defaultdict
from typing import NamedTuple

from rich.table import Table

from psdrl.sweep.plan import Case

SHOWN = 12


class Row(NamedTuple):
    """A setting."""

    setting: str
    runs: int
    mean: float  # over games, of the mean evaluation return
    rank: float  # mean over games; where games have scores of different sizes, this one compares them fairly
    scores: dict[str, float]  # by game


class Ranking(NamedTuple):
    """Settings, the best first."""

    envs: list[str]
    rows: list[Row]

    def csv(self) -> str:
        """As a file."""
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(["setting", "runs", "mean return", "mean rank", *self.envs])
        for row in self.rows:
            numbers = [f"{x:.4g}" for x in (row.mean, row.rank, *(row.scores[env] for env in self.envs))]
            writer.writerow([row.setting, row.runs, *numbers])
        return text.getvalue()

    def shown(self) -> Table:
        """The best of them."""
        title = f"Settings by mean evaluation return over {len(self.envs)} environment(s)"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for column in ("setting", "runs", "mean return", "mean rank"):
            table.add_column(column, justify="left" if column == "setting" else "right")
        for row in self.rows[:SHOWN]:
            table.add_row(row.setting, str(row.runs), f"{row.mean:.4g}", f"{row.rank:.3g}")
        return table


def ranking(runs: dict[Case, list[tuple[int, float]]]) -> Ranking | None:
    """From the evaluations of each case; None without a grid, or if no setting has a score in every environment."""
    if not any(case.point for case in runs):
        return None
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for case, evaluations in runs.items():
        if evaluations:
            scores[case.setting][case.env].append(sum(value for _, value in evaluations) / len(evaluations))
    envs = list(dict.fromkeys(case.env for case in runs))
    means = {
        setting: {env: sum(found) / len(found) for env, found in by_env.items()}
        for setting, by_env in scores.items()
        if len(by_env) == len(envs)
    }
    if not means:
        return None
    rows = []
    for setting, by_env in means.items():
        better = [sum(other[env] > by_env[env] for other in means.values()) for env in envs]
        count = sum(len(found) for found in scores[setting].values())
        rows.append(Row(setting, count, sum(by_env.values()) / len(envs), 1 + sum(better) / len(envs), dict(by_env)))
    return Ranking(envs, sorted(rows, key=lambda row: -row.mean))
