"""Work as agents describe it and the cost model divides it by a device's rates: operations, bytes, kernel launches.

Shapes come from the networks themselves: `count` runs them on the meta device, where tensors have no data.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CPU, NOTHING = torch.device("cpu"), nullcontext()
# Operations, counted with a dispatch mode at the cpu preset: per layer and gradient step of a tanh network and of a
# convolution, and besides the layers of a gradient step.
KERNELS = {"layer": 9, "convolution": 5, "step": 16}
# torch.compile joins bias, activation and the rest that is elementwise. Assumed, not counted: forward a product and one
# kernel, backward two products, one kernel and a sum; a convolution's own kernels stay.
COMPILED = KERNELS | {"layer": 6, "convolution": 4}


class Measures(NamedTuple):
    """What the code does for a GPU beyond one launch per step. All of it is done; the table of docs/gpu.md
    (`psdrl cost --measures`) takes it away to show what each is predicted to gain."""

    counted: bool = True  # no measure: the captured scan, cuDNN's kernels and gradients that nobody needs are counted
    library: bool = True  # cuBLAS and a 4-warp tile among the ways to form a product
    parts: bool = True  # inner dimensions in parts, for gradient steps
    one_pass: bool = True  # weight gradient and Adam in one kernel
    blocks: bool = True  # blocks of pixels as channels at the autoencoder's ends, cuDNN measures its algorithms
    chunks: bool = True  # eight times the rows at once


class Device(NamedTuple):
    """What a device can do. A CPU starts an operation, then computes it; a GPU computes while the next is started."""

    name: str
    flops: float  # per second, in matrix products of many rows
    gradient: float  # per second, in gradient steps on B rows
    convolution: float  # per second, in gradient steps of the autoencoder
    flops64: float  # per second, float64
    bandwidth: float  # bytes per second
    launch: float  # seconds per operation
    measured: bool
    item: int = 4  # bytes of a number in the networks' products
    gap: float = 0.0  # seconds between two kernels that were launched long before
    graphs: bool = False  # whether what can be captured is replayed as CUDA graphs: only the gaps remain
    latency: float = 0.0  # seconds to send observations, and to wait for the actions
    image_item: int = 4  # bytes of a number in networks that look at images


class Work(NamedTuple):
    """Kernels of one kind: floating-point operations (two per multiply-add), what they move, how many there are."""

    flops: float = 0.0
    gradient: float = 0.0
    convolution: float = 0.0
    flops64: float = 0.0
    bytes: float = 0.0  # the same in every precision: optimiser states, copies
    weights: float = 0.0  # numbers that products read or write, in the networks' precision
    activations: float = 0.0  # the same; measured rates have their traffic in them
    casts: float = 0.0  # numbers cast between float32 and bfloat16, if that is the precision: 6 bytes each
    launches: float = 0.0
    images: bool = False  # whether these numbers are of networks that look at images

    @property
    def total(self) -> float:
        """All floating-point operations."""
        return self.flops + self.gradient + self.convolution + self.flops64

    def arithmetic(self, device: Device) -> float:
        """Seconds of computing."""
        compute = self.flops / device.flops + self.gradient / device.gradient
        return compute + self.convolution / device.convolution + self.flops64 / device.flops64

    def traffic(self, device: Device) -> float:
        """Seconds of moving data."""
        numbers = self.weights + (0.0 if device.measured else self.activations)
        item = device.image_item if self.images else device.item
        casts = 6 * self.casts if item == 2 else 0.0
        return (self.bytes + item * numbers + casts) / device.bandwidth


class Loop(NamedTuple):
    """Kinds of work that take turns, `times` over; `captured` if CUDA graphs can hold it."""

    parts: tuple[Work, ...]
    times: float = 1.0
    captured: bool = False

    @property
    def launches(self) -> float:
        """Operations of one pass."""
        return sum(part.launches for part in self.parts)

    def seconds(self, device: Device) -> float:
        """Each part takes its arithmetic or its traffic, whichever is longer. A GPU runs while the next kernels are
        launched; a CPU launches first, and its caches let the traffic of one part hide behind another's arithmetic."""
        arithmetic = [part.arithmetic(device) for part in self.parts]
        traffic = [part.traffic(device) for part in self.parts]
        launching = self.launches * device.launch
        if device.measured:
            return self.times * (max(sum(arithmetic), sum(traffic)) + launching)
        busy = sum(map(max, arithmetic, traffic)) + self.launches * device.gap
        return self.times * (busy if device.graphs and self.captured else max(busy, launching))


class Phase(NamedTuple):
    """Loops, one after another."""

    loops: tuple[Loop, ...] = ()

    @property
    def total(self) -> float:
        """All floating-point operations."""
        return sum(loop.times * part.total for loop in self.loops for part in loop.parts)

    @property
    def launches(self) -> float:
        """All operations."""
        return sum(loop.times * loop.launches for loop in self.loops)

    def seconds(self, device: Device) -> float:
        """All loops."""
        return sum(loop.seconds(device) for loop in self.loops)


class Trial(NamedTuple):
    """A piece of a run's own work that can be timed here, and its floating-point operations as its `Work` has them."""

    flops: float
    call: Callable[[], object]
    launches: float = 0.0  # operations whose launching is no part of the rate


class Workload(ABC):
    """What a run of an agent does, as far as its cost goes."""

    capacity: int  # of the buffer: work may grow until it is full
    measures = Measures()

    @abstractmethod
    def updates(self) -> Sequence[int]:
        """Steps at which updates happen."""

    @abstractmethod
    def update(self, transitions: int) -> dict[str, Phase]:
        """One update with this many transitions in the buffer, by phase."""

    @abstractmethod
    def act(self, rows: int) -> Loop:
        """One action in each of so many environments, in training."""

    def play(self) -> Loop:
        """One action in evaluation."""
        return self.act(1)

    @abstractmethod
    def memory(self) -> dict[str, float]:
        """Bytes at the full buffer, by what they hold."""

    @abstractmethod
    def trials(self, device: torch.device = CPU, images: AbstractContextManager = NOTHING) -> dict[str, Trial]:
        """What to time on a device for its rates: flops and gradient; the others if the work has them. Networks that
        look at images run within `images`."""


class Count(NamedTuple):
    """What code does to tensors of the meta device."""

    macs: int  # multiply-adds of products and convolutions
    convolutions: int  # of these, in convolutions
    weights: int  # numbers of stored matrices that both read
    cells: int  # numbers that convolutions make
    numbers: int  # that all operations make
    launches: int  # operations, without those that only give a view


class _Counter(TorchDispatchMode):
    CONVOLUTIONS: ClassVar = {torch.ops.aten.convolution, torch.ops.aten.convolution_backward}

    def __init__(self, inputs: Iterable[Any]) -> None:
        from torch.utils.flop_counter import flop_registry  # imports Triton, which importing this must not do

        super().__init__()
        self.formulas, self.counts = flop_registry, Counter(dict.fromkeys(Count._fields, 0))
        self._passing: dict[int, Any] = {}  # storages of inputs and results, kept so that no other takes their address
        self._note(inputs)

    def _note(self, tree: Any) -> int:
        tensors = [x for x in tree_leaves(tree) if isinstance(x, Tensor)]
        self._passing |= {x.untyped_storage()._cdata: x.untyped_storage() for x in tensors}
        return sum(x.numel() for x in tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, kind = func(*args, **(kwargs or {})), func._overloadpacket
        if kind in self.formulas:
            macs = self.formulas[kind](*args, **(kwargs or {}), out_val=result) // 2
            matrices = [x for x in args if isinstance(x, Tensor) and x.ndim > 1]
            stored = [x.numel() for x in matrices if x.untyped_storage()._cdata not in self._passing]
            self.counts.update(macs=macs, weights=sum(stored))
            if kind in self.CONVOLUTIONS:
                self.counts.update(convolutions=macs, cells=self._note(result))
        if not func.is_view:
            self.counts.update(numbers=self._note(result), launches=1)
        return result


def count(function: Callable[..., object], *inputs: Any) -> Count:
    """Run this on tensors of the meta device and count what it does; products by PyTorch's own formulas."""
    with torch.device("meta"), _Counter(inputs) as counter:
        function(*inputs)
    return Count(**counter.counts)


def weights(module: nn.Module) -> int:
    """Parameters but biases."""
    return sum(p.numel() for p in module.parameters() if p.ndim > 1)


def layers(module: nn.Module) -> int:
    """Linear layers and convolutions."""
    return sum(isinstance(m, nn.Linear | nn.Conv2d | nn.ConvTranspose2d) for m in module.modules())


def stepped(parameters: float) -> Work:
    """Gradient and Adam's step in one kernel read 3 and write 3 numbers per parameter."""
    return Work(bytes=4 * 6 * parameters)


def adam(parameters: float) -> Work:
    """Adam reads 4 and writes 3 numbers per parameter."""
    return Work(bytes=4 * 7 * parameters)
