"""Numbers of the models in the log: by hand from the stored episodes, and without a trace in training."""

from typing import Any

import numpy as np
import pytest
import torch

from psdrl.agents.psdrl import monitor
from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.agents.psdrl.learning import encode_buffer
from psdrl.agents.psdrl.monitor import AHEAD, EVERY, STATES, WALKED, newest, states
from psdrl.agents.psdrl.synthetic import add_episode, agent_of, debug_agent
from tests.helpers import (
    Array,
    filled_replay,
    hand_features,
    hand_hidden,
    hand_returns,
    small_config,
    stored_episodes,
    vector_spec,
)
from tests.storage import whole_state


def trained(**settings: Any) -> PsdrlAgent:
    """A small agent in float64 after an update from four episodes, one too short to look ahead."""
    agent = agent_of(small_config(**settings), vector_spec(3, 3), torch.float64)
    rng = np.random.default_rng(0)
    for length in (9, 3, 30, 12):
        add_episode(agent.replay, rng, length, actions=3)
    agent.update()
    return agent


def by_hand(agent: PsdrlAgent) -> dict[str, float]:
    """The same numbers from NumPy loops over whole episodes; every state is looked at."""
    models, config = agent.models, agent.config
    model, mean = models.forward_model, agent.draw(mean=True)
    weight, bias = (x.double().numpy() for x in (agent.model.weight, agent.model.bias))
    differ: list[bool] = []
    rewards: list[tuple[float, float]] = []
    errors: dict[int, list[tuple[float, float]]] = {1: [], AHEAD: []}

    def ahead(z: Array, action: int, h: Array) -> tuple[Array, Array, float]:
        h = hand_hidden(model, z, np.array([action]), h)
        outcome = hand_features(model, h, z, np.array([action])) @ weight.T + bias
        return outcome[:, :-1], h, float(outcome[0, -1])

    for episode in stored_episodes(agent.replay):
        encoded = agent.models.autoencoder.encode(torch.from_numpy(episode["observations"]))
        latents, hidden = encoded.double().numpy(), np.zeros((1, model.hidden_size))
        for t, action in enumerate(episode["actions"]):
            z, h = latents[t : t + 1], hidden
            choices = []
            for sample in (agent.model, mean):
                layer = sample.weight.double().numpy(), sample.bias.double().numpy()
                returns = hand_returns(models, *layer, z, h, config.value.discount, models.acting_value)[0]
                choices.append(int(returns.argmax()))
            differ.append(choices[0] != choices[1])
            for k, taken in enumerate(episode["actions"][t : t + AHEAD], 1):
                z, h, reward = ahead(z, taken, h)
                if k == 1:
                    rewards.append((reward, float(episode["rewards"][t])))
                if k in errors:
                    truth = latents[t + k]
                    errors[k].append((((z - truth) ** 2).sum(), ((latents[t] - truth) ** 2).sum()))
            hidden = hand_hidden(model, latents[t : t + 1], np.array([action]), hidden)
    predicted, realised = np.array(rewards).T
    found = {"explore/disagreement": float(np.mean(differ)), "reward/predicted": float(predicted.mean())}
    found |= {"reward/realised": float(realised.mean())}
    found |= {"reward/error": float(np.sqrt(((predicted - realised) ** 2).mean()))}
    return found | {f"model/error_{k}": float(np.divide(*np.sum(pairs, 0))) for k, pairs in errors.items()}


def look(agent: PsdrlAgent) -> dict[str, float]:
    latents = encode_buffer(agent.models, agent.replay)
    found = monitor.look(agent.models, agent.replay, latents, agent.model, agent.draw(mean=True))
    return {name: float(value) for name, value in found.items()}


@pytest.mark.parametrize("recurrent", [0, 4])
def test_numbers_are_those_of_loops_by_hand(recurrent: int) -> None:
    agent = trained(forward={"recurrent": recurrent}, posterior={"noise": (1.0,)})
    wanted, found = by_hand(agent), look(agent)
    assert found == pytest.approx(wanted, rel=1e-6)
    assert 0 < found["explore/disagreement"] < 1


def test_the_log_has_them_now_and_then_and_training_does_not_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the numbers and without: all states, optimisers and random streams are equal, bit for bit."""
    watched, alone = (debug_agent("fast", torch.float32, lengths=(9, 12, 30)) for _ in range(2))
    lines = [watched.update() for _ in range(EVERY + 1)]
    names = {"explore/disagreement", "reward/predicted", "reward/realised", "reward/error", "time/monitor"}
    names |= {"model/error_1", f"model/error_{AHEAD}"}
    with_numbers = [i for i, line in enumerate(lines) if names <= line.keys()]
    assert with_numbers == [0, EVERY]
    assert not names & lines[1].keys()
    monkeypatch.setattr(monitor, "look", lambda *_: {})
    for _ in range(EVERY + 1):
        alone.update()
    assert whole_state(watched) == whole_state(alone)


def test_few_states_of_the_newest_episodes() -> None:
    replay = filled_replay([1500, 700, 600, 1], capacity=5000)
    assert [episode.length for episode in newest(replay)] == [1, 600, 700], "1500 more would be too many"
    long = filled_replay([5, WALKED + 100], capacity=5000)
    (only,) = newest(long)
    assert only == (6, WALKED), "the beginning of the newest"
    agent = agent_of(small_config(), vector_spec(3, 2))
    agent.replay = long
    seen = states(agent.models, long, encode_buffer(agent.models, long))
    assert len(seen.slots) == STATES
    assert int(seen.left[0]) == WALKED


def test_episodes_that_are_too_short_have_no_error_further_ahead() -> None:
    agent = agent_of(small_config(), vector_spec(3, 2))
    agent.replay = filled_replay([2, 1])
    assert f"model/error_{AHEAD}" not in look(agent)
    agent.replay.observations[:] = 1.0  # nothing moves
    assert "model/error_1" not in look(agent)
