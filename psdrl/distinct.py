"""Rows that occur more than once, for models without memory: what holds for one of them holds for all."""

import torch
from torch import Tensor


@torch.no_grad()
def firsts(rows: Tensor) -> Tensor:
    """Of each row (n, d) the index (n,) of the first one that is equal to it.

    Rows are sorted by a random projection and then compared: two rows that share a key by chance, or equal ones whose
    keys are rounded differently, are merely not merged."""
    generator = torch.Generator(rows.device).manual_seed(0)
    direction = torch.rand(rows.shape[1], dtype=rows.dtype, device=rows.device, generator=generator)
    keys, group = (rows @ direction).unique(return_inverse=True)
    own = torch.arange(len(rows), device=rows.device)
    first = own.new_full(keys.shape, len(rows)).scatter_reduce(0, group, own, "amin")[group]
    return torch.where((rows[first] == rows).all(1), first, own)
