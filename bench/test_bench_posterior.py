"""Posterior at the paper's size (k = 2292, 1537 outputs), 2 threads: the operations of csrc/ against their plain
counterparts. Run with: python -m pytest bench/test_bench_posterior.py --benchmark-enable -s

Each group is measured interleaved, since other work on the machine slows both sides of a pair alike; the ratio printed
is the median over the pairs. A pair whose results differ is not measured.
"""

import statistics
import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from psdrl.kernels import posterior as native
from psdrl.kernels.posterior import reference, unavailable

FEATURES, OUTPUTS, ROWS, CHUNK, REPEATS = 2292, 1537, 20_000, 4000, 3
PRIOR, NOISE = 1e3, 1.0
WHY_NOT = unavailable(torch.device("cpu"))
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))


@pytest.fixture(scope="module", autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    phi = torch.randn(CHUNK, FEATURES, generator=generator).tanh()
    return phi, torch.randn(CHUNK, OUTPUTS, generator=generator)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def sums() -> tuple[Tensor, Tensor]:
    gram = torch.zeros(FEATURES, FEATURES, dtype=torch.float64)
    return gram, gram.new_zeros(FEATURES, OUTPUTS)


def peak() -> float:
    """Measured float64 GEMM rate, multiply-adds per second."""
    a = torch.randn(2048, 2048, dtype=torch.float64)
    return 2048**3 / min(seconds(lambda: a @ a) for _ in range(5))


def compare(benchmark, name: str, fast: Callable[[], object], plain: Callable[[], object], work: float) -> None:
    """Pairs of measurements, plain then fast; the fast one goes into the report."""
    pairs: list[tuple[float, float]] = []
    rates: list[float] = []
    for _ in range(REPEATS - 1):
        pairs.append((seconds(plain), seconds(fast)))
        rates.append(peak())
    baseline = seconds(plain)
    start = time.perf_counter()
    benchmark.pedantic(fast, rounds=1)
    pairs.append((baseline, time.perf_counter() - start))
    ratio = statistics.median(a / b for a, b in pairs)
    best = min(b for _, b in pairs)
    fraction = work / best / max(*rates, peak())
    benchmark.extra_info |= {"speedup": ratio, "pairs": pairs, "fraction_of_gemm_peak": fraction}
    print(f"\n{name}: {ratio:.2f}x (pairs {', '.join(f'{a / b:.2f}' for a, b in pairs)}), best {best:.2f} s, "
          f"{fraction:.0%} of the measured GEMM peak")  # fmt: skip


@pytest.mark.benchmark(group="posterior accumulation")
def test_accumulation(benchmark, data) -> None:
    """20,000 rows in chunks of 4,000, against C += Phi^T T; G += Phi^T Phi with float64 sums."""
    phi, targets = data
    fast, plain = sums(), sums()
    native.gram_accumulate_(*fast, phi, targets)
    reference.gram_accumulate_(*plain, phi, targets)
    torch.testing.assert_close(fast[0].tril(), plain[0].tril(), rtol=1e-10, atol=1e-9)
    torch.testing.assert_close(fast[1], plain[1], rtol=1e-10, atol=1e-9)

    def eager() -> None:
        gram, cross = plain
        for _ in range(ROWS // CHUNK):
            p, t = phi.double(), targets.double()
            cross += p.T @ t
            gram += p.T @ p

    def ours() -> None:
        for _ in range(ROWS // CHUNK):
            native.gram_accumulate_(*fast, phi, targets)

    compare(benchmark, "accumulation", ours, eager, ROWS * FEATURES * (FEATURES / 2 + OUTPUTS))


@pytest.mark.benchmark(group="posterior factor, mean, sample")
def test_factor_mean_sample(benchmark, data) -> None:
    """Against the way of the published code: one inverse, then a product with it per output, and noise times it.

    Its sampling rule (eps C) is kept, since it is part of its cost, but the sums Phi^T t_j, which it forms anew for
    each output, are given; all in float64."""
    gram, cross = sums()
    reference.gram_accumulate_(gram, cross, *data)
    prior, noise = gram.new_tensor([PRIOR]), gram.new_tensor([NOISE])
    eps = torch.randn(1, OUTPUTS, FEATURES, dtype=torch.float64)
    eye = torch.eye(FEATURES, dtype=torch.float64)

    def one_mean_per_output() -> tuple[Tensor, Tensor]:
        covariance = torch.cholesky_inverse(torch.linalg.cholesky(eye / PRIOR + gram / NOISE))
        mean = torch.empty(OUTPUTS, FEATURES, dtype=torch.float64)
        for j in range(OUTPUTS):
            mean[j] = covariance @ (cross[:, j] / NOISE)
        return mean, mean + eps[0] @ covariance

    def ours() -> tuple[Tensor, Tensor]:
        factors, _, _ = native.posterior_factor(gram, prior, noise)
        mean = native.posterior_mean(factors, cross, [OUTPUTS], noise)
        return mean, native.posterior_sample(factors, mean, [OUTPUTS], eps)

    torch.testing.assert_close(ours()[0], one_mean_per_output()[0], rtol=1e-6, atol=1e-9)
    work = FEATURES**3 / 6 + 3 * FEATURES**2 / 2 * OUTPUTS
    compare(benchmark, "factor + mean + sample", ours, one_mean_per_output, work)
