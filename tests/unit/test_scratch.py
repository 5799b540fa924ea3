"""Memory that an agent's updates use again."""

import torch

from psdrl.agents.psdrl import statistics
from psdrl.agents.psdrl.learning import encode_buffer
from psdrl.agents.psdrl.synthetic import debug_agent
from psdrl.runtime.execution import EAGER, Execution

CPU = torch.device("cpu")


def test_memory_of_a_name_is_used_again():
    execution, like = Execution(CPU, keeps_memory=True), torch.empty(0)
    first = execution.scratch("a", like, 10, 4)
    again, other = execution.scratch("a", like, 3, 4), execution.scratch("b", like, 10, 4)
    assert again.shape == (3, 4)
    assert again is not first  # who keeps one knows the next as another
    assert again.data_ptr() == first.data_ptr() != other.data_ptr()
    assert execution.scratch("a", like, 12, 4).data_ptr() == first.data_ptr(), "there was room to grow"
    assert execution.scratch("a", like, 1000, 4).shape == (1000, 4)
    assert execution.scratch("a", like.double(), 3).dtype == torch.float64


def test_nobody_shares_memory_unasked():
    like = torch.empty(0)
    assert EAGER.scratch("a", like, 8).data_ptr() != EAGER.scratch("a", like, 8).data_ptr()


def test_an_agent_encodes_into_the_same_table():
    agents = [debug_agent("fast", torch.float64) for _ in range(2)]
    first, other = (encode_buffer(a.models, a.replay, a.execution) for a in agents)
    again = encode_buffer(agents[0].models, agents[0].replay, agents[0].execution)
    assert again.data_ptr() == first.data_ptr() != other.data_ptr()


def test_features_come_in_few_sizes(monkeypatch):
    """For every other number of rows oneDNN would make code, and keep it."""
    agent, seen = debug_agent("fast", torch.float64), []
    latents = encode_buffer(agent.models, agent.replay)
    model = agent.models.forward_model
    features = model.feature_layers

    def noted(x, layer):
        seen.append(len(x))
        return features(x, layer)

    monkeypatch.setattr(statistics, "UNIT", 8)
    monkeypatch.setattr(model, "feature_layers", noted)
    padded = statistics.buffer_statistics(agent.models, agent.replay, latents, Execution(CPU, chunk_rows=24))
    monkeypatch.setattr(statistics, "UNIT", 1)
    exact = statistics.buffer_statistics(agent.models, agent.replay, latents)
    assert padded.rows == exact.rows == agent.replay.transitions
    assert len(seen) > 3
    assert all(n % 8 == 0 for n in seen[:-1])  # the last one is of the second call
    torch.testing.assert_close(padded.lower.tril(), exact.lower.tril())
    torch.testing.assert_close(padded.cross, exact.cross)
