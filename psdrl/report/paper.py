"""Numbers that the paper printed, and the constants that normalise Atari scores: data/README.md says where from."""

import csv
from functools import cache
from importlib import resources
from typing import NamedTuple

COLUMNS = {"psdrl": "PSDRL", "bp": "B+P", "su": "SU", "dv2": "Dv2"}
METRICS = {
    "gamer_median": "gamer median",
    "gamer_mean": "gamer mean",
    "record_mean": "record mean",
    "clipped_record_mean": "clipped record mean",
}


class Constants(NamedTuple):
    """Scores of a game that normalise others."""

    random: float
    human_gamer: float
    human_record: float

    def gamer(self, score: float) -> float:
        """0: random play, 1: the human gamer."""
        return (score - self.random) / (self.human_gamer - self.random)

    def record(self, score: float) -> float:
        """0: random play, 1: the human record."""
        return (score - self.random) / (self.human_record - self.random)


def _rows(name: str) -> list[dict[str, str]]:
    text = (resources.files("psdrl.report") / "data" / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@cache
def constants() -> dict[str, Constants]:
    """By game."""
    return {
        row["game"]: Constants(float(row["random"]), float(row["human_gamer"]), float(row["human_record"]))
        for row in _rows("atari_norm")
    }


@cache
def scores() -> dict[str, dict[str, float]]:
    """Column, then game: mean return of evaluations over the run, over three seeds."""
    return {column: {row["game"]: float(row[column]) for row in _rows("paper_scores")} for column in COLUMNS}


@cache
def table1() -> dict[str, dict[str, int]]:
    """Metric, then column: percent as printed."""
    return {row["metric"]: {column: int(row[column]) for column in COLUMNS} for row in _rows("paper_metrics")}


@cache
def runtime() -> dict[str, dict[str, tuple[float, float]]]:
    """Game, then column: minutes of 1,000,000 steps on an A100 and their deviation."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for row in _rows("paper_runtime"):
        found.setdefault(row["game"], {})[row["algorithm"]] = (float(row["minutes_mean"]), float(row["minutes_std"]))
    return found
