"""The kernels compile for GPUs that are not here: no spills at the default tiles, shared memory within the limit."""

import pytest

from psdrl.errors import UserError
from psdrl.kernels import aot, triton_support, tune

if reason := triton_support.missing() or (triton_support.interpreted() and "the interpreter compiles nothing"):
    pytest.skip(reason, allow_module_level=True)

ARCHS = (80, 90, 100)
# The command line compiles every tile and every layer, about 3 minutes. Here: every kernel at its default tiles; the
# hidden layer is the first without the state and action terms, and acting's output layer has planning's epilogue.
SKIPPED = {("hidden layer", aot.PLANNING), ("hidden layer", aot.ACTING), ("output layer", aot.ACTING)}
CASES = [
    pytest.param(case, arch, id=f"{case.name}-{case.precision}-{case.rows}-sm_{arch}")
    for arch in ARCHS
    for case in aot.cases(arch, defaults_only=True)
    if (case.name, case.rows) not in SKIPPED
]
MATRIX = {  # the tensor core instructions of an architecture
    80: ("mma.sync",),
    90: ("wgmma.mma_async",),
    100: ("tcgen05.mma",),
}


@pytest.mark.parametrize(("case", "arch"), CASES)
def test_default_tiles_fit(case: aot.Case, arch: int) -> None:
    report = aot.compile_case(case, arch)
    assert report.spilled == 0
    assert report.shared <= aot.LIMITS[89].block_shared  # the smallest of all supported devices
    assert 0 < report.occupancy <= 1
    gemm = "BLOCK_K" in case.arguments
    if gemm:
        width = 8 if case.precision == "bf16" else 16  # bytes: 4 numbers, since 4 divides 756 and 2292
        assert f", {width:#x}" in report.ptx
        assert "cp.async" in report.ptx
    if gemm and case.precision == "ieee":
        assert "mma" not in report.ptx  # tensor cores would round to tf32
    elif gemm and case.rows == aot.PLANNING:
        assert any(instruction in report.ptx for instruction in MATRIX[arch])
    if case.precision == "bf16" and case.name not in ("tanh_dot", "best_return"):
        assert "cvt.rn.bf16" in report.ptx


def test_table_and_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    small = [case for case in aot.cases(80, defaults_only=True) if case.name == "sum of partials"]
    monkeypatch.setattr(aot, "cases", lambda arch, defaults_only: small)
    assert aot.run(aot.Options((80,))) == 0
    assert "2 compiled, 0 do not fit" in (shown := capsys.readouterr().out)
    assert all(name in shown for name in ("registers", "spilled", "shared", "occupancy", "sum of partials", "fp32"))
    monkeypatch.setitem(aot.LIMITS, 80, aot.Limits(-1, 1, 64, 32))
    assert aot.run(aot.Options((80,))) == 1
    with pytest.raises(UserError, match="Unknown --arch \\[70\\]"):
        aot.run(aot.Options((70,)))


def test_every_tile_is_a_case() -> None:
    for arch in ARCHS:
        cases = list(aot.cases(arch))
        for precision in tune.PRECISIONS:
            for rows in (aot.PLANNING, aot.ACTING):
                for tile in tune.tiles(arch, precision, rows):
                    names = {c.name for c in cases if (c.precision, c.rows, c.tile) == (precision, rows, tuple(tile))}
                    assert names == {"first layer", "hidden layer", "output layer", "tanh_dot"}
            for tile in tune.splits(precision, aot.TRAINING):
                names = {c.name for c in cases if (c.precision, c.tile) == (precision, tuple(tile))}
                assert names == {"parts of a layer"}


def test_occupancy() -> None:
    """By hand: 128 registers allow 4 blocks of 4 warps, 100 KB allow one, an SM has no more than 32."""
    assert aot.occupancy(80, 128, 16384, 4) == 4 * 4 / 64
    assert aot.occupancy(80, 128, 100 * 1024, 4) == 1 * 4 / 64
    assert aot.occupancy(80, 16, 0, 1) == 32 / 64
