"""Which calls a run makes, and random inputs for them.

`recorded` notes the calls that code makes with tensors of the meta device, which have shapes and strides but no data.
So a check runs the machine code that training runs: it depends on widths, strides and alignment (`tune.common_unit`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from psdrl.kernels import dispatch

LEAST_NUMBERS = 24  # distinct rows: the error of a few numbers is chance
LEAST_STATES = 5
MOST_WORK = 8_000_000  # multiply-adds of one call
LEAST_ROWS = 200  # but no fewer rows, where training has more: a tile of 128 rows and a part of one


@dataclass(frozen=True)
class Argument:
    """A tensor without its data."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0  # of the first element, modulo 16: Triton's machine code depends on alignment

    @classmethod
    def of(cls, x: Tensor) -> "Argument":
        """Shape and layout of x."""
        return cls(tuple(x.shape), tuple(x.stride()), int(x.storage_offset()) % 16)

    def laid_out(self, x: Tensor, device: torch.device) -> Tensor:
        """x (rows, ...) on the device with these strides; what lies between its rows is NaN."""
        reach = sum((n - 1) * s for n, s in zip(x.shape, self.strides, strict=True))
        storage = x.new_full((self.offset + reach + 1,), torch.nan, device=device)
        return storage.as_strided(x.shape, self.strides, self.offset).copy_(x)


Value = Argument | float | None


@dataclass(frozen=True)
class Call:
    """An operation with the shapes, strides and numbers of its arguments."""

    operation: str
    arguments: tuple[Value, ...]

    @classmethod
    def of(cls, operation: str, *arguments: Any) -> "Call":
        """From tensors, of which only shape and layout count; None at the end is what is left out."""
        given = [Argument.of(x) if isinstance(x, Tensor) else x for x in arguments]
        while given[-1] is None:
            given.pop()
        return cls(operation, tuple(given))

    @property
    def entry(self) -> dispatch.Operation:
        """The operation as it is registered."""
        return dispatch.operations[self.operation]

    @property
    def first(self) -> Argument:
        """The argument that decides device and dtype."""
        assert isinstance(self.arguments[0], Argument)
        return self.arguments[0]

    @property
    def rows(self) -> int:
        """Of the first argument."""
        return self.first.shape[0]

    @property
    def states(self) -> int:
        """Rows that can be exchanged without changing the others: in `linear_tanh` |A| rows share a row of `state`."""
        if self.operation != "linear_tanh":
            return self.rows
        state, columns, *_ = (*self.arguments[3:], None, None)
        if isinstance(state, Argument):
            return state.shape[0]
        return self.rows // columns.shape[0] if isinstance(columns, Argument) else self.rows

    def with_states(self, states: int) -> "Call":
        """The same call for another number of states."""

        def resized(i: int, x: Value) -> Value:
            if isinstance(x, Argument) and i in self.entry.rows:
                return replace(x, shape=(x.shape[0] // self.states * states, *x.shape[1:]))
            return x

        return replace(self, arguments=tuple(resized(i, x) for i, x in enumerate(self.arguments)))

    def bounded(self) -> "Call":
        """The same call with no more rows than a check can afford."""
        work = self.first.shape[1]
        if self.entry.product:
            assert isinstance(self.arguments[1], Argument)
            work *= self.arguments[1].shape[0]
        most = max(LEAST_ROWS, MOST_WORK // max(1, work))
        per = self.rows // self.states
        return self if self.rows <= most else self.with_states(-(-most // per))

    def distinct(self) -> "Call":
        """The same numbers for as few states as say something; equal for calls that differ in rows or layout only."""
        per = max(1, self.rows // self.states)
        small = self.with_states(max(LEAST_STATES, -(-LEAST_NUMBERS // per)))
        dense = (replace(x, strides=(), offset=0) if isinstance(x, Argument) else x for x in small.arguments)
        return replace(small, arguments=tuple(dense))

    def __str__(self) -> str:
        shapes = ("x".join(map(str, x.shape)) for x in self.arguments if isinstance(x, Argument))
        return f"{self.operation}({', '.join(shapes)})"


@contextmanager
def recorded() -> Iterator[list[Call]]:
    """The calls that are made within, with tensors of the meta device; each once."""
    calls: dict[Call, None] = {}
    found: list[Call] = []
    with dispatch.recorded(lambda name, arguments: calls.setdefault(Call.of(name, *arguments))):
        yield found
    found += calls


def random_inputs(call: Call) -> list[Any]:
    """Float32 numbers of the size that networks have, for a `distinct` call; they depend on its shapes only."""
    shapes = [x.shape for x in call.arguments if isinstance(x, Argument)]
    generator = torch.Generator().manual_seed(sum(map(sum, shapes)))
    inputs: list[Any] = [
        torch.randn(x.shape, generator=generator) if isinstance(x, Argument) else x for x in call.arguments
    ]
    if call.entry.product:
        inputs[1] /= call.first.shape[1] ** 0.5
    if call.operation == "tanh_dot":
        inputs[3] /= inputs[3].shape[1] ** 0.5
    if call.operation == "greedy_action":
        # A kernel that writes nothing leaves action 0: it must be wrong in state 0, however the numbers fall. In every
        # second state one action is far better than all others, in the rest they differ by chance.
        rewards, _, values, _, _, lots = inputs
        rewards.clamp_(-2, 2)
        values.clamp_(-2, 2)
        states = torch.arange(0, len(rewards), 2)
        rewards[states, (states + 1) % rewards.shape[1]] += 10
        lots.copy_(torch.rand(lots.shape, generator=generator))
    return inputs
