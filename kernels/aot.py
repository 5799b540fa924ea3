"""Compile every kernel for GPUs that are not here: `python -m psdrl.kernels.aot --arch 80 90 100`.

For each kernel, precision and tile: registers per thread, spilled bytes, shared memory, and how much of a
multiprocessor's warps can be resident. Arguments are those of the paper's sizes (|A| = 6, Z = 1536, H = 756,
U = 2292; 3,000 rows when planning, 125 in a gradient step, 6 when acting).
"""

import contextlib
import io
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import floor
from typing import Any, NamedTuple

import tyro
from rich.console import Console
from rich.table import Table

from psdrl.errors import UserError
from psdrl.kernels import folders, triton_support, tune

A, Z, H, U = 6, 1536, 756, 2292
PLANNING, TRAINING, ACTING = 3000, 125, 6


class Limits(NamedTuple):
    """A multiprocessor's (SM's) resources; 65,536 registers on all of them."""

    block_shared: int  # bytes one block may use
    shared: int  # bytes per SM, of which each block takes 1 KB more than it asks for
    warps: int
    blocks: int


LIMITS = {  # CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"
    80: Limits(163 * 1024, 164 * 1024, 64, 32),
    86: Limits(99 * 1024, 100 * 1024, 48, 16),
    89: Limits(99 * 1024, 100 * 1024, 48, 24),
    90: Limits(227 * 1024, 228 * 1024, 64, 32),
    100: Limits(227 * 1024, 228 * 1024, 64, 32),
    120: Limits(99 * 1024, 100 * 1024, 48, 32),
}


class Case(NamedTuple):
    """One kernel with the arguments that select its machine code."""

    name: str
    precision: str
    rows: int
    tile: tuple[int, ...]
    default: bool
    function: Any
    arguments: dict[str, Any]  # "*fp32" is a pointer, other values are themselves
    options: dict[str, int]


class Report(NamedTuple):
    """What the compiler says about a case."""

    case: Case
    arch: int
    registers: int
    spilled: int  # bytes stored and loaded
    shared: int  # bytes per block
    occupancy: float  # resident warps / most warps of an SM
    ptx: str

    @property
    def fits(self) -> bool:
        """Whether a block gets its shared memory, with no spill where the case is a default."""
        return self.shared <= LIMITS[self.arch].block_shared and not (self.case.default and self.spilled)


class Launch(NamedTuple):
    """A kernel with its arguments, as the `aot` of an operation's folder gives it: `tiled` ones once per tile of a
    product, whose block sizes are added, `parts` ones once per tile whose inner dimension is split; `fixed` ones with
    their own."""

    name: str
    function: Any
    arguments: dict[str, Any]
    tile: tuple[int, ...]
    warps: int


def launch(name: str, function: Any, tile: tuple[int, ...] = (), warps: int = 4, **arguments: Any) -> Launch:
    """A launch with these arguments."""
    return Launch(name, function, arguments, tile, warps)


def cases(arch: int, defaults_only: bool = False) -> Iterator[Case]:
    """Every kernel, precision, number of rows and tile for an architecture."""
    own = list(folders("aot"))
    for precision in tune.PRECISIONS:
        for rows in (PLANNING, ACTING):
            for index, tile in enumerate(tune.tiles(arch, precision, rows)):
                if index == 0 or not defaults_only:
                    for folder in own:
                        yield from _tiled(folder, precision, rows, tile, index == 0)
        for index, tile in enumerate(tune.splits(precision, TRAINING)):
            if index == 0 or not defaults_only:
                for folder in own:
                    yield from _tiled(folder, precision, TRAINING, tile, index == 0)
    for dtype in ("fp32", "bf16"):
        for folder in own:
            for launch in folder.fixed(f"*{dtype}") if hasattr(folder, "fixed") else ():
                options = {"num_warps": launch.warps}
                yield Case(launch.name, dtype, PLANNING, launch.tile, True, launch.function, launch.arguments, options)


def _tiled(folder: Any, precision: str, rows: int, tile: tune.Tile, default: bool) -> Iterator[Case]:
    options = tile.options()
    how = {name: options.pop(name) for name in ("num_warps", "num_stages")}
    product = options | {"PRECISION": "ieee" if precision == "ieee" else "tf32"}
    dtype = "*bf16" if precision == "bf16" else "*fp32"
    launches: Iterable[Launch] = ()
    if tile.split > 1:
        launches = folder.parts(dtype, tile.split) if hasattr(folder, "parts") else ()
    elif hasattr(folder, "tiled"):
        launches = folder.tiled(dtype, rows)
    for launch in launches:
        arguments = launch.arguments | product
        yield Case(launch.name, precision, rows, tuple(tile), default, launch.function, arguments, how)


def source(case: Case) -> Any:
    """The case as Triton's compiler takes it, specialised as at a launch: on None, on 1 and on multiples of 16."""
    from triton.compiler import ASTSource

    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for index, parameter in enumerate(case.function.params):
        name, value = parameter.name, case.arguments[parameter.name]
        pointer = isinstance(value, str) and value.startswith("*")
        if parameter.is_constexpr or value is None or (type(value) is int and value == 1):
            signature[name], constants[name] = "constexpr", value
        else:
            signature[name] = value if pointer else "fp32" if isinstance(value, float) else "i32"
            if pointer or (type(value) is int and value % 16 == 0):
                attributes[(index,)] = [["tt.divisibility", 16]]
    return ASTSource(case.function, signature, constants, attributes)


def occupancy(arch: int, registers: int, shared: int, warps: int) -> float:
    """Share of an SM's warps that can be resident, from the block's registers and shared memory."""
    limits = LIMITS[arch]
    per_warp = -(-registers * 32 // 256) * 256  # registers are given out to a warp in units of 256
    by_registers = 65536 // per_warp // warps
    by_shared = limits.shared // (shared + 1024)
    return min(by_registers, by_shared, limits.warps // warps, limits.blocks) * warps / limits.warps


def compile_case(case: Case, arch: int) -> Report:
    """Compile with Triton and its ptxas; the compiler's log gives registers and spills."""
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget

    said = io.StringIO()
    with contextlib.redirect_stdout(said), knobs.nvidia.scope(), knobs.compilation.scope():
        knobs.nvidia.dump_ptxas_log = True
        knobs.compilation.always_compile = True  # a cached kernel has no log
        compiled = triton.compile(source(case), target=GPUTarget("cuda", arch, 32), options=case.options)
    used = re.search(r"Used (\d+) registers", said.getvalue())
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", said.getvalue())
    if used is None or not spills:
        raise RuntimeError(f"ptxas did not report on {case.name}: {said.getvalue()!r}")
    registers, shared, warps = int(used[1]), compiled.metadata.shared, compiled.metadata.num_warps
    share = occupancy(arch, registers, shared, warps)
    return Report(case, arch, registers, sum(map(int, spills)), shared, share, compiled.asm["ptx"])


def table(reports: list[Report]) -> Table:
    """The reports as a table; the default of each kernel is marked with a star."""
    names = ("kernel", "precision", "rows", "tile", "sm", "registers", "spilled B", "shared B", "occupancy", "fits")
    result = Table(*names)
    for report in reports:
        case = report.case
        result.add_row(
            case.name,
            case.precision,
            str(case.rows),
            "x".join(map(str, case.tile)) + ("*" if case.default else ""),
            str(report.arch),
            str(report.registers),
            str(report.spilled),
            str(report.shared),
            f"{floor(100 * report.occupancy)}%",
            "yes" if report.fits else "NO",
        )
    return result


@dataclass(frozen=True)
class Options:
    """Compile the Triton kernels ahead of time; needs no GPU."""

    arch: tuple[int, ...] = (80, 90, 100)
    """Compute capabilities, 80 for 8.0."""
    defaults_only: bool = False
    """Only the default tile of each kernel, not those that autotuning may choose."""


def run(options: Options) -> int:
    """Print the table; 1 if a case does not fit."""
    if reason := triton_support.missing():
        raise UserError(f"Nothing to compile with: {reason}.")
    if triton_support.interpreted():
        raise UserError("TRITON_INTERPRET is set: unset it, the interpreter compiles nothing.")
    if unknown := set(options.arch) - LIMITS.keys():
        raise UserError(f"Unknown --arch {sorted(unknown)}: one of {sorted(LIMITS)}.")
    reports = []
    for arch in options.arch:
        for case in cases(arch, options.defaults_only):
            print(f"sm_{arch} {case.name} {case.precision} {case.tile}", file=sys.stderr, flush=True)
            reports.append(compile_case(case, arch))
    Console(width=None if sys.stdout.isatty() else 120).print(table(reports))
    failed = [report for report in reports if not report.fits]
    print(f"{len(reports)} compiled, {len(failed)} do not fit; a star marks the default tile")
    return bool(failed)


if __name__ == "__main__":
    try:
        sys.exit(run(tyro.cli(Options, prog="psdrl.kernels.aot")))
    except UserError as error:
        sys.exit(f"error: {error}")
