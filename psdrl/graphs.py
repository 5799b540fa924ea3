"""CUDA graphs: a step is recorded once per shape of its inputs and then replayed with a single launch.

The rules of capture. The step reads its inputs from buffers that never move, and whatever else it touches (parameters,
optimiser state, a folded model) stays at its address. It neither reads a number back to the host nor lets the host
decide anything by one. Work on a second stream starts after the first and is joined before the step ends.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

log = logging.getLogger("psdrl.graphs")

WARM_UP = 3  # runs before the capture: libraries make their workspaces and kernels choose their tiles then
Step = Callable[..., tuple[Tensor, ...]]


class Graph(Protocol):
    """What is used of torch.cuda.CUDAGraph."""

    def register_generator_state(self, generator: torch.Generator, /) -> None:
        """Let every replay draw new numbers from this generator."""

    def replay(self) -> None:
        """Run the recorded kernels."""


class Primitives(Protocol):
    """What a device offers for capture; tests put a recording one in its place."""

    def graph(self) -> Graph:
        """An empty graph."""

    def aside(self) -> AbstractContextManager[None]:
        """Work within runs on another stream, after what came before and before what follows."""

    def capture(self, graph: Graph) -> AbstractContextManager[None]:
        """Work within is recorded into the graph instead of run."""

    def fork(self) -> tuple[AbstractContextManager[None], Callable[[], None]]:
        """Work within the first runs beside the present stream, until the second is called."""


class Cuda:
    """Streams and graphs of one GPU. The graphs share a private memory pool: they never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.pool = device, torch.cuda.graph_pool_handle()
        self.side = torch.cuda.Stream(device)  # for the second branch of a step

    def graph(self) -> Graph:
        return torch.cuda.CUDAGraph()

    @contextmanager
    def aside(self) -> Iterator[None]:
        stream, present = torch.cuda.Stream(self.device), torch.cuda.current_stream(self.device)
        stream.wait_stream(present)
        with torch.cuda.stream(stream):
            yield
        present.wait_stream(stream)

    def capture(self, graph: Graph) -> AbstractContextManager[None]:
        assert isinstance(graph, torch.cuda.CUDAGraph)
        return torch.cuda.graph(graph, pool=self.pool)

    def fork(self) -> tuple[AbstractContextManager[None], Callable[[], None]]:
        present = torch.cuda.current_stream(self.device)
        self.side.wait_stream(present)
        return torch.cuda.stream(self.side), lambda: present.wait_stream(self.side)


class _Recorded(NamedTuple):
    graph: Graph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class Captured:
    """A step (*tensors) -> tensors as a graph per shape of its inputs. Results are copies: the next replay spares them.

    state: tensors that the step changes besides its results; the warm-up's changes to them are taken back.
    generators: random streams that the step draws from; the warm-up's draws are taken back.
    """

    def __init__(
        self,
        name: str,
        step: Step,
        state: Callable[[], Sequence[Tensor]],
        primitives: Primitives,
        generators: tuple[torch.Generator, ...] = (),
    ) -> None:
        self.name, self.step, self.state = name, step, state
        self.primitives, self.generators = primitives, generators
        self.recorded: dict[Any, _Recorded] = {}
        self.failed = False

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        if self.failed:
            return self.step(*inputs)
        key = tuple((x.shape, x.dtype, x.device) for x in inputs)
        if key not in self.recorded:
            try:
                self.recorded[key] = self._record(inputs)
            except CaptureError as error:
                self.failed = True
                log.warning("%s runs without a CUDA graph: %s", self.name, error)
                return self.step(*inputs)
        recorded = self.recorded[key]
        for buffer, x in zip(recorded.inputs, inputs, strict=True):
            buffer.copy_(x, non_blocking=True)
        recorded.graph.replay()
        return tuple(x.clone() for x in recorded.outputs)

    def _record(self, inputs: tuple[Tensor, ...]) -> _Recorded:
        buffers = tuple(x.detach().clone(memory_format=torch.contiguous_format) for x in inputs)
        draws = [generator.get_state() for generator in self.generators]
        with self.primitives.aside():
            saved = [tensor.detach().clone() for tensor in self.state()]
            for _ in range(WARM_UP):
                self.step(*buffers)
            with torch.no_grad():
                for tensor, old in zip(self.state(), saved, strict=True):
                    tensor.copy_(old)
        for generator, drawn in zip(self.generators, draws, strict=True):
            generator.set_state(drawn)
        graph = self.primitives.graph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        try:
            with self.primitives.capture(graph):
                outputs = self.step(*buffers)
        except RuntimeError as error:  # the warm-up ran, so the step itself is sound
            raise CaptureError(f"capture failed: {error}") from error
        return _Recorded(graph, buffers, outputs)


class CaptureError(RuntimeError):
    """A step broke the rules of capture."""
