"""CUDA graphs: a step is recorded once per shape of its inputs and then replayed with a single launch.

The rules of capture. The step reads its inputs from buffers that never move, and whatever else it touches (parameters,
optimiser state, a folded model) stays at its address. It neither reads a number back to the host nor lets the host
decide anything by one. Work on a second stream starts after the first and is joined before the step ends.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

log = logging.getLogger("psdrl.runtime.graphs")

MOST_SHAPES = 12  # graphs that a step keeps: while episodes are short every update may have a new sequence length
WARM_UP = 3  # runs before the capture: libraries make their workspaces and kernels choose their tiles then
Step = Callable[..., tuple[Tensor, ...]]


class Cuda:
    """Streams and graphs of one GPU, which need not be the current one. The graphs share a private memory pool: they
    never run at the same time.

    cuda: torch.cuda; tests put a stand-in in its place.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self.device, self.cuda = device, cuda
        self.side = cuda.Stream(device)  # for the second branch of a step
        self.recording = cuda.Stream(device)  # for captures: torch.cuda.graph would use one of the current device
        self.pool: Any = None
        self._anchor: Any = None  # a pool dies with its last graph, and its handle is then refused: this one stays

    def graph(self) -> Any:
        """An empty graph."""
        return self.cuda.CUDAGraph()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Work within runs on another stream, after what came before and before what follows."""
        stream, present = self.cuda.Stream(self.device), self.cuda.current_stream(self.device)
        stream.wait_stream(present)
        with self.cuda.stream(stream):
            yield
        present.wait_stream(stream)

    @contextmanager
    def capture(self, graph: Any) -> Iterator[None]:
        """Work within is recorded into the graph instead of run."""
        if self.pool is None:
            self.pool, self._anchor = self.cuda.graph_pool_handle(), self.graph()
            with self._captured(self._anchor):
                torch.zeros(1, device=self.device)
        with self._captured(graph):
            yield

    @contextmanager
    def _captured(self, graph: Any) -> Iterator[None]:
        """As torch.cuda.graph, which leaves its stream current if the capture cannot be ended."""
        self.cuda.synchronize(self.device)
        self.cuda.empty_cache()  # what the warm-up left is free for the graph
        with self.cuda.stream(self.recording):
            graph.capture_begin(pool=self.pool)
            try:
                yield
            except BaseException:
                with suppress(RuntimeError):  # says only that there was an error before
                    graph.capture_end()
                raise
            graph.capture_end()

    def fork(self) -> tuple[AbstractContextManager[None], Callable[[], None]]:
        """Work within the first runs beside the present stream, until the second is called."""
        present = self.cuda.current_stream(self.device)
        self.side.wait_stream(present)
        return self.cuda.stream(self.side), lambda: present.wait_stream(self.side)


class _Recorded(NamedTuple):
    graph: Any  # torch.cuda.CUDAGraph
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
        primitives: Cuda,
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
            if len(self.recorded) > MOST_SHAPES:
                del self.recorded[next(iter(self.recorded))]  # the one whose last use is the longest ago
        self.recorded[key] = recorded = self.recorded.pop(key)
        for buffer, x in zip(recorded.inputs, inputs, strict=True):
            buffer.copy_(x, non_blocking=True)
        recorded.graph.replay()
        return tuple(x.clone() for x in recorded.outputs)

    def _record(self, inputs: tuple[Tensor, ...]) -> _Recorded:
        """Warm up and capture. If either fails, what the step changed is as before, and it may run eagerly: there an
        error of its own shows itself."""
        buffers = tuple(x.detach().clone(memory_format=torch.contiguous_format) for x in inputs)
        try:
            self._warm_up(buffers)
            graph = self.primitives.graph()
            for generator in self.generators:
                graph.register_generator_state(generator)
            with self.primitives.capture(graph):
                outputs = self.step(*buffers)
        except RuntimeError as error:
            raise CaptureError(f"capture failed: {error}") from error
        return _Recorded(graph, buffers, outputs)

    def _warm_up(self, buffers: tuple[Tensor, ...]) -> None:
        draws = [generator.get_state() for generator in self.generators]
        with self.primitives.aside():
            saved = [tensor.detach().clone() for tensor in self.state()]
            try:
                for _ in range(WARM_UP):
                    self.step(*buffers)
            finally:
                with torch.no_grad():
                    for tensor, old in zip(self.state(), saved, strict=True):
                        tensor.copy_(old)
                for generator, drawn in zip(self.generators, draws, strict=True):
                    generator.set_state(drawn)


class CaptureError(RuntimeError):
    """A step broke the rules of capture."""
