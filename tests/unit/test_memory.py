"""Memory of an update: bounded by the chunk size, and as the cost model says."""

from typing import Any

import torch

from psdrl import configure
from psdrl.agents.psdrl.synthetic import debug_agent
from psdrl.agents.psdrl.work import PsdrlWorkload
from psdrl.envs.vector import EnvSpec
from tests.helpers import Allocations, largest_tensor

SIZES: dict[str, Any] = {
    "kind": "vector",
    "actions": 7,
    "forward": {"units": 96, "recurrent": 40, "layers": 4},
    "value": {"units": 96},
    "termination": {"units": 64},
    "replay": {"batch": 12, "length": 60},
}


def measured(lengths, chunk_rows):
    agent = debug_agent("fast", torch.float32, lengths=lengths, chunk_rows=chunk_rows, **SIZES)
    agent.update()  # optimiser states exist from now on
    with Allocations() as allocations:
        agent.update()
    return agent, allocations


def test_no_tensor_exceeds_the_bound():
    for chunk_rows in (84, 420, 5040):
        agent, allocations = measured((150, 60, 90), chunk_rows)
        assert allocations.largest <= largest_tensor(agent.config, agent.spec), chunk_rows


def test_chunks_bound_the_peak():
    small, large = (measured((150, 60, 90), rows)[1].peak for rows in (84, 12 * 60 * 7))
    assert small < 0.5 * large


def test_peak_grows_with_the_buffer_by_the_latent_table_only():
    peaks = [measured(lengths, 84)[1].peak for lengths in ((100,) * 4, (100,) * 16)]
    # The table is allocated for the whole ring, which is the same: nothing else may grow.
    assert peaks[1] < 1.1 * peaks[0]


def test_the_paper_preset_stays_under_8_gb_besides_the_frames():
    config = configure(game="Pong", preset="paper", device="cpu")
    parts = PsdrlWorkload(config, EnvSpec("Pong", "image", (1, 64, 64), "uint8", 18, "none")).memory()
    assert sum(parts.values()) - parts["replay"] < 8e9


def test_the_cost_model_bounds_the_measured_peak():
    agent, allocations = measured((150, 60, 90), 420)
    parts = PsdrlWorkload(agent.config, agent.spec).memory()
    # Networks and replay exist already; what an update allocates is the rest, besides one set of gradients.
    predicted = parts["latents"] + parts["posterior"] + parts["activations"] + parts["networks"] / 4
    assert 0.2 * predicted < allocations.peak < predicted
