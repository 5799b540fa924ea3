"""Triangular systems on a CPU: by LAPACK, or in registers (csrc/triangular.cpp), whichever is faster there.

One thread of an AMD EPYC (Zen 5), k = 1,600, 1,250 right-hand sides, GFLOP/s: LAPACK solves at 49 and factorises at 30,
csrc with AVX-512 at 90 to 100 and at 65."""

import torch
from torch import Tensor

from psdrl.kernels import choice
from psdrl.kernels.posterior.native import unavailable

PANEL = 256  # rows of an inverse solved at a time: the columns before them are zero and are left out
LARGEST, ROWS = 512, 256  # of the system by which the faster one is found


def serve(like: Tensor, features: int) -> bool:
    """Whether the systems of so many features are solved in registers."""
    if not like.is_cpu or not features or unavailable(like.device) is not None:
        return False
    size = min(LARGEST, 1 << (features - 1).bit_length())
    of_rows, of_factor = (torch.empty(n, size, dtype=torch.float64, device="meta") for n in (ROWS, size))

    def candidates() -> choice.Candidates:
        rows, factor = torch.ones(ROWS, size, dtype=torch.float64), torch.eye(size, dtype=torch.float64).T
        return {
            "csrc": lambda: torch.ops.psdrl.solve_rows_(factor, rows, True),
            "aten": lambda: rows.copy_(torch.linalg.solve_triangular(factor, rows.T, upper=True).T),
        }

    return choice.choose("triangular", of_rows, of_factor, candidates) == "csrc"


@torch.no_grad()
def inverse_norm(factor: Tensor) -> Tensor:
    """See `reference`: panel by panel, a third of the work of a full solve."""
    registers, norms = serve(factor, len(factor)), []
    for j in range(0, len(factor), PANEL):
        rest = factor[j:, j:]
        rows = torch.eye(min(PANEL, len(rest)), len(rest), dtype=factor.dtype, device=factor.device)
        if registers:
            torch.ops.psdrl.solve_rows_(rest, rows, False)
        else:
            rows = torch.linalg.solve_triangular(rest, rows.T, upper=False)
        norms.append(rows.square().sum())
    return torch.stack(norms).sum()
