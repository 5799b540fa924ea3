"""Which library forms a product on this CPU: measured once per machine, number of threads and class of shapes.

MKL, oneDNN and csrc differ by factors that depend on the CPU: on an AMD one with AVX-512 oneDNN forms products 2.2
times as fast as MKL, with AVX2 alone they are even. The fastest serves, or ATen where none is clearly faster. The
choice changes the order of additions, so it is kept on disk, the same for all processes of a machine, and a run keeps
its own (`state`). In deterministic mode (torch.use_deterministic_algorithms, or PSDRL_AUTOTUNE=0) nothing is measured:
the first candidate serves. Candidates are ordered so that this is a good guess, and "aten" is always among them.
"""

import json
import logging
import os
import platform
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import torch
from filelock import FileLock
from torch import Tensor

from psdrl.kernels import tune
from psdrl.kernels.extension import fingerprint, instruction_set

log = logging.getLogger("psdrl.kernels")
Candidates = Mapping[str, Callable[[], object]]
GAIN = 1.05  # how much faster than ATen another must be: less is within the noise of a measurement
SECONDS, ROUNDS = 0.004, 5  # spent on each candidate at least in the mean, and calls of it
EXACT_ROWS = 16  # up to here each number of rows is a class of its own, above that its power of two


@cache
def machine() -> str:
    """What a measurement holds for: CPU, instruction sets in force, versions, the build of csrc/."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    limits = (os.environ.get(name, "") for name in ("ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"))
    capability = torch.backends.cpu.get_cpu_capability()
    build = f"csrc {fingerprint()}" if fingerprint() else ""
    words = (model or platform.machine(), capability, instruction_set(), *limits, f"torch {torch.__version__}", build)
    return ", ".join(word for word in words if word)


def shape_class(*tensors: Tensor) -> str:
    """Shapes as far as they matter: rows by class, widths as they are, and whether memory is contiguous."""
    words = []
    for i, x in enumerate(tensors):
        rows = x.shape[0]
        if i == 0 and rows > EXACT_ROWS:
            rows = 1 << (rows - 1).bit_length()
        words.append(f"{rows}x{x.shape[1]}{'' if x.is_contiguous() else 't' if x.T.is_contiguous() else 's'}")
    return " ".join(words)


def best_times(candidates: Candidates) -> dict[str, float]:
    """Shortest time of each candidate, over at least five rounds in which all are called in turn: what else the machine
    does meets them all alike. Rounds end by the time of all together: a slow one is not called until a fast one has
    had its share."""
    for call in candidates.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    rounds, spent = 0, 0.0
    while rounds < ROUNDS or spent < SECONDS * len(times):
        for name, call in candidates.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
            spent += times[name][-1]
        rounds += 1
    return {name: min(t) for name, t in times.items()}


def fastest(candidates: Candidates) -> str:
    """The name of the fastest candidate; "aten" unless one is faster by GAIN."""
    times = best_times(candidates)
    best = min(times, key=times.__getitem__)
    return best if GAIN * times[best] < times["aten"] else "aten"


class Choices:
    """Choices by class, of this process and, on disk, of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path.with_suffix(".lock"), timeout=60)  # one object: a candidate may choose in its turn
        self.known: dict[str, str] = {}  # by operation, threads and shapes
        self.quick: dict[tuple, str] = {}  # the same by the shapes themselves: acting asks 20 times per step

    def choose(self, key: str, candidates: Candidates) -> str:
        """What serves this class from now on."""
        chosen = self.known.get(key)
        if chosen is None or chosen not in candidates:
            chosen = self.known[key] = self._agreed(key, candidates)
            log.info("%s: %s", key, chosen)
        return chosen

    def _agreed(self, key: str, candidates: Candidates) -> str:
        """What an earlier process has measured, or a measurement; one process at a time, so that all agree."""
        if not tune.measures():
            return next(iter(candidates))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._lock:
                chosen = self._read().get(machine(), {}).get(key)
                if chosen is None or chosen not in candidates:
                    chosen = fastest(candidates)
                    self._write(key, chosen)
                return chosen
        except OSError as error:  # filelock's time-out, too
            log.info("measurements of this CPU are not kept: %s", error)
            return fastest(candidates)

    def _write(self, key: str, chosen: str) -> None:
        stored = self._read()  # again: candidates may have chosen and written
        stored.setdefault(machine(), {})[key] = chosen
        partial = self.path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(stored, indent=1))
        partial.replace(self.path)

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            stored = json.loads(self.path.read_text())
            return {str(m): {str(k): str(v) for k, v in known.items()} for m, known in stored.items()}
        except (OSError, ValueError, AttributeError):
            return {}


@cache
def choices() -> Choices:
    """The process's choices."""
    return Choices(tune.cache_file().with_name("cpu.json"))


def _key(operation: str, x: Tensor, y: Tensor) -> tuple:
    return operation, torch.get_num_threads(), x.shape, x.stride(), y.shape, y.stride()


def chosen(operation: str, x: Tensor, y: Tensor) -> str | None:
    """What `choose` has said of such tensors, if it was asked: a microsecond less."""
    return choices().quick.get(_key(operation, x, y))


def choose(operation: str, x: Tensor, y: Tensor, candidates: Callable[[], Candidates]) -> str:
    """Which candidate serves the operation on such tensors."""
    if (known := chosen(operation, x, y)) is not None:
        return known
    all_choices = choices()
    found = all_choices.choose(f"{operation} {torch.get_num_threads()} {shape_class(x, y)}", candidates())
    all_choices.quick[_key(operation, x, y)] = found
    return found


def state() -> dict[str, str]:
    """The choices of this process, for a checkpoint."""
    return dict(choices().known)


def restore(known: Mapping[str, str]) -> None:
    """Go on with the choices of a run; what is none of an operation's candidates is measured anew."""
    if not isinstance(known, Mapping) or not all(isinstance(word, str) for item in known.items() for word in item):
        raise ValueError("the chosen kernels must be names by class")
    choices().known.update(known)
    choices().quick.clear()
