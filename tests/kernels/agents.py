"""Small agents for tests of how updates run, and whether two of them are the same."""

from typing import Any

import torch
from torch import nn

from bench.parity import parameters
from psdrl.runtime.execution import optimiser_state
from tests.helpers import GRID_INPUTS, INPUTS

SIZES: dict[str, dict[str, Any]] = {
    "image": {"kind": "image", "actions": 3, "replay": {"batch": 4, "length": 10}, "chunk_rows": 1000},
    "vector": {"kind": "vector", "actions": 2, "replay": {"batch": 3, "length": 9}, "chunk_rows": 1000},
    "small chunks": {"kind": "vector", "actions": 3, "replay": {"batch": 4, "length": 10}, "chunk_rows": 24},
    "inputs": {"kind": "vector", "actions": 3, "forward": INPUTS, "chunk_rows": 1000},
    "grid": {"kind": "grid", **GRID_INPUTS, "termination": {"predicted": True}, "chunk_rows": 1000},
}


def close(x, y):
    """Up to 1e-10 of the largest number: buffers are aligned differently, and BLAS may round so (on an Intel Xeon it
    does); the smallest numbers of a tensor are not more exact than the largest."""
    atol = 1e-10 * float(y.abs().max()) if y.numel() else 0.0
    torch.testing.assert_close(x, y, rtol=0, atol=atol)


def same(a, b):
    mine, other = parameters(a), parameters(b)
    for name in mine:
        close(mine[name], other[name])
    for name, optimiser in a.optimisers.items():
        for x, y in zip(
            optimiser_state(nn.Module(), optimiser), optimiser_state(nn.Module(), b.optimisers[name]), strict=True
        ):
            close(x, y)
