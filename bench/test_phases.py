"""Every phase, plain beside fast, at the paper's sizes and at the cpu preset's; one group per unit."""

import pytest

from bench.parity import require
from bench.phases import UNITS, gflop, unit
from bench.workload import make_agent

TRANSITIONS = {"paper": 1000, "cpu": 5000}


@pytest.mark.parametrize("path", ["plain", "fast"])
@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("preset", ["cpu", "paper"])
def test_unit(benchmark, preset, name, path):
    require(name, 6)
    agent = make_agent(preset, 6, TRANSITIONS[preset], path)
    call, count = unit(name, agent, path)
    benchmark.group = f"{preset}, {count:g} x {name}"
    benchmark.pedantic(call, rounds=1 if preset == "paper" and path == "plain" else 3, warmup_rounds=1)
    if benchmark.stats:
        benchmark.extra_info["seconds per unit"] = benchmark.stats.stats.min / count
        if path == "fast":
            work = gflop(name, agent, TRANSITIONS[preset])
            benchmark.extra_info["GFLOP/s"] = work * count / benchmark.stats.stats.min


@pytest.mark.parametrize("path", ["plain", "fast", "fast, compiled"])
def test_whole_update(benchmark, path):
    require("update", 6)
    agent = make_agent("cpu", 6, 5000, path.partition(",")[0], compile="compiled" in path)
    benchmark.group = "cpu, whole update, 5000 transitions"
    benchmark.pedantic(agent.update, rounds=3, warmup_rounds=2)  # the compiler's work is in the first two
