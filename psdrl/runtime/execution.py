"""How the inner functions of an update run: as they are, compiled, captured in CUDA graphs; and in which precision."""

import contextlib
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor, nn

from psdrl.config import Config, Precision
from psdrl.errors import UserError
from psdrl.runtime.device import bf16_on_cpu, is_gpu
from psdrl.runtime.graphs import Captured, Cuda, Step

Function = TypeVar("Function", bound=Callable)
AnyAdam = TypeVar("AnyAdam", bound=torch.optim.Optimizer)


class Execution:
    """Compiles, captures and casts for one agent, as its configuration and device say.

    torch.compile runs in its default mode, which leaves CUDA graphs to us: a compiled function is captured like any
    other. Each works without the other.
    """

    def __init__(
        self,
        device: torch.device,
        compile: bool = False,
        cuda_graphs: bool = False,
        precision: Precision = "fp32",
        primitives: Cuda | None = None,
        chunk_rows: int = 4096,
        keeps_memory: bool = False,
    ) -> None:
        self.device, self.compile, self.precision = device, compile, precision
        self.chunk_rows = chunk_rows  # most rows that a network sees at once
        if primitives is None and device.type == "cuda":
            primitives = Cuda(device)
        self.primitives = primitives
        self.graphs = cuda_graphs and primitives is not None
        self._steps: dict[str, Step] = {}
        self.spare: dict[str, list[Any]] = {}  # by name: holders of graphs whose user is gone, for the next user
        self._captured: WeakSet[Captured] = WeakSet()
        self._scratch: dict[str, Tensor] | None = {} if keeps_memory and device.type == "cpu" else None

    @classmethod
    def of(cls, config: Config, device: torch.device) -> "Execution":
        """As the configuration says; also sets PyTorch's own switches for tf32."""
        if config.compile:
            check_compiler(device)
        precision = "fp32" if device.type == "cpu" and config.precision == "mixed" else config.precision
        if config.precision == "bf16" and device.type == "cpu" and (reason := bf16_on_cpu()):
            raise UserError(f"--precision bf16 cannot run: {reason}, or use --precision fp32.")
        allow_tf32(device, config.precision)
        graphs = config.cuda_graphs and device.type == "cuda"
        rows = config.rows_at_once(is_gpu(device))
        return cls(device, config.compile, graphs, precision, chunk_rows=rows, keeps_memory=True)

    @property
    def plain(self) -> bool:
        """Whether functions run as they are, on a CPU, in the networks' own precision."""
        return self.device.type == "cpu" and not (self.compile or self.graphs or self.precision == "bf16")

    def compiled(self, function: Function) -> Function:
        """The function compiled, once per process, or as it is. PyTorch caches the code on disk between runs."""
        return _compiled(function) if self.compile else function  # type: ignore[return-value]

    def captured(
        self,
        name: str,
        step: Step,
        state: Callable[[], Sequence[Tensor]] = tuple,
        generators: tuple[torch.Generator, ...] = (),
    ) -> Step:
        """The step as a CUDA graph if graphs are on."""
        if not self.graphs:
            return step
        assert self.primitives is not None
        captured = Captured(name, step, state, self.primitives, generators)
        self._captured.add(captured)
        return captured

    @property
    def failures(self) -> list[str]:
        """Steps that could not be captured and run eagerly."""
        return sorted(step.name for step in self._captured if step.failed)

    def kept(self, name: str, step: Step, state: Callable[[], Sequence[Tensor]] = tuple) -> Step:
        """The same for a step that is defined anew in every update: the first one of a name serves from then on."""
        return self._steps.setdefault(name, self.captured(name, step, state)) if self.graphs else step

    @property
    def sizes_may_vary(self) -> bool:
        """Whether a step may have another size every time: a graph or a compiled function would be made anew."""
        return not (self.graphs or self.compile)

    def scratch(self, name: str, like: Tensor, *shape: int) -> Tensor:
        """Memory for numbers of `like`'s dtype, not cleared. An agent's is the same in every update on a CPU: what is
        given back to the system in between has to be cleared by it page by page, and the host of a virtual machine may
        take it away for the time (88 MB: 5 ms at once, 17 to 180 ms after 2.5 s)."""
        size = math.prod(shape)
        if self._scratch is None:
            return like.new_empty(shape)
        kept = self._scratch.get(name)
        if kept is None or kept.numel() < size or kept.dtype != like.dtype:
            self._scratch.pop(name, None)  # before the next one is made
            kept = self._scratch[name] = like.new_empty(size + size // 4)  # room to grow takes no memory until used
        return kept[:size].view(shape)

    def compile_seconds(self) -> float:
        """Seconds that torch.compile has taken in this process so far."""
        if not self.compile:
            return 0.0
        from torch._dynamo.utils import calculate_time_spent  # takes a second to import

        return calculate_time_spent().get("total_wall_time", 0.0)

    def forget(self) -> None:
        """Drop all graphs, for parameters or optimiser state have moved."""
        self._steps.clear()
        self.spare.clear()

    def autocast(self) -> AbstractContextManager:
        """The networks' products and convolutions within are formed in bfloat16 if the precision says so."""
        if self.precision == "bf16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return contextlib.nullcontext()

    def image_autocast(self) -> AbstractContextManager:
        """The same for networks that look at images: in bfloat16 in mixed precision too."""
        if self.precision == "mixed":
            return torch.autocast(self.device.type, torch.bfloat16)
        return self.autocast()

    @contextlib.contextmanager
    def fixed_shapes(self) -> Iterator[None]:
        """Convolutions within have the same shapes again and again: cuDNN may measure its algorithms, once per shape.
        Not in deterministic mode, because another algorithm adds in another order."""
        measures = not torch.are_deterministic_algorithms_enabled() and os.environ.get("PSDRL_AUTOTUNE", "1") != "0"
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = before or (self.device.type == "cuda" and measures)
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = before

    def made(self, x: Tensor) -> torch.dtype:
        """The dtype that products of x have under `autocast`."""
        return torch.bfloat16 if self.precision == "bf16" else x.dtype

    def beside(self) -> tuple[AbstractContextManager, Callable[[], object]]:
        """Work within the first runs beside what follows, on a device that can, until the second is called."""
        return self.primitives.fork() if self.primitives else (contextlib.nullcontext(), lambda: None)


def allow_tf32(device: torch.device, precision: Precision) -> None:
    """Let a GPU form float32 products in tf32, or forbid it; the kernels in `psdrl.kernels` follow this switch."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
        torch.backends.cudnn.allow_tf32 = precision != "fp32"


def with_state(optimiser: AnyAdam) -> AnyAdam:
    """The same Adam, whose state exists from the start and never moves, as CUDA graphs want it."""
    for p in (p for group in optimiser.param_groups for p in group["params"]):
        moments = {name: torch.zeros_like(p) for name in ("exp_avg", "exp_avg_sq")}
        optimiser.state[p] = {"step": torch.zeros((), device=p.device), **moments}
    return optimiser


def optimiser_state(network: nn.Module, optimiser: torch.optim.Optimizer) -> list[Tensor]:
    """What a gradient step changes: the parameters and the optimiser's numbers."""
    numbers = (value for entry in optimiser.state.values() for value in entry.values())
    return [*network.parameters(), *(value for value in numbers if isinstance(value, Tensor))]


def load_optimiser(optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """`load_state_dict`, but raises ValueError where PyTorch takes moments of another shape than their parameter."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    for index, entry in state["state"].items():
        if type(index) is not int or not 0 <= index < len(parameters):
            raise ValueError(f"an optimiser has numbers of a parameter {str(index)[:40]}")
        for name, value in entry.items():
            if not isinstance(value, Tensor) or (value.ndim and value.shape != parameters[index].shape):
                raise ValueError(f"an optimiser's {name} of parameter {index} is not of its shape")
    optimiser.load_state_dict(state)


def check_compiler(device: torch.device) -> None:
    """On the CPU torch.compile writes C++: refuse early where nothing can compile it."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    if device.type == "cpu" and not any(shutil.which(name) for name in names):
        raise UserError(f"--compile needs a C++ compiler ({' or '.join(names)}): install one or leave --compile out.")


@cache
def _compiled(function: Callable) -> Callable:
    return torch.compile(function)


EAGER = Execution(torch.device("cpu"))
