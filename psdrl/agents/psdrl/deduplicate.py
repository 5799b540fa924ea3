"""Rows that occur more than once, for models without memory: what holds for one of them holds for all."""

import torch
from torch import Tensor

NUMBERS = 2**20  # at a time: copies of rows stay in the cache
SIZES = 16  # counted rows come in multiples of it: libraries are chosen, by measurement, for every size of a product


def at_once(table: Tensor) -> int:
    """Rows of the table (m, d) to look at together."""
    return max(1, NUMBERS // max(1, table.shape[1]))


def keys(table: Tensor, rows: Tensor) -> Tensor:
    """A number (n,) for each of these rows (n,) of the table (m, d), by a random projection."""
    generator = torch.Generator(table.device).manual_seed(0)
    direction = torch.rand(table.shape[1], dtype=table.dtype, device=table.device, generator=generator)
    return torch.cat([table[part] @ direction for part in rows.split(at_once(table))])


@torch.no_grad()
def firsts(table: Tensor, rows: Tensor) -> Tensor:
    """Of each of these rows (n,) of the table (m, d) the place (n,) among them of the first that is equal to it.

    Rows are sorted by their keys and then compared: two that share a key by chance, or equal ones whose keys are
    rounded differently, are merely not merged."""
    values, group = keys(table, rows).unique(return_inverse=True)
    own = torch.arange(len(rows), device=rows.device)
    first = own.new_full(values.shape, len(rows)).scatter_reduce(0, group, own, "amin")[group]
    pairs = zip(rows[first].split(at_once(table)), rows.split(at_once(table)), strict=True)
    equal = torch.cat([(table[a] == table[b]).all(1) for a, b in pairs])
    return torch.where(equal, first, own)


def counted(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Those of the numbers (n,) that differ, and the share (m,) in float64 that each has in all; then the first of them
    again, with share 0, up to a multiple of SIZES or n."""
    kept, times = numbers.unique(return_counts=True)
    added = min(-len(kept) % SIZES, len(numbers) - len(kept))
    share = torch.cat([times, times.new_zeros(added)]).double() / len(numbers)
    return torch.cat([kept, kept[:1].expand(added)]), share
