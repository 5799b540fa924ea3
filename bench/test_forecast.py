"""The cost model against a measured update on this machine: `psdrl.cost` aims at 25 %."""

import time

import pytest

from bench.workload import make_agent
from psdrl.cost.forecast import device_for

TRANSITIONS = 5000


@pytest.mark.parametrize("preset", ["cpu"])
def test_forecast(benchmark, preset):
    agent = make_agent(preset, 6, TRANSITIONS)
    agent.update()
    work = agent.workload(agent.config, agent.spec)
    device = device_for("here", work)
    metrics = benchmark.pedantic(agent.update, rounds=1)
    benchmark.group = "forecast"
    times = {name.removeprefix("time/"): seconds for name, seconds in metrics.items() if name.startswith("time/")}
    start = time.perf_counter()
    agent.update()
    measured = time.perf_counter() - start
    predicted = {name: phase.seconds(device) for name, phase in work.update(TRANSITIONS).items()}
    for name, seconds in predicted.items():
        print(f"\n{name}: predicted {seconds:.3f} s, measured {times[name]:.3f} s", end="")
    total = sum(predicted.values())
    benchmark.extra_info |= {"predicted": total, "measured": measured}
    print(f"\nupdate: predicted {total:.2f} s, measured {measured:.2f} s: {total / measured:.2f}")
    assert 0.5 < total / measured < 2
