"""`psdrl probe`: what it asks of an agent's models, with models whose answers are known."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import psdrl
from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.agents.psdrl.probe import Answers, Recorded, Stored, ahead, answers, read_outs, returns_after, starts
from psdrl.cli import ask
from psdrl.envs import make_env
from psdrl.errors import UserError
from tests.helpers import filled_replay, small_agent, vector_spec


def probe(agent: PsdrlAgent) -> Answers:
    return answers(agent, Stored.of(agent))


def test_discounted_returns():
    assert returns_after(torch.tensor([1.0, 0.0, 2.0]), 0.5).tolist() == [1.5, 1.0, 2.0]


@pytest.mark.parametrize("estimate", [0.0, 1.0], ids=["sees no end", "sees ends everywhere"])
def test_constant_models(estimate):
    """Termination estimates, values and rewards that are the same everywhere."""
    agent = small_agent(vector_spec(3, 2))
    agent.replay = filled_replay([4, 7, 5])  # the second is cut by a time limit
    models, model = agent.models, agent.model
    with torch.no_grad():
        for net, constant in ((models.termination, estimate), (models.value.networks()[0], 2.0)):
            net.layers[-1].weight.zero_()
            net.layers[-1].bias.fill_(constant)
        model.weight.zero_()
        model.bias.zero_()
        model.bias[-1] = 0.25
    found = probe(agent)
    assert found.ends == 2
    assert found.ends_found == found.false_ends == found.ends_foreseen == found.false_foreseen == estimate
    assert found.reward_there == pytest.approx(0.25)
    assert found.value == pytest.approx(2.0)
    assert found.gap == pytest.approx(0.0, abs=1e-6)
    rewards = [agent.replay.rewards[start : start + length] for start, length in agent.replay.episodes]
    expected = torch.cat([returns_after(r, agent.config.value.discount) for r in rewards]).mean()
    assert found.following == pytest.approx(float(expected), rel=1e-5)


def test_what_is_foreseen_is_asked_of_predictions():
    """The model predicts z = 100 everywhere, and ends are where z exceeds 50: at no stored state."""
    agent = small_agent(vector_spec(3, 2))
    agent.replay = filled_replay([4, 7, 5])
    with torch.no_grad():
        for layer in agent.models.termination.linear_layers():
            layer.weight.zero_()
            layer.weight[0, 0] = 1
            layer.bias.zero_()
        agent.models.termination.linear_layers()[0].bias[0] = -50
        agent.models.termination.linear_layers()[-1].bias.fill_(0.5)
        agent.model.weight.zero_()
        agent.model.bias.fill_(100.0)
    found = probe(agent)
    assert (found.ends_found, found.false_ends) == (0, 0)
    assert (found.ends_foreseen, found.false_foreseen) == (1, 1)


def drifting(step: float) -> PsdrlAgent:
    """States grow by 1 in each number and step, and pay what their first number is; the model adds `step`."""
    forward = {"layers": 2, "features": "tanh+inputs", "recurrent": 0}
    agent = small_agent(vector_spec(3, 2), forward=forward)
    replay = filled_replay([30, 2])
    for start, length in replay.episodes:
        slots = torch.arange(start, start + length + 1)
        replay.observations[slots] = torch.arange(length + 1.0)[:, None].expand(-1, 3) + torch.arange(3.0)
        replay.rewards[slots] = replay.observations[slots, 0]
    agent.replay = replay
    weight, bias = agent.model.weight, agent.model.bias
    weight.zero_()
    inputs = weight[:, weight.shape[1] - 5 :]  # [h', z, onehot(a)] are the last features; h' has no units
    inputs[:3, :3] = torch.eye(3)
    inputs[3, 0] = 1.0
    bias.fill_(step)
    bias[3] = 0.0
    return agent


@pytest.mark.parametrize("step", [1.0, 0.5, 0.0])
def test_predictions_are_followed_from_one_to_the_next(step: float) -> None:
    """After k steps the model has moved by k step where k is right: the error is (1 - step)^2 of copying's."""
    agent = drifting(step)
    found = ahead(agent, Stored.of(agent), agent.model, (1, 2, 7, 31))
    assert [row.steps for row in found] == [1, 2, 7], "no episode has 31 steps"
    for row in found:
        assert row.error == pytest.approx((1 - step) ** 2, abs=1e-6)
        assert row.reward == pytest.approx(1.0, abs=1e-3)


def test_roll_outs_stay_within_an_episode() -> None:
    replay = filled_replay([30, 2])
    assert starts(replay, 2).tolist() == [*range(29), 31]
    assert len(starts(replay, 2, most=10)) == 10
    assert len(starts(replay, 31)) == 0


def test_read_outs_know_what_z_knows() -> None:
    """A number that is linear in z, one that z does not hold; one step ahead the drift is right, or nothing moves."""
    rng = np.random.default_rng(0)
    episodes = []
    for _ in range(30):
        first = rng.normal(size=3) * 5
        z = first + np.arange(40.0)[:, None]
        labels = np.stack([2 * z[:, 0] - 3 * z[:, 1] + 1, rng.normal(size=40)], 1)
        episodes.append(Recorded(z.astype(np.float32), rng.integers(2, size=39), labels))
    for step, off in ((1.0, 0.0), (0.0, 2.0)):
        agent = drifting(step)
        linear, noise = read_outs(agent, agent.model, episodes, ["linear", "noise"], (1, 2))
        assert (linear.name, noise.name) == ("linear", "noise")
        assert linear.r2 > 0.999 > 0.3 > noise.r2
        assert linear.off < 0.1
        assert linear.ahead[2] == pytest.approx(off, abs=0.15)
        assert linear.copied[2] == pytest.approx(2.0)


def test_environments_tell_their_true_state() -> None:
    pong = psdrl.configure(game="Pong", env_backend="gymnasium", device="cpu")
    env = make_env(pong, num_envs=1)
    env.reset()
    assert len(env.labels()) == 128
    assert env.labels()["ram 51"] > 0
    env.close()
    cart = make_env(psdrl.configure(env="CartPole-v1"), num_envs=1)
    np.testing.assert_allclose(list(cart.labels().values()) or 0, 0)  # nothing before the first reset
    observation = cart.reset()[0]
    np.testing.assert_allclose(list(cart.labels().values()), observation, atol=1e-6)
    cart.close()
    sea = make_env(psdrl.configure(env="deepsea-5"), num_envs=1)
    assert sea.labels() == {}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "cart"
    psdrl.train("CartPole-v1", preset="debug", steps=300, logdir=path, eval_every=0)
    return path


def test_a_run_is_asked_without_training(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    assert ask([str(run), "--horizons", "1", "3", "--episodes", "2", "--json", str(tmp_path / "a.json")]) == 0
    shown = capsys.readouterr().out
    assert "state 3" in shown
    assert "posterior mean" in shown
    (found,) = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert [row["steps"] for row in found["posterior mean"]] == [1, 3]
    assert found["steps"] == 300
    assert len(found["read-outs"]) == 4
    assert sorted((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Name a run's directory"),
        (["nowhere"], "nowhere"),
        (["RUN", "--horizons", "0"], "--horizons must be"),
        (["RUN", "--episodes", "-1"], "--episodes is -1"),
    ],
)
def test_mistakes_are_one_sentence(run: Path, arguments: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        ask([str(run) if word == "RUN" else word for word in arguments])


def test_an_agent_whose_models_are_unknown_is_refused(tmp_path: Path) -> None:
    psdrl.train("CartPole-v1", algo="bootstrap", preset="debug", steps=100, logdir=tmp_path / "b", eval_every=0)
    with pytest.raises(UserError, match="cannot ask bootstrap"):
        ask([str(tmp_path / "b")])
