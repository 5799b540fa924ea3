"""No speed without parity: a suite asks here before it reports anything."""

from functools import cache

import pytest
import torch

from tests.kernels.test_parity import distance, make, parameters, run_phase

PHASES = {
    "autoencoder_step": "autoencoder",
    "forward_step": "forward",
    "posterior": "posterior",
    "value_step": "value",
}


@cache
def worst(unit: str, actions: int) -> float:
    """Largest relative distance between the fast and the plain path for this unit, in float64 at small sizes."""
    agents = [make(path, torch.float64, actions=actions) for path in ("plain", "fast")]
    if unit == "act":
        for agent in agents:
            agent.update()
            agent.actor.act(agent.replay.frames(torch.tensor([0])).numpy(), 0.0)
        return distance(agents[1].actor.hidden, agents[0].actor.hidden)
    if unit == "update":
        for agent in agents:
            agent.update()
        plain, fast = (parameters(agent) for agent in agents)
    else:
        plain, fast = (run_phase(agent, PHASES[unit]) for agent in agents)
    return max(distance(fast[name], tensor) for name, tensor in plain.items())


def require(unit: str, actions: int) -> None:
    """Fail the benchmark if its fast path computes something else."""
    error = worst(unit, actions)
    if not error < 1e-9:
        pytest.fail(f"{unit}: fast and plain differ by {error:.1e}; no speed is reported")
