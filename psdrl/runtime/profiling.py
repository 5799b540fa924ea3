"""Where the time goes: phases by device clocks, ranges for Nsight, and `--profile START:STOP`."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerActivity, profile, record_function


class Mark(Protocol):
    """A moment on the device, as torch.cuda.Event."""

    def record(self) -> None:
        """Now, once the device gets here."""

    def elapsed_time(self, end: Any, /) -> float:
        """Milliseconds from here to `end`, both of which the device has reached."""


class HostMark:
    """A moment on the host, for devices that compute while the host waits."""

    def record(self) -> None:
        self.seconds = time.perf_counter()

    def elapsed_time(self, end: "HostMark") -> float:
        return 1e3 * (end.seconds - self.seconds)


class CudaMark:
    """A moment on a GPU's present stream."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.event = device, torch.cuda.Event(enable_timing=True)

    def record(self) -> None:
        self.event.record(torch.cuda.current_stream(self.device))

    def elapsed_time(self, end: "CudaMark") -> float:
        return self.event.elapsed_time(end.event)


class CudaDevice:
    """Marks, ranges and the profiler's switch of one GPU. Tests put others in its place."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self) -> Mark:
        return CudaMark(self.device)

    def range(self, name: str) -> AbstractContextManager:
        return torch.cuda.nvtx.range(name)

    def synchronise(self) -> None:
        torch.cuda.synchronize(self.device)

    def start(self) -> None:
        """nsys and ncu with `--capture-range=cudaProfilerApi` begin here."""
        torch.cuda.synchronize(self.device)
        torch.cuda.cudart().cudaProfilerStart()

    def stop(self) -> None:
        torch.cuda.synchronize(self.device)
        torch.cuda.cudart().cudaProfilerStop()


class HostDevice:
    """The same on a CPU, where torch.profiler writes a trace for Perfetto."""

    def __init__(self, trace: Path | None = None) -> None:
        self.trace = trace

    def mark(self) -> Mark:
        return HostMark()

    def range(self, name: str) -> AbstractContextManager:
        return record_function(name)

    def synchronise(self) -> None:
        pass

    def start(self) -> None:
        self._profile = profile(activities=[ProfilerActivity.CPU], record_shapes=True)
        self._profile.start()

    def stop(self) -> None:
        self._profile.stop()
        assert self.trace is not None
        self._profile.export_chrome_trace(str(self.trace))


class Device(Protocol):
    """What both have in common."""

    def mark(self) -> Mark:
        """A moment, not yet recorded."""

    def range(self, name: str) -> AbstractContextManager:
        """A named range in the profiler's time line."""

    def synchronise(self) -> None:
        """Wait until the device has reached all marks."""

    def start(self) -> None:
        """Begin profiling."""

    def stop(self) -> None:
        """End profiling and keep what was seen."""


def device_for(device: torch.device, trace: Path | None = None) -> Device:
    """Clocks and ranges of this device."""
    return CudaDevice(device) if device.type == "cuda" else HostDevice(trace)


class Phases:
    """Times the phases of one update; the device is waited for once, when the seconds are read."""

    def __init__(
        self, device: Device, ranges: dict[str, str], on_phase: Callable[[str], None] = lambda name: None
    ) -> None:
        """`ranges`: the phases' names in the profiler's time line."""
        self.device, self.ranges, self.on_phase = device, ranges, on_phase
        self._marks: dict[str, tuple[Mark, Mark]] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.on_phase(name)
        start, end = self.device.mark(), self.device.mark()
        with self.device.range(self.ranges[name]):
            start.record()
            yield
            end.record()
        self._marks[name] = (start, end)

    def seconds(self) -> dict[str, float]:
        """Seconds of each phase on the device."""
        self.device.synchronise()
        return {name: start.elapsed_time(end) / 1e3 for name, (start, end) in self._marks.items()}


class Profile:
    """Brackets updates START to STOP - 1, counted from 0, with the device's profiler."""

    def __init__(self, updates: range, device: Device) -> None:
        self.updates, self.device, self.running = updates, device, False

    def before(self, update: int) -> None:
        """An update begins."""
        if update in self.updates and not self.running:
            self.device.start()
            self.running = True

    def after(self, update: int) -> None:
        """An update has ended."""
        if self.running and update + 1 >= self.updates.stop:
            self.close()

    def close(self) -> None:
        """The run ends, perhaps before STOP."""
        if self.running:
            self.running = False
            self.device.stop()
