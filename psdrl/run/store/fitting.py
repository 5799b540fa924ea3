"""Whether a stored state can be the state of an agent: checked before any of it is used."""

from typing import Any

import numpy as np
from torch import Tensor

from psdrl.run.store.files import Damaged

_LARGEST = 2**128  # generators have states of this size


def check_fit(own: Any, stored: Any, path: str = "") -> None:
    """Raise Damaged unless `stored` has the form of the agent's own state: names, kinds of values, shapes of floats.

    Where the agent has nothing yet (None, an empty dict: an optimiser before its first step), anything may be stored;
    shapes of other tensors may differ, as those of generators do between devices."""
    where = path or "the state"
    if own is None or (isinstance(own, dict) and not own and isinstance(stored, dict)):
        return
    if isinstance(own, dict):
        if not isinstance(stored, dict) or stored.keys() != own.keys():
            raise Damaged(f"{where} has other parts than this agent's")
        for name, value in own.items():
            check_fit(value, stored[name], f"{path}.{name}" if path else f"{name}")
    elif isinstance(own, (list, tuple)):
        if not isinstance(stored, (list, tuple)) or len(own) != len(stored):
            raise Damaged(f"{where} is no list of {len(own)}")
        for i, (mine, other) in enumerate(zip(own, stored, strict=True)):
            check_fit(mine, other, f"{path}.{i}")
    elif isinstance(own, Tensor):
        if not isinstance(stored, Tensor) or stored.is_floating_point() != own.is_floating_point():
            raise Damaged(f"{where} is no tensor of its kind")
        if own.is_floating_point() and stored.shape != own.shape:
            raise Damaged(f"{where} is of shape {tuple(stored.shape)}, this agent's of {tuple(own.shape)}")
    elif isinstance(own, np.ndarray):
        if not isinstance(stored, np.ndarray) or (stored.dtype, stored.shape) != (own.dtype, own.shape):
            raise Damaged(f"{where} is no array of its kind")
    elif isinstance(own, int) and not isinstance(own, bool):
        if type(stored) is not int or not 0 <= stored < _LARGEST:
            raise Damaged(f"{where} is {str(stored)[:40]}")
    elif not isinstance(stored, (int, float) if isinstance(own, float) else type(own)):
        raise Damaged(f"{where} is {str(stored)[:40]}")


def tensor_bytes(state: Any) -> int:
    """Bytes of all tensors and arrays of a nested state."""
    if isinstance(state, dict):
        return sum(map(tensor_bytes, state.values()))
    if isinstance(state, (list, tuple)):
        return sum(map(tensor_bytes, state))
    return state.nbytes if isinstance(state, (Tensor, np.ndarray)) else 0
