"""Rows that occur more than once, and the model without memory that profits from them."""

import numpy as np
import pytest
import torch

from psdrl import configure
from psdrl.agents.psdrl import learning
from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.agents.psdrl.deduplicate import at_once, firsts, keys
from psdrl.envs.vector import EnvSpec


@pytest.mark.parametrize("count", [0, 1, 50, at_once(torch.eye(30)) + 3])
def test_firsts_are_the_first_equal_rows(count):
    """One-hot rows, whose keys are exact, some of a larger table."""
    state = torch.randint(30, (2 * count,), generator=torch.Generator().manual_seed(0))
    rows = torch.arange(2 * count)[::2]
    seen: dict[int, int] = {}
    wanted = [seen.setdefault(s, i) for i, s in enumerate(state[rows].tolist())]
    assert firsts(torch.eye(30)[state], rows).tolist() == wanted


def test_rows_that_share_a_key_by_chance_stay_apart():
    a, b = torch.rand(2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).tolist()
    table = torch.tensor([[b, 0.0], [0.0, a], [0.0, a], [b, 0.0]], dtype=torch.float64)
    assert len(keys(table, torch.arange(4)).unique()) == 1
    assert firsts(table, torch.arange(4)).tolist() == [0, 1, 2, 0]


def agent_with_two_states(recurrent: int) -> PsdrlAgent:
    """Twenty steps between two states, by two actions."""
    config = configure(env="synthetic", preset="debug", device="cpu", forward={"recurrent": recurrent})
    agent = PsdrlAgent(config, EnvSpec("synthetic", "vector", (2,), "float32", 2, "none"))
    states = np.eye(2, dtype=np.float32)
    agent.replay.start(0, states[0])
    for t in range(20):
        agent.replay.add(0, t // 2 % 2, float(t % 2), states[(t + 1) % 2], t == 19, False)
    return agent


def test_without_memory_each_transition_counts_as_often_as_it_occurs():
    agent = agent_with_two_states(0)
    table = torch.zeros(agent.replay.num_slots, 2)
    table[agent.replay.stored_slots()] = agent.replay.frames(agent.replay.stored_slots()).float()
    model = agent.models.forward_model
    rows = list(model.memory.transitions(model, agent.replay, table, 3))
    assert [len(part.targets) for part in rows] == [3, 1]  # two states, two actions
    assert sum(int(part.times.sum()) for part in rows if part.times is not None) == 20
    for inputs, targets, _ in rows:
        torch.testing.assert_close(targets[:, :2], inputs[:, 1:3].flip(1))  # it goes to the other state
        torch.testing.assert_close(targets[:, 2], inputs[:, 2])  # and is paid for leaving the second


@pytest.mark.parametrize("recurrent", [0, 3])
def test_hidden_states_stay_zero_without_memory_only(recurrent):
    agent = agent_with_two_states(recurrent)
    for _ in range(3):
        agent.update()
    actor = agent.actors[0]
    for _ in range(3):
        actor.act(np.eye(2, dtype=np.float32)[:1], 0.5)
    assert bool((actor.hidden == 0).all()) == (recurrent == 0)


def test_slots_that_hold_nothing_are_not_read():
    """The table of latent states is not filled; what is not written is NaN here."""
    agent = agent_with_two_states(0)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills new tensors with NaN
    try:
        table = learning.encode_buffer(agent.models, agent.replay)
        assert bool(table.isnan().any())
        metrics = agent.update()
    finally:
        torch.use_deterministic_algorithms(before)
    assert all(np.isfinite(value) for value in metrics.values()), metrics
    assert all(bool(p.isfinite().all()) for p in agent.models.parameters())
