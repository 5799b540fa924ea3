"""A CUDA graph on the CPU: records the operations of a step while it is captured and runs them again on replay.

It keeps the rules of capture. What is captured has no effect until it is replayed. A replay runs the recorded
operations on the recorded tensors, whatever Python would do now: a step that reads an input from a new tensor, decides
by a number or keeps state outside of tensors gives wrong results here as it does on a GPU. Reading a number back, or
any operation whose result's shape depends on numbers, fails at once.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

SYNCHRONISES = {
    "aten::_local_scalar_dense",
    "aten::item",
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::equal",
    "aten::is_nonzero",
}


def storage(x: Tensor) -> int:
    return x.untyped_storage()._cdata


class Recorder(TorchDispatchMode):
    """Notes every operation with its arguments and results, and what it overwrites."""

    def __init__(self, generators: list[torch.Generator]) -> None:
        super().__init__()
        self.operations: list[tuple[Any, tuple, dict, list[Tensor]]] = []
        self.before: dict[int, tuple[Tensor, Tensor]] = {}  # by storage: what was there before the capture
        self.made: set[int] = set()
        self.alive: list[Any] = []
        self.generators = generators

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.name in SYNCHRONISES or (func._schema.name == "aten::index" and self._masked(args)):
            raise RuntimeError(f"operation not permitted when stream is capturing: {func._schema.name}")
        generator = kwargs.get("generator")
        if generator is not None and generator.initial_seed() not in {g.initial_seed() for g in self.generators}:
            raise RuntimeError("a generator was used that is not registered with the graph")
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if func._schema.is_mutable:
            for x in tensors:
                if storage(x) not in self.made and storage(x) not in self.before:
                    whole = x.detach().as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
                    self.before[storage(x)] = (whole, whole.clone())
        out = func(*args, **kwargs)
        results = [x for x in pytree.tree_leaves(out) if isinstance(x, Tensor)]
        inputs = {storage(x) for x in tensors}
        fresh = [x for x in results if storage(x) not in inputs]
        self.made |= {storage(x) for x in fresh}
        self.alive += [args, kwargs, results]
        if fresh or func._schema.is_mutable:  # a view needs no second making
            self.operations.append((func, args, kwargs, results))
        return out

    @staticmethod
    def _masked(args: tuple) -> bool:
        return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])

    def undo(self) -> None:
        """What was captured has not happened."""
        for x, old in self.before.values():
            x.copy_(old)


class RecordedGraph:
    """Takes the place of torch.cuda.CUDAGraph."""

    def __init__(self) -> None:
        self.generators: list[torch.Generator] = []
        self.recorder: Recorder | None = None
        self.replays = 0

    def register_generator_state(self, generator: torch.Generator) -> None:
        self.generators.append(generator)

    @torch.no_grad()
    def replay(self) -> None:
        assert self.recorder is not None
        self.replays += 1
        for func, args, kwargs, results in self.recorder.operations:
            again = [x for x in pytree.tree_leaves(func(*args, **kwargs)) if isinstance(x, Tensor)]
            for x, y in zip(results, again, strict=True):
                if storage(x) != storage(y):
                    x.copy_(y)


class Recording:
    """Takes the place of `psdrl.graphs.Cuda`; keeps the graphs and the order of what is asked of the device."""

    def __init__(self) -> None:
        self.graphs: list[RecordedGraph] = []
        self.calls: list[str] = []

    def graph(self) -> Any:
        self.graphs.append(RecordedGraph())
        return self.graphs[-1]

    @contextmanager
    def aside(self) -> Iterator[None]:
        self.calls.append("aside")
        yield

    @contextmanager
    def capture(self, graph: Any) -> Iterator[None]:
        self.calls.append("capture")
        states = [generator.get_state() for generator in graph.generators]
        recorder = Recorder(graph.generators)
        try:
            with recorder:
                yield
        finally:
            recorder.undo()
            for generator, state in zip(graph.generators, states, strict=True):
                generator.set_state(state)
        graph.recorder = recorder

    def fork(self) -> tuple[AbstractContextManager[None], Callable[[], None]]:
        self.calls.append("fork")
        return nullcontext(), lambda: self.calls.append("join")
