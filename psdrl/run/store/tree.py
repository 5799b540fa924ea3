"""Nested states as JSON and tensors, and back exactly: types, shapes, bits.

A state is made of dicts, lists, tuples, tensors, numpy arrays and scalars, and what JSON knows. JSON keeps integers of
any size and finite floats as they are; what it does not know becomes an object with one key that starts with $.
"""

import json
import struct
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from psdrl.run.store.files import Damaged

DEPTH = 64  # nesting of a state
JSON_BYTES = 64 << 20
_PLAIN = (str, bool, int, type(None))


def split(state: Any) -> tuple[Any, dict[str, Tensor]]:
    """A JSON tree, and copies on the host of the tensors that its leaves name."""
    tensors: dict[str, Tensor] = {}
    return _split(state, "", tensors), tensors


def _split(value: Any, path: str, tensors: dict[str, Tensor], depth: int = 0) -> Any:
    if depth > DEPTH:
        raise ValueError(f"a state is nested more than {DEPTH} deep at {path[:80]}")
    if type(value) in _PLAIN:
        return value
    if type(value) is float:
        return value if np.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
    if isinstance(value, Tensor):
        return _tensor(value.detach().to("cpu", copy=True), path, tensors)
    if isinstance(value, np.ndarray):
        return {"$array": _kept(torch.from_numpy(np.array(value, order="C")), path, tensors)}
    if isinstance(value, np.generic):
        return {"$scalar": _kept(torch.from_numpy(np.array(value)), path, tensors)}
    if isinstance(value, dict):
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: _split(inner, f"{path}/{key}", tensors, depth + 1) for key, inner in value.items()}
        if not all(type(key) in (*_PLAIN, float) for key in value):
            raise TypeError(f"{path or 'a state'} has a key that checkpoints do not hold")
        return {
            "$dict": [[_split(k, path, {}), _split(v, f"{path}/{k}", tensors, depth + 1)] for k, v in value.items()]
        }
    if isinstance(value, (list, tuple)):
        inner = [_split(x, f"{path}/{i}", tensors, depth + 1) for i, x in enumerate(value)]
        return inner if isinstance(value, list) else {"$tuple": inner}
    raise TypeError(f"{path or 'a state'} is of {type(value).__name__}, which checkpoints do not hold")


def _tensor(tensor: Tensor, path: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Its strides are part of it (channels last): the rounding of products depends on them."""
    name = _kept(tensor.contiguous(), path, tensors)
    usual = torch.empty(tensor.shape, device="meta").stride()
    return (
        {"$tensor": name}
        if tensor.stride() == usual or not tensor.numel()
        else {"$strided": [name, list(tensor.stride())]}
    )


def _strided(tensor: Tensor, strides: list[int]) -> Tensor:
    """A copy with these strides, if they are of a tensor without gaps."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    if last + 1 != tensor.numel() or not all(type(stride) is int and stride > 0 for stride in strides):
        raise ValueError("strides with gaps")
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


def _kept(tensor: Tensor, path: str, tensors: dict[str, Tensor]) -> str:
    name = path if path and path not in tensors else f"{path}#{len(tensors)}"
    tensors[name] = tensor
    return name


def join(tree: Any, tensors: dict[str, Tensor], depth: int = 0) -> Any:
    """The state of which `split` made this; raises Damaged for what it cannot have made."""
    if depth > 2 * DEPTH:
        raise Damaged("a state is nested too deep")
    if isinstance(tree, list):
        return [join(inner, tensors, depth + 1) for inner in tree]
    if not isinstance(tree, dict):
        return tree
    if not any(key.startswith("$") for key in tree):
        return {key: join(inner, tensors, depth + 1) for key, inner in tree.items()}
    try:
        ((kind, value),) = tree.items()
        if kind == "$float":
            return struct.unpack(">d", bytes.fromhex(value))[0]
        if kind == "$tuple":
            return tuple(join(value, tensors, depth + 1))
        if kind == "$dict":
            return {join(key, {}): join(inner, tensors, depth + 1) for key, inner in value}
        if kind == "$strided":
            return _strided(tensors[value[0]], value[1])
        tensor = tensors[value]
        if kind == "$tensor":
            return tensor
        return {"$array": tensor.numpy(), "$scalar": tensor.numpy()[()]}[kind]
    except (ValueError, LookupError, TypeError, RuntimeError, OverflowError, struct.error):
        raise Damaged(f"a state holds {str(tree)[:60]}") from None


def to_json(tree: Any) -> bytes:
    """JSON without line breaks."""
    return json.dumps(tree, allow_nan=False, separators=(",", ":")).encode()


def from_json(data: bytes, name: str = "a file") -> Any:
    """Strict JSON; raises Damaged for anything else, however deep."""
    try:
        return json.loads(data.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{name} is no JSON ({type(error).__name__})") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def to_safetensors(tensors: dict[str, Tensor]) -> bytes:
    """The tensors as one file."""
    return safetensors.torch.save(tensors)


def from_safetensors(data: bytes, name: str = "a file") -> dict[str, Tensor]:
    """The tensors of a file; raises Damaged unless they fill it exactly, so they are no larger than it is."""
    try:
        found = safetensors.torch.load(data)
        return {key: found.pop(key).clone() for key in list(found)}  # aligned as PyTorch aligns: rounding may differ
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        raise Damaged(f"{name} holds no tensors ({str(error).splitlines()[0][:80]})") from None


def not_finite(tensors: dict[str, Tensor]) -> str | None:
    """The name of a tensor with a NaN or an infinity, if there is one."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            return name.lstrip("/")
    return None
