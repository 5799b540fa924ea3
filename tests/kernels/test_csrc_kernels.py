"""The CUDA kernels of csrc/*.cuh: run on the host against the oracle, and compiled for the devices.

The host library executes the very headers that nvcc compiles (tests/host/host_execution.h). Every kernel runs with
its threads in three orders; a missing barrier makes the results differ.
"""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from psdrl.kernels.posterior import reference
from tests.kernels.inputs import gamma, variances, within, zeros
from tests.kernels.inputs import randn64 as randn

ROOT = Path(__file__).parents[2]
CSRC, HOST = ROOT / "csrc", ROOT / "tests" / "host"
ORDERS = {"backward": 1, "shuffled": 2}  # forward is 0
CXX = shutil.which("c++") or shutil.which("g++")
NVCC = shutil.which("nvcc")
needs_compiler = pytest.mark.skipif(CXX is None, reason="no C++ compiler")
needs_nvcc = pytest.mark.skipif(
    NVCC is None, reason="nvcc is missing: the kernels are run on the host but not compiled"
)


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def host(tmp_path_factory) -> ctypes.CDLL:
    library = tmp_path_factory.mktemp("host") / "kernels.so"
    flags = ["-std=c++20", "-O2", "-shared", "-fPIC", f"-I{CSRC}", f"-I{HOST}"]
    run([str(CXX), *flags, "-o", str(library), str(HOST / "kernels.cpp")])
    return ctypes.CDLL(str(library))


def call(function, *arguments) -> None:
    """Tensors as pointers, int as int64, float as double, None as null; the order, first, as int."""
    kinds = {int: ctypes.c_int64, float: ctypes.c_double}
    order, *rest = arguments
    pointers = [
        ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else None if a is None else kinds[type(a)](a)
        for a in rest
    ]
    function(ctypes.c_int(order), *pointers)


def in_all_orders(compute) -> list[Tensor]:
    """compute(order) gives tensors, bit for bit the same in every order."""
    first = compute(0)
    for name, order in ORDERS.items():
        for found, expected in zip(compute(order), first, strict=True):
            assert torch.equal(found, expected), f"threads run {name} give another result: a race"
    return first


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 3, 2), (16, 64, 64), (33, 70, 5), (49, 130, 65)], ids=str)
def test_gram_kernel(host, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    n, k, o = shape
    phi = randn(n, k, dtype=dtype)
    targets = randn(n, o, seed=1, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    start, start_cross = randn(k, k, seed=2), randn(k, o, seed=3)
    function = getattr(host, f"gram_{str(dtype).removeprefix('torch.').replace('32', '').replace('float64', 'double')}")

    def compute(order: int) -> list[Tensor]:
        gram, cross = start.clone(), start_cross.clone()
        call(function, order, gram, cross, phi, targets, n, k, o, -1.5)
        return [gram, cross]

    gram, cross = in_all_orders(compute)
    expected, expected_cross = start.clone(), start_cross.clone()
    reference.gram_accumulate_(expected, expected_cross, phi, targets, -1.5)
    p, t = phi.double().abs(), targets.double().abs()
    within((gram - expected).tril(), 2 * gamma(n + 2) * (start.abs() + 1.5 * p.T @ p), f"gram {shape} {dtype}")
    within(cross - expected_cross, 2 * gamma(n + 2) * (start_cross.abs() + 1.5 * p.T @ t), f"cross {shape} {dtype}")
    assert torch.equal(gram.triu(1), start.triu(1)), "the upper triangle was touched"


@needs_compiler
@pytest.mark.parametrize("k", [1, 31, 70])
def test_precision_kernels(host, k: int) -> None:
    gram = randn(k + 3, k).T @ randn(k + 3, k)
    priors, noises, jitter = variances(2.0, 1e3), variances(0.5, 1e-3), variances(0.0, 0.25)
    full = torch.eye(k) / priors[:, None, None] + gram / noises[:, None, None]
    for g in range(2):

        def compute(order: int, g: int = g) -> list[Tensor]:
            result, bad, scale = torch.full_like(gram, torch.nan), torch.zeros(2, dtype=torch.int32), zeros(2)
            call(host.precision, order, result, bad, gram, priors, noises, jitter, g, k)
            call(host.mean_diagonal, order, scale, gram, priors, noises, 2, k)
            return [result.T, bad, scale]

        result, bad, scale = in_all_orders(compute)
        torch.testing.assert_close(result, (full[g] + jitter[g] * torch.eye(k)).tril(), rtol=1e-15, atol=0)
        torch.testing.assert_close(scale, full.diagonal(dim1=1, dim2=2).mean(1), rtol=k * 1e-15, atol=0)
        assert bad.tolist() == [0, 0]
    for value in (torch.nan, torch.inf):
        gram[k - 1, k // 2] = value
        bad = torch.zeros(2, dtype=torch.int32)
        call(host.precision, 0, torch.empty_like(gram), bad, gram, priors, noises, jitter, 1, k)
        assert bad.tolist() == [0, 1]


@needs_compiler
@pytest.mark.parametrize(("k", "outputs", "first", "count"), [(1, 1, 0, 1), (33, 70, 2, 67), (64, 5, 4, 1)])
def test_right_side_kernel(host, k: int, outputs: int, first: int, count: int) -> None:
    cross, noises = randn(k, outputs), variances(3.0, 0.1)

    def compute(order: int) -> list[Tensor]:
        right = torch.full((count, k), torch.nan, dtype=torch.float64)
        call(host.right_side, order, right, cross, noises, 1, first, count, k, outputs)
        return [right]

    assert torch.equal(in_all_orders(compute)[0], cross[:, first : first + count].T / noises[1])


@needs_compiler
def test_philox_vectors(host) -> None:
    """The known answers of Philox-4x32-10 published with Random123."""
    pi = (0x299F31D0A4093822, 0x85A308D3243F6A88, 0x0370734413198A2E)  # key, counter low, counter high
    ones = 2**64 - 1
    for (seed, low, high), expected in {
        (0, 0, 0): "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        (ones, ones, ones): "408f276d 41c83b0e a20bc7c6 6d5451fd",
        pi: "d16cfe09 94fdcceb 5001e420 24126ea1",
    }.items():
        words = (ctypes.c_uint32 * 4)()
        host.philox(words, ctypes.c_uint64(seed), ctypes.c_uint64(low), ctypes.c_uint64(high))
        assert " ".join(f"{word:08x}" for word in words) == expected


@needs_compiler
def test_noise_kernel(host) -> None:
    """Independent of the launch, anew with each offset, capturable, and normal: moments within 4.5 standard errors."""
    count = 100_001

    def noise(seed: int, offset: int, blocks: int = 40, order: int = 0, captured: bool = False) -> Tensor:
        result = torch.full((count,), torch.nan, dtype=torch.float64)
        pointers = [torch.tensor([seed]), torch.tensor([offset - 8])] if captured else [None, None]
        arguments = (0, 8) if captured else (seed, offset)
        kinds = [ctypes.c_int, ctypes.c_uint, ctypes.c_void_p, *[ctypes.c_int64] * 3, *[ctypes.c_void_p] * 2]
        host.normal.argtypes = kinds
        host.normal(order, blocks, result.data_ptr(), count, *arguments, *[p and p.data_ptr() for p in pointers])
        return result

    z = noise(1, 12)
    for other in (noise(1, 12, blocks=3), noise(1, 12, order=2), noise(1, 12, captured=True)):
        assert torch.equal(z, other)
    moments = {1: (0.0, 1.0), 2: (1.0, 2.0), 3: (0.0, 15.0), 4: (3.0, 96.0)}  # power: mean, variance
    for power, (mean, variance) in moments.items():
        score = ((z**power).mean() - mean) / (variance / count) ** 0.5
        assert score.abs() < 4.5, f"moment {power} is {score:.1f} standard errors off"
    for other in (noise(1, 16), noise(2, 12), z.roll(1), z.roll(2)):
        assert (z * other).mean().abs() * count**0.5 < 4.5


@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_kernels_compile_without_spills(arch: str, tmp_path: Path, capsys) -> None:
    """Registers and shared memory of every kernel, printed; no spills, no more than static shared memory allows."""
    output = run([str(NVCC), "-std=c++20", "-O3", "-cubin", f"-arch={arch}", "-Xptxas", "-v", f"-I{CSRC}", "-o",
                  str(tmp_path / "kernels.cubin"), str(HOST / "kernels.cu")])  # fmt: skip
    pattern = (
        r"entry function '(\S+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers([^\n]*)"
    )
    table = re.findall(pattern, output, re.DOTALL)
    assert len(table) == 8, output
    with capsys.disabled():
        print(f"\n{arch}: registers, bytes of shared memory")
        for name, stores, loads, registers, rest in table:
            shared = re.search(r"(\d+) bytes smem", rest)
            print(f"  {readable(name):45s} {registers:>4s} {shared[1] if shared else '0':>6s}")
            assert (stores, loads) == ("0", "0"), f"{name} spills on {arch}"
            assert int(shared[1] if shared else 0) <= 48 * 1024


def readable(name: str) -> str:
    """gram_kernel<float, float> of its mangled name."""
    kernel = re.search(r"\d([a-z_]+_kernel)", name)
    assert kernel, name
    if "gram" not in name:
        return kernel[1]
    types = re.search(r"gram_kernelI(.*?)EEv", name)
    assert types, name
    types_of = {"ff": "float, float", "dd": "double, double", "13__nv_bfloat16f": "bf16, float"}
    return f"gram_kernel<{types_of.get(types[1], 'bf16, bf16')}>"


@needs_nvcc
def test_the_host_side_of_the_cuda_operations_compiles(tmp_path: Path) -> None:
    """posterior_cuda.cu against torch's headers, device pass (which checks the host code too). A CPU build of torch
    lacks one generated header of macros, for which an empty one stands in."""
    from torch.utils.cpp_extension import include_paths

    stub = tmp_path / "c10" / "cuda" / "impl" / "cuda_cmake_macros.h"
    stub.parent.mkdir(parents=True)
    stub.touch()
    includes = [f"-I{path}" for path in (*include_paths(), tmp_path)]
    run([str(NVCC), "-std=c++20", "-cubin", "-arch=sm_80", "--expt-relaxed-constexpr", *includes, "-o",
         str(tmp_path / "posterior.cubin"), str(CSRC / "posterior_cuda.cu")])  # fmt: skip
