"""No speed without parity: a suite asks here before it reports anything. How two agents, or a phase of them, differ."""

from functools import cache

import pytest
import torch

from psdrl.agents.psdrl.agent import PATHS
from psdrl.agents.psdrl.regression import Statistics
from psdrl.agents.psdrl.synthetic import debug_agent

PHASES = {
    "autoencoder_step": "autoencoder",
    "forward_step": "forward",
    "posterior": "posterior",
    "value_step": "value",
}


def parameters(agent):
    """Everything an update changes."""
    state = {name: tensor for name, tensor in agent.models.state_dict().items() if tensor.numel()}
    return state | {"sample": agent.model.weight, "mean": agent.posterior.mean}


def distance(tensor, other):
    """Relative L2 distance, in float64."""
    tensor, other = tensor.double(), other.double()
    return float((tensor - other).norm() / other.norm().clamp(min=1e-300))


def run_phase(agent, phase):
    """One phase of an update, from the agent's initial state; the sampled model comes from the prior."""
    path = PATHS[agent.config.update_path]
    common = (agent.models, agent.optimisers)
    how = (agent.execution,) if agent.config.update_path == "fast" else ()
    if phase == "autoencoder":
        path.train_autoencoder(*common, agent.replay, agent.batch, agent.config, *how)
        return parameters(agent)
    latents = path.encode_buffer(agent.models, agent.replay, *how)
    if phase == "forward":
        path.train_forward(*common, latents, agent.batch, agent.config, *how)
    elif phase == "posterior":
        data = path.buffer_statistics(agent.models, agent.replay, latents, *how)
        assert isinstance(data, Statistics)
        return {"gram": data.lower.tril(), "cross": data.cross, "squares": data.squares}
    elif phase == "value":
        path.train_value(*common, agent.replay, latents, agent.batch, agent.model, agent.config, *how)
    return parameters(agent)


@cache
def worst(unit: str, actions: int) -> float:
    """Largest relative distance between the fast and the plain path for this unit, in float64 at small sizes."""
    agents = [debug_agent(path, torch.float64, actions=actions) for path in ("plain", "fast")]
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
