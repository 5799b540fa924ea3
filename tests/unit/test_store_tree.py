"""Nested states as JSON and tensors, and back: exactly."""

import math
import struct
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from psdrl.run.store.files import Damaged
from psdrl.run.store.tree import DEPTH, from_json, from_safetensors, join, split, to_json, to_safetensors
from tests.storage import frozen

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32),
    *(torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64),
)


def there_and_back(state: Any) -> Any:
    """Through the bytes of both files."""
    tree, tensors = split(state)
    return join(from_json(to_json(tree)), from_safetensors(to_safetensors(tensors)))


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any bits, any strides."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    count = math.prod(shape)
    if dtype == torch.bool:
        values = torch.tensor(draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=torch.bool)
    else:
        size = count * dtype.itemsize
        raw = bytearray(draw(st.binary(min_size=size, max_size=size)))
        values = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    tensor = values.reshape(shape)
    return tensor.permute(draw(st.permutations(range(tensor.ndim)))) if draw(st.booleans()) else tensor


numbers = st.one_of(st.integers(), st.integers(2**100, 2**128), st.floats(), st.booleans(), st.none(), st.text())
arrays = tensors().filter(lambda t: t.dtype != torch.bfloat16).map(lambda t: t.contiguous().numpy())
scalars = st.one_of(st.integers(-(2**63), 2**63 - 1).map(np.int64), st.floats().map(np.float64))
keys = st.one_of(
    st.text(), st.integers(), st.booleans(), st.floats(allow_nan=False), st.sampled_from(["$tensor", "a/b"])
)
states = st.recursive(
    st.one_of(numbers, tensors(), arrays, scalars),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple), st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)


def exact(state: Any) -> Any:
    """`frozen`, with the bits of floats and the strides of tensors of more than one element."""
    if isinstance(state, torch.Tensor):
        data = state.contiguous().reshape(-1)
        bits = bytes(data.view(torch.uint8).tolist()) if data.numel() else b""
        return (state.dtype, tuple(state.shape), state.stride() if data.numel() else None, bits)
    if isinstance(state, dict):
        return [(type(key), key, exact(value)) for key, value in state.items()]
    if isinstance(state, list | tuple):
        return (type(state), [exact(value) for value in state])
    return (float, struct.pack("d", state)) if type(state) is float else frozen(state)


@given(states)
@settings(max_examples=400, deadline=None)
def test_any_state_comes_back_exactly(state: Any) -> None:
    assert exact(there_and_back(state)) == exact(state)


@pytest.mark.parametrize("bits", ["7ff8000000000000", "7ff8000000000123", "fff0000000000000", "8000000000000000"])
def test_floats_that_json_does_not_have(bits: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    (found,) = there_and_back([value])
    assert struct.pack(">d", found).hex() == bits


def test_what_agents_have() -> None:
    """Optimiser states have integers as keys, generators integers of 128 bits; some weights are channels last."""
    model = torch.nn.Conv2d(3, 5, 3)
    model.weight.data = model.weight.data.to(memory_format=torch.channels_last)
    optimiser = torch.optim.Adam(model.parameters())
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    optimiser.step()
    rng = np.random.default_rng(3)
    state = {"optimiser": optimiser.state_dict(), "rng": rng.bit_generator.state, "torch": torch.get_rng_state()}
    assert rng.bit_generator.state["state"]["state"] > 2**64
    assert exact(there_and_back(state)) == exact(state)
    assert 0 in there_and_back(state)["optimiser"]["state"]


@pytest.mark.parametrize(
    "state", [b"bytes", {1, 2}, object(), np.array(["text"]), {(1, 2): 3}, 1j], ids=lambda x: type(x).__name__
)
def test_other_things_are_refused_when_saved(state: Any) -> None:
    with pytest.raises(TypeError):
        split({"here": state})


def test_copies_do_not_change_with_the_run() -> None:
    weight, array = torch.ones(3), np.ones(3)
    _, kept = split({"weight": weight, "array": array})
    weight.zero_()
    array[:] = 0
    assert [tensor.tolist() for tensor in kept.values()] == [[1, 1, 1]] * 2


def test_depth_is_bounded() -> None:
    deep: Any = 0
    for _ in range(DEPTH + 1):
        deep = [deep]
    with pytest.raises(ValueError, match="nested"):
        split(deep)
    for text in ("[" * 100 + "]" * 100 * 2, "[" * 100_000, '{"a":' * 100_000, "[" * 200 + "1" + "]" * 200):
        with pytest.raises(Damaged):
            join(from_json(text.encode()), {})


@pytest.mark.parametrize(
    "tree",
    [
        {"$tensor": "missing"},
        {"$tensor": ["x"]},
        {"$tensor": "x", "more": 1},
        {"$array": "half"},
        {"$strided": ["x", [1]]},
        {"$strided": ["x", [0, 0]]},
        {"$strided": ["x", [10**12, 1]]},
        {"$strided": ["x", ["1", 1]]},
        {"$strided": "x"},
        {"$float": "zz"},
        {"$float": "00"},
        {"$dict": [[1]]},
        {"$dict": [[[1], 2]]},
        {"$dict": 3},
        {"$tuple": 3},
        {"$unknown": "x"},
    ],
    ids=str,
)
def test_trees_that_no_state_has(tree: Any) -> None:
    with pytest.raises(Damaged):
        join(tree, {"x": torch.zeros(2, 2), "half": torch.zeros(2, dtype=torch.bfloat16)})


@pytest.mark.parametrize(
    "text", ["NaN", "[Infinity]", '{"a": -Infinity}', "1" * 5000, "\xff", "", "{"], ids=lambda t: t[:9]
)
def test_json_is_strict(text: str) -> None:
    with pytest.raises(Damaged):
        from_json(text.encode("latin-1"))


@pytest.mark.parametrize(
    "header",
    [
        '{"x":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}',
        '{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}',
        '{"x":{"dtype":"F32","shape":[18446744073709551615,4],"data_offsets":[0,4]}}',
        '{"x":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}',
        '{"x":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}',
        "[]",
    ],
    ids=["larger than the file", "too short", "overflow", "unknown type", "backwards", "no header"],
)
def test_tensors_are_no_larger_than_their_file(header: str) -> None:
    for length in (len(header), 2**60):
        with pytest.raises(Damaged):
            from_safetensors(struct.pack("<Q", length) + header.encode() + bytes(4))
