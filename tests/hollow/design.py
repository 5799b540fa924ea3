"""A covering design: few rows in which every pair of values of any two factors occurs at least once."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

Row = dict[str, str]
Pair = frozenset[tuple[str, str]]


def pairs_of(row: Iterable[tuple[str, str]]) -> set[Pair]:
    """All pairs of (factor, value) in a row."""
    return {frozenset(pair) for pair in combinations(row, 2)}


def all_pairs(factors: Mapping[str, Sequence[str]]) -> set[Pair]:
    """What a design must cover."""
    return {
        frozenset(((a, x), (b, y)))
        for (a, xs), (b, ys) in combinations(factors.items(), 2)
        for x in xs
        for y in ys
    }  # fmt: skip


def pairwise(factors: Mapping[str, Sequence[str]], costs: Mapping[tuple[str, str], float] | None = None) -> list[Row]:
    """Greedy: each row starts from a pair that is still missing, then each factor in turn takes the value that covers
    most of what is missing; of equals the cheapest, then the least used.

    costs: of values that make a run long; they are not used where nothing new is covered by them.
    """
    missing, costs = all_pairs(factors), costs or {}
    used: dict[tuple[str, str], int] = {}
    order = sorted(factors, key=lambda name: -len(factors[name]))
    rows: list[Row] = []
    while missing:
        row = dict(min(missing, key=lambda pair: sorted(pair)))
        for name in (name for name in order if name not in row):
            new = {v: sum(frozenset(((name, v), item)) in missing for item in row.items()) for v in factors[name]}
            rank = {v: (-new[v], costs.get((name, v), 0.0), used.get((name, v), 0)) for v in factors[name]}
            row[name] = min(rank, key=lambda value, rank=rank: rank[value])  # type: ignore[misc]
        missing -= pairs_of(row.items())
        for item in row.items():
            used[item] = used.get(item, 0) + 1
        rows.append({name: row[name] for name in factors})
    return rows
