"""A stand-in for torch.cuda on the CPU: records the operations of a step while it is captured and runs them again on
replay.

It keeps the rules of capture. What is captured has no effect until it is replayed. A replay runs the recorded
operations on the recorded tensors, whatever Python would do now: a step that reads an input from a new tensor, decides
by a number or keeps state outside of tensors gives wrong results here as it does on a GPU. Reading a number back, or
any operation whose result's shape depends on numbers, fails at once and spoils the capture: it cannot be ended then.
A capture records what runs on its own stream and on those forked from it, on its own device; a pool that has lost its
last graph is refused.

CPU tensors stand for those of the GPU that trains, which is not the current device unless somebody makes it so.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from psdrl.agents.psdrl.acting import Actor
from psdrl.runtime.execution import Execution
from psdrl.runtime.graphs import Cuda

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

    def __init__(self, graph: "StandInGraph") -> None:
        super().__init__()
        self.graph = graph
        self.operations: list[tuple[Any, tuple, dict, list[Tensor]]] = []
        self.before: dict[int, tuple[Tensor, Tensor]] = {}  # by storage: what was there before the capture
        self.made: set[int] = set()
        self.alive: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if not self.graph.recording():  # the work goes to a stream that is not captured: it runs
            return func(*args, **kwargs)
        if func._schema.name in SYNCHRONISES or (func._schema.name == "aten::index" and self._masked(args)):
            raise self.graph.spoiled(f"operation not permitted when stream is capturing: {func._schema.name}")
        generator, known = kwargs.get("generator"), self.graph.generators
        if generator is not None and generator.initial_seed() not in {g.initial_seed() for g in known}:
            raise self.graph.spoiled("a generator was used that is not registered with the graph")
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


class StandInStream:
    """Work goes to the current stream of the tensors' device."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.captured: StandInGraph | None = None  # by whom

    def wait_stream(self, other: "StandInStream") -> None:
        graph = other.captured
        if graph is not None and self.captured is None:  # a fork
            self.captured = graph
            graph.forked.append(self)
        elif graph is not None and other in graph.forked:  # joined again
            graph.forked.remove(other)
            other.captured = None


class Pool:
    """Memory that graphs share."""

    def __init__(self) -> None:
        self.graphs: WeakSet[StandInGraph] = WeakSet()
        self.used = False


class StandInGraph:
    """torch.cuda.CUDAGraph."""

    def __init__(self, cuda: "StandIn") -> None:
        self.cuda = cuda
        self.generators: list[torch.Generator] = []
        self.recorder: Recorder | None = None
        self.error: str | None = None  # what spoiled the capture
        self.forked: list[StandInStream] = []
        self.replays = 0

    def register_generator_state(self, generator: torch.Generator) -> None:
        self.generators.append(generator)

    def recording(self) -> bool:
        """Whether work on the tensors of the GPU that trains is recorded."""
        return self.cuda.current_stream(self.cuda.home).captured is self

    def spoiled(self, error: str) -> RuntimeError:
        self.error = error
        return RuntimeError(error)

    def capture_begin(self, pool: Pool) -> None:
        stream = self.cuda.current_stream()
        if stream in self.cuda.default:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream")
        if pool.used and not pool.graphs:
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED: the pool died with its last graph")
        pool.used = True
        pool.graphs.add(self)
        self.cuda.calls.append("capture")
        self.stream, stream.captured = stream, self
        self.states = [generator.get_state() for generator in self.generators]
        self.recorder = Recorder(self)
        self.recorder.__enter__()

    def capture_end(self) -> None:
        assert self.recorder is not None
        if self.cuda.current_stream() is not self.stream:
            raise RuntimeError("capture must end on the same stream it began on")
        self.recorder.__exit__(None, None, None)
        self.recorder.undo()
        for generator, state in zip(self.generators, self.states, strict=True):
            generator.set_state(state)
        self.stream.captured = None
        for stream in self.forked:
            stream.captured = None
        if self.forked:
            raise RuntimeError("capturing a stream that has unjoined work")
        if self.error is not None:
            raise RuntimeError("operation failed due to a previous error during capture")

    @torch.no_grad()
    def replay(self) -> None:
        assert self.recorder is not None
        self.replays += 1
        for func, args, kwargs, results in self.recorder.operations:
            again = [x for x in pytree.tree_leaves(func(*args, **kwargs)) if isinstance(x, Tensor)]
            for x, y in zip(results, again, strict=True):
                if storage(x) != storage(y):
                    x.copy_(y)


class StandIn:
    """Takes the place of torch.cuda in `psdrl.runtime.graphs.Cuda`; two GPUs, of which `home` trains and 0 is current.
    Keeps the graphs and the order of what is asked of the device."""

    def __init__(self, home: int = 1) -> None:
        self.home, self.device_index = home, 0
        self.default = [StandInStream(0), StandInStream(1)]
        self.streams = list(self.default)  # the current one of each device
        self.all_graphs: list[StandInGraph] = []
        self.calls: list[str] = []
        self.internal: StandInStream | None = None

    @property
    def graphs(self) -> list[StandInGraph]:
        """Those that were replayed: all but the one that only keeps the pool."""
        return [graph for graph in self.all_graphs if graph.replays]

    def _index(self, device: Any) -> int:
        """CPU tensors stand for those of the GPU that trains."""
        return self.device_index if device is None else self.home if device == torch.device("cpu") else device

    def Stream(self, device: Any = None) -> StandInStream:
        return StandInStream(self._index(device))

    def current_stream(self, device: Any = None) -> StandInStream:
        return self.streams[self._index(device)]

    @contextmanager
    def stream(self, stream: StandInStream) -> Iterator[None]:
        before = self.device_index, self.streams[stream.device]
        self.device_index, self.streams[stream.device] = stream.device, stream
        try:
            yield
        finally:
            self.device_index, self.streams[stream.device] = before

    def synchronize(self, device: Any = None) -> None:
        stream = self.current_stream(device)
        if stream.captured is not None:
            raise stream.captured.spoiled("operation not permitted when stream is capturing: synchronize")

    def empty_cache(self) -> None:
        pass

    def graph_pool_handle(self) -> Pool:
        return Pool()

    def CUDAGraph(self) -> StandInGraph:
        self.all_graphs.append(StandInGraph(self))
        return self.all_graphs[-1]

    @contextmanager
    def graph(self, graph: StandInGraph, pool: Pool) -> Iterator[None]:
        """torch.cuda.graph: its stream is of the device that is current at its first use, and stays current if the
        capture cannot be ended."""
        if self.internal is None:
            self.internal = StandInStream(self.device_index)
        inside = self.stream(self.internal)
        self.abandoned = inside  # a generator that nobody holds would restore the stream
        inside.__enter__()
        graph.capture_begin(pool)
        try:
            yield
        finally:
            graph.capture_end()
            inside.__exit__(None, None, None)


class CudnnRules(TorchFunctionMode):
    """A GRU that ran in evaluation mode cannot be differentiated."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.gru:
            packed = not isinstance(args[2], list)  # (data, sizes, h, weights, ...) or (input, h, weights, ...)
            train = args[7 if packed else 6]
            if not train and out[0].requires_grad:
                out[0].register_hook(self._refuse)
        return out

    @staticmethod
    def _refuse(gradient: Tensor) -> None:
        raise RuntimeError("cudnn RNN backward can only be called in training mode")


def as_on_a_gpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under cuDNN's rules."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with CudnnRules():
            return function(*args, **kwargs)

    return call


def stand_in():
    """Streams and graphs of a GPU that is not the current one, and what they ask for."""
    cuda = StandIn()
    return Cuda(torch.device("cpu"), cuda), cuda


def with_graphs(agent, precision="fp32"):
    """The agent as on a GPU, with a recording device under its steps."""
    primitives, recording = stand_in()
    agent.execution = Execution(agent.device, agent.config.compile, True, precision, primitives)
    agent.actors = [Actor(agent, agent.config.num_envs, 1)]
    agent.update = as_on_a_gpu(agent.update)
    return recording
