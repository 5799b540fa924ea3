"""How the cost grows: linearly in the buffer and in |A|, at most quadratically in the width per row."""

import time

import numpy as np
import pytest

from bench.phases import unit
from bench.workload import make_agent


def seconds(name, actions=6, transitions=1000, **settings):
    """Best of three."""
    agent = make_agent("cpu", actions, transitions, **settings)
    call, count = unit(name, agent, "fast")
    call()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times) / count


def exponent(sizes, times):
    """Slope of log(seconds) over log(size)."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def widths(width):
    return {"forward": {"units": width, "recurrent": width // 4}, "value": {"units": width}}


CASES = {
    "posterior over transitions": ("posterior", (4000, 8000, 16000), lambda n: {"transitions": n}, 1.15),
    "value step over actions": ("value_step", (6, 12, 18), lambda n: {"actions": n}, 1.15),
    "value step over width": ("value_step", (512, 1024, 2048), widths, 2.15),
    "forward step over width": ("forward_step", (512, 1024, 2048), widths, 2.15),
}


@pytest.mark.parametrize("case", CASES)
def test_exponent(benchmark, case):
    name, sizes, settings, most = CASES[case]
    times = benchmark.pedantic(lambda: [seconds(name, **settings(size)) for size in sizes], rounds=1)
    slope = exponent(sizes, times)
    benchmark.group = "exponents"
    benchmark.extra_info["exponent"] = slope
    print(f"\n{case}: seconds {[f'{t:.4g}' for t in times]} at {sizes}: exponent {slope:.2f} (bound {most})")
    assert slope <= most
