"""Which backend serves an operation, and why another does not.

Each operation has an oracle (`reference`), ATen's operations (`aten`) and Triton kernels (`triton`). It is registered
as torch.ops.psdrl.<name> with a fake implementation, so torch.compile takes it as one node on a CUDA device. On the
CPU the call goes straight to the ATen function, which torch.compile traces through unless it is a product (there is a
choice of libraries, `kernels.choice`): at acting sizes a detour through the dispatcher costs as much as the operation.
"""

import functools
import importlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from psdrl.kernels import folders, triton_support

Backend = Literal["triton", "aten", "reference"]
BACKENDS: tuple[Backend, ...] = ("triton", "aten", "reference")  # in order of preference

log = logging.getLogger("psdrl.kernels")
library = torch.library.Library("psdrl", "FRAGMENT")  # the C++ extension defines further operations of psdrl
operations: dict[str, "Operation"] = {}
_forced: Backend | None = None
_recorder: Callable[[str, tuple[Any, ...]], object] | None = None
_disabled: dict[tuple[str, str], str] = {}  # by operation and kind of device: what failed its check, and how


class Refused(RuntimeError):
    """A backend was asked for that cannot serve."""


class Choice(NamedTuple):
    """The backend that serves an operation and the reasons of those that would have come before it."""

    backend: Backend
    refused: dict[Backend, str]


def choose(device: torch.device, dtype: torch.dtype, operation: str = "") -> Choice:
    """The first backend that does not refuse tensors of this device and dtype, or has failed its check there."""
    reason = triton_support.refusal(device, dtype)
    if reason is None and device.type == "cpu":
        reason = "Triton's interpreter is slow: it serves only where it is forced"
    failed = _disabled.get((operation, device.type))
    if reason is None and failed is None:
        return Choice("triton", {})
    if reason is None:
        return Choice("aten", {"triton": failed or ""})
    return Choice("aten", {"triton": reason}) if failed is None else Choice("reference", {"aten": failed})


def disable(operation: str, device: torch.device, reason: str) -> None:
    """The backend that serves this operation on this kind of device has failed: the next one takes its place."""
    _disabled[operation, device.type] = reason
    if operation in operations:  # `weight_step_`, which changes its arguments, is none
        operations[operation].direct = False
        operations[operation].announced.discard(device.type)


def explain(device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> dict[str, Choice]:
    """For each operation, which backend serves on a device and why others were refused."""
    tuple(folders())  # imports them
    return {name: choose(torch.device(device), dtype, name) for name in operations}


def serving(device: torch.device, dtype: torch.dtype, operation: str) -> Backend:
    """The backend that runs this operation now: the forced one or the chosen one."""
    return _forced or choose(device, dtype, operation).backend


def forced() -> Backend | None:
    """The backend that `force` asks for at present."""
    return _forced


def unconstrained(operation: str) -> bool:
    """Whether its CPU backend serves without being asked: none is forced, none was replaced, the choice is logged."""
    return operations[operation].direct


class Operation:
    """One operation and its backends."""

    def __init__(self, name: str, module: str, aten: Callable[..., Any], rows: tuple[int, ...], product: bool) -> None:
        self.name, self.module, self.aten, self.rows, self.product = name, module, aten, rows, product
        self.call: Callable[..., Any] = aten  # the public function, set by `operation`
        self.direct = False  # calls on the CPU skip `serve`; not before the first one has been logged
        self.announced: set[str] = set()

    def backend(self, backend: Backend) -> Callable[..., Any]:
        """The function that a backend runs; Triton is imported here at the earliest."""
        module = importlib.import_module(f"{self.module}.{'triton_kernel' if backend == 'triton' else backend}")
        return getattr(module, self.name)

    def serve(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run the forced backend or the chosen one."""
        if _forced is not None:
            reason = triton_support.refusal(x.device, x.dtype) if _forced == "triton" else None
            if reason is not None:
                raise Refused(f"{self.name}: triton cannot serve: {reason}")
            return self.backend(_forced)(x, *args, **kwargs)
        if x.is_cuda:
            return getattr(torch.ops.psdrl, self.name)(x, *args, **kwargs)
        if (self.name, "cpu") in _disabled:
            return self.backend("reference")(x, *args, **kwargs)
        if not torch.compiler.is_compiling():
            self.announce(choose(x.device, x.dtype, self.name), x.device)
            self.direct = True
        return self.aten(x, *args, **kwargs)

    def serve_cuda(self, x: Tensor, *args: Any) -> Any:
        """What torch.ops.psdrl.<name> runs on a CUDA device."""
        choice = choose(x.device, x.dtype, self.name)
        self.announce(choice, x.device)
        return self.backend(choice.backend)(x, *args)

    def announce(self, choice: Choice, device: torch.device) -> None:
        """Log the choice, once per kind of device."""
        if device.type not in self.announced:
            self.announced.add(device.type)
            why = "".join(f"; {name} refused: {reason}" for name, reason in choice.refused.items())
            level = logging.WARNING if device.type == "cuda" and choice.refused else logging.INFO
            log.log(level, "%s on %s: %s%s", self.name, device.type, choice.backend, why)


F = TypeVar("F", bound=Callable[..., Any])


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def operation(
    schema: str, module: str, aten: F, fake: Callable[..., Any], rows: tuple[int, ...], product: bool = False
) -> F:
    """Register an operation of the package `module` and give the function to call.

    schema: as in torch.library, `name(Tensor x, ...) -> ...`; the first argument decides device and dtype.
    fake: the result's shapes and dtypes from the arguments'.
    rows: places of the arguments that have rows per state; the others are weights, columns and numbers.
    product: a matrix product, which runs in torch.autocast's dtype where that is on; others run in float32 there.
    """
    name = schema.partition("(")[0]
    entry = operations[name] = Operation(name, module, aten, rows, product)
    library.define(schema, tags=torch.Tag.pt2_compliant_tag)
    library.impl(name, aten, "CPU")
    library.impl(name, entry.serve_cuda, "CUDA")
    torch.library.register_fake(f"psdrl::{name}", fake, lib=library)

    @functools.wraps(aten)
    def call(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if _recorder is not None:
            _recorder(name, (x, *args))
            return fake(x, *args, **kwargs)
        kind = x.device.type
        if kind != "meta" and torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind) if product else torch.float32
            x, args = _cast(x, dtype), tuple(_cast(value, dtype) for value in args)
            kwargs = {name: _cast(value, dtype) for name, value in kwargs.items()}
        if entry.direct and kind == "cpu":
            if product and torch.compiler.is_compiling():  # which library forms it is known when it runs
                return getattr(torch.ops.psdrl, name)(x, *args, **kwargs)
            return entry.aten(x, *args, **kwargs)
        return entry.serve(x, *args, **kwargs)

    entry.call = call
    return cast(F, call)


@contextmanager
def force(backend: Backend | None) -> Iterator[None]:
    """Let this backend serve every operation, or raise `Refused`; None: back to the choice. For tests and doctor."""
    global _forced
    if backend is not None and backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}: one of {', '.join(BACKENDS)}")
    before, _forced = _forced, backend
    for entry in operations.values():
        entry.direct = False
    try:
        yield
    finally:
        _forced = before
        for entry in operations.values():
            entry.direct = False


@contextmanager
def recorded(note: Callable[[str, tuple[Any, ...]], object]) -> Iterator[None]:
    """Operations within are not run: their names and positional arguments are noted, their results have shapes only."""
    global _recorder
    before, _recorder = _recorder, note
    try:
        yield
    finally:
        _recorder = before
