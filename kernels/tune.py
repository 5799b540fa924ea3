"""Ways to form a product: tiles of our GEMM kernels, with the inner dimension whole or split, and cuBLAS with one more
pass. Which one runs is measured once per shape and kept on disk, or it is one fixed default.

The choice changes the order of additions. In deterministic mode (torch.use_deterministic_algorithms, or
PSDRL_AUTOTUNE=0) and in the interpreter nothing is measured, nor while a CUDA graph is captured.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from psdrl.kernels.triton_support import interpreted

log = logging.getLogger("psdrl.kernels")
FEW_ROWS = 32  # acting: 6 to 18 rows of one state; the weights are read once, so a tile holds all rows
SOME_ROWS = 512  # gradient steps: 125 rows of 2292 units are 36 tiles of 128 x 64, and an A100 has 108 multiprocessors
LIBRARY = "cublas"  # the product by cuBLAS, then bias, terms and tanh in one pass of ours


class Tile(NamedTuple):
    """Block sizes of one program and how it runs."""

    rows: int
    cols: int
    inner: int
    warps: int
    stages: int
    group: int = 8
    split: int = 1  # parts of the inner dimension, each a program of its own; a second kernel adds them in order

    def options(self) -> dict[str, int]:
        """Keyword arguments of a kernel."""
        return {
            "BLOCK_R": self.rows,
            "BLOCK_U": self.cols,
            "BLOCK_K": self.inner,
            "GROUP": self.group,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


# The first of each list is the default: it fits the 99 KB of shared memory that the smallest supported devices
# (8.6, 8.9, 12.0) give to a block, and spills no register on any architecture (python -m psdrl.kernels.aot).
# ieee runs on the CUDA cores, where a thread holds its operands of BLOCK_K in registers: shallow tiles.
# Few rows: the weights' bytes bound the time, and columns of 16 make 144 programs of 2292 units, enough for all SMs.
_FEW = {
    "ieee": [Tile(16, 16, 64, 2, 4), Tile(16, 32, 32, 4, 4), Tile(16, 64, 32, 4, 4)],
    "tf32": [Tile(16, 16, 128, 2, 5), Tile(16, 32, 128, 4, 3), Tile(16, 64, 64, 4, 4)],
    "bf16": [Tile(16, 16, 256, 2, 4), Tile(16, 32, 128, 4, 4), Tile(16, 64, 128, 4, 4)],
}
_IEEE = [Tile(64, 64, 16, 4, 3), Tile(128, 64, 16, 8, 3), Tile(128, 128, 16, 8, 3), Tile(64, 32, 16, 4, 4)]
_MANY = {
    "ampere": {
        "ieee": _IEEE,
        "tf32": [
            Tile(128, 64, 32, 8, 3), Tile(128, 128, 32, 4, 3), Tile(128, 128, 32, 8, 3), Tile(64, 64, 32, 4, 4),
            Tile(64, 128, 32, 4, 3),
        ],
        "bf16": [Tile(128, 64, 64, 8, 3), Tile(128, 128, 32, 8, 4), Tile(64, 64, 64, 4, 4), Tile(128, 128, 64, 8, 3)],
    },
    "hopper": {
        "ieee": _IEEE,
        "tf32": [Tile(128, 64, 32, 8, 4), Tile(128, 128, 32, 8, 4), Tile(64, 64, 64, 4, 4), Tile(64, 128, 32, 4, 4)],
        "bf16": [Tile(128, 64, 64, 8, 3), Tile(128, 128, 64, 8, 4), Tile(64, 128, 64, 4, 4), Tile(128, 256, 64, 8, 3)],
    },
    "blackwell": {
        "ieee": _IEEE,
        "tf32": [Tile(128, 64, 32, 8, 4), Tile(128, 128, 32, 8, 4), Tile(128, 64, 64, 8, 3), Tile(64, 64, 64, 4, 3)],
        "bf16": [Tile(128, 64, 64, 4, 3), Tile(128, 128, 64, 8, 4), Tile(128, 64, 128, 4, 3), Tile(64, 128, 64, 4, 4)],
    },
}  # fmt: skip
# Some rows: the same, and tiles whose inner dimension is split, so that every multiprocessor has a part: 125 rows of
# 2292 units are 72 tiles of 64 x 64, in three parts 216 programs.
_SPLIT = {
    "ieee": [Tile(64, 64, 16, 4, 3, split=3)],
    "tf32": [Tile(64, 64, 32, 4, 4, split=2), Tile(64, 64, 32, 4, 4, split=3), Tile(128, 64, 32, 8, 3, split=6)],
    "bf16": [Tile(64, 64, 64, 4, 3, split=2), Tile(64, 64, 64, 4, 3, split=3), Tile(128, 64, 64, 8, 3, split=6)],
}
PRECISIONS = ("ieee", "tf32", "bf16")


def family(capability: int) -> str:
    """Architecture family of a compute capability such as 80; 12.0 has Ampere's kind of tensor core instructions."""
    return {9: "hopper", 10: "blackwell", 11: "blackwell"}.get(capability // 10, "ampere")


def tiles(capability: int, precision: str, rows: int) -> list[Tile]:
    """Candidates, the default first."""
    return _FEW[precision] if rows <= FEW_ROWS else _MANY[family(capability)][precision]


def splits(precision: str, rows: int) -> list[Tile]:
    """Further candidates, of kernels that can add up parts."""
    return _SPLIT[precision] if FEW_ROWS < rows <= SOME_ROWS else []


def precision(dtype: torch.dtype) -> str:
    """How products are formed: bf16, and for float32 tf32 or ieee as torch.set_float32_matmul_precision says."""
    if dtype == torch.bfloat16:
        return "bf16"
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def unit_columns(x: Tensor) -> Tensor:
    """`x` with adjacent columns: a view with strided rows passes as it is, a transposed one is copied."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def common_unit(*numbers: int) -> int:
    """Largest power of two up to 16 that divides all of them; 0 is divided by any."""
    return gcd(16, *numbers)


def same_dtype(first: Tensor, *others: Tensor | None) -> None:
    """Refuse mixed dtypes and devices, as eager does."""
    for other in others:
        if other is not None and (other.dtype != first.dtype or other.device != first.device):
            raise TypeError(
                f"expected {first.dtype} on {first.device} for all inputs, got {other.dtype} on {other.device}"
            )


def enabled() -> bool:
    """Whether tiles may be measured."""
    return not interpreted() and measures()


def measures() -> bool:
    """Whether anything may be chosen by measurement."""
    return not (torch.are_deterministic_algorithms_enabled() or os.environ.get("PSDRL_AUTOTUNE", "1") == "0")


@cache
def version() -> str:
    """Changes with Triton and with the kernels' source: old measurements are void."""
    import triton

    here = Path(__file__).parent
    sources = b"".join(path.read_bytes() for path in sorted([*here.glob("t*.py"), *here.glob("*/triton_kernel.py")]))
    return f"triton-{triton.__version__}-{hashlib.sha256(sources).hexdigest()[:12]}"


def cache_file() -> Path:
    """Where measurements are kept; PSDRL_CACHE moves it."""
    home = os.environ.get("PSDRL_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "psdrl"
    return Path(home) / "tiles.json"


Way = Tile | str  # a tile of ours, or LIBRARY


def named(way: Way) -> str:
    """cublas, 128x64x32 (8 warps), 64x64x32 (4 warps) in 3 parts."""
    if not isinstance(way, Tile):
        return way
    return f"{way.rows}x{way.cols}x{way.inner} ({way.warps} warps)" + (f" in {way.split} parts" * (way.split > 1))


class Tuner:
    """Ways by kernel, device, precision and shape; a failing disk or damaged file costs a new measurement, no more."""

    def __init__(self, path: Path, version: str, time: Callable[[Callable[[], Any]], float]) -> None:
        self.path, self.version, self.time = path, version, time
        self.known: dict[str, Way] = self._read()

    def _read(self) -> dict[str, Way]:
        try:
            stored = json.loads(self.path.read_text())
            if stored["version"] != self.version:
                return {}
            return {key: LIBRARY if way == LIBRARY else Tile(*way) for key, way in stored["tiles"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def choose(self, key: str, candidates: Sequence[Way], launch: Callable[[Way], None]) -> Way:
        """The fastest candidate that runs, measured unless known; the default if none does."""
        known = self.known.get(key)
        if known is not None and known in candidates:
            return known
        times: dict[Way, float] = {}
        for way in candidates:
            try:
                times[way] = self.time(lambda way=way: launch(way))  # type: ignore[misc]
            except Exception as error:  # out of shared memory or registers on this device: the others remain
                log.info("%s refused for %s: %s", named(way), key, error)
        best = min(times, key=times.__getitem__) if times else candidates[0]
        self.known[key] = best
        words = [f"{named(way)} {time:.3g} ms" for way, time in sorted(times.items(), key=lambda item: item[1])]
        log.info("%s: %s", key, "; ".join(words[:3]) or f"{named(best)}, since nothing runs")
        self._write()
        return best

    def _write(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            merged = self._read() | self.known  # another process may have written meanwhile
            partial = self.path.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps({"version": self.version, "tiles": merged}, indent=1))
            partial.replace(self.path)
        except OSError as error:
            log.info("tile measurements are not kept: %s", error)


@cache
def tuner() -> Tuner:
    """The process's tuner."""
    from triton.testing import do_bench

    return Tuner(cache_file(), version(), lambda run: float(do_bench(run, warmup=5, rep=20)))


def on(x: Tensor) -> AbstractContextManager[None]:
    """Triton launches on the current device: make it x's."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


_pinned: tuple[int | Way | None] | None = None  # see `pinned`


@contextmanager
def pinned(to: int | Way | None = None) -> Iterator[None]:
    """Measure nothing within: the default tile runs, or the way that is known for so many rows if there is one, or this
    way where it is a candidate.

    For checks, whose own numbers of rows never recur."""
    global _pinned
    before, _pinned = _pinned, (to,)
    try:
        yield
    finally:
        _pinned = before


def _key(kernel: str, x: Tensor, precision: str, shape: tuple[int, int, int]) -> str:
    rows, units, inner = shape
    bucket = 1 << (rows - 1).bit_length()  # chunks and their remainders share a measurement
    return f"{kernel} {torch.cuda.get_device_name(x.device)} {precision} {bucket}x{units}x{inner}"


def _way(
    kernel: str,
    x: Tensor,
    precision: str,
    shape: tuple[int, int, int],
    launch: Callable[[Way], None],
    parts: bool,
) -> Way:
    """What serves, measured if it may be and must be."""
    major, minor = torch.cuda.get_device_capability(x.device)
    candidates: list[Way] = [*tiles(10 * major + minor, precision, shape[0]), LIBRARY]
    candidates += splits(precision, shape[0]) if parts else []
    pin = _pinned[0] if _pinned is not None else None
    if isinstance(pin, Tile | str):
        return pin if pin in candidates else candidates[0]
    if not enabled() or _pinned == (None,):
        return candidates[0]
    if pin is not None:
        shape = (pin, *shape[1:])
    key = _key(kernel, x, precision, shape)
    if _pinned is not None or torch.cuda.is_current_stream_capturing():  # a graph cannot be timed: warm up first
        known = tuner().known.get(key, candidates[0])
        return known if known in candidates else candidates[0]
    return tuner().choose(key, candidates, launch)


def run(
    kernel: str,
    x: Tensor,
    precision: str,
    shape: tuple[int, int, int],
    launch: Callable[[Tile], None],
    library: Callable[[], None],
    parts: bool = False,
) -> None:
    """Launch a kernel for (rows, units, inner) on x's device with its tile, or the library in its place.

    parts: whether the kernel knows tiles whose inner dimension is split."""

    def go(way: Way) -> None:
        return launch(way) if isinstance(way, Tile) else library()

    if not x.is_cuda:
        pin = _pinned[0] if _pinned is not None else None
        return go(pin if isinstance(pin, Tile | str) else tiles(80, precision, shape[0])[0])
    with on(x):
        return go(_way(kernel, x, precision, shape, go, parts))
