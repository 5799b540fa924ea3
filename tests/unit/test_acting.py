"""Acting (Eq. 8): the greedy policy, ties, policy noise, and whose hidden state moves when."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import psdrl
from psdrl.agents.psdrl.acting import Actor, greedy
from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.agents.psdrl.synthetic import add_episode
from psdrl.envs import make_env
from psdrl.run.evaluation import evaluate
from tests.helpers import Array, hand_hidden, hand_returns, small_agent, small_config, vector_spec

CHI2_999 = {1: 10.83, 2: 13.82, 3: 16.27}  # 99.9% quantiles by degrees of freedom


def chi_square(counts: NDArray, expected: Array) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def hand_agent_returns(agent: PsdrlAgent, z: Array, h: Array, steps: int = 1) -> tuple[Array, Array]:
    weight, bias = agent.model.weight.double().numpy(), agent.model.bias.double().numpy()
    discount, value = agent.config.value.discount, agent.models.acting_value
    return hand_returns(agent.models, weight, bias, z, h, discount, value, steps)


def acting_agent(**settings: object) -> PsdrlAgent:
    """Three environments, three actions; a model with moderate weights instead of the wide prior's."""
    agent = small_agent(vector_spec(3, 3), num_envs=3, **settings)
    agent.model.weight.div_(10)
    return agent


@pytest.mark.parametrize("path", ["fast", "plain"])
@pytest.mark.parametrize(
    ("layers", "rate", "networks", "steps"),
    [(2, 1.0, 1, 1), (3, 1.0, 1, 1), (5, 1.0, 1, 1), (3, 0.5, 1, 1), (3, 1.0, 3, 1), (3, 1.0, 1, 3), (5, 1.0, 2, 2)],
    ids=["2 layers", "3 layers", "5 layers", "averaged", "three networks", "3 steps", "2 steps"],
)
def test_greedy_policy_and_hidden_states_over_an_episode(
    layers: int, rate: float, networks: int, steps: int, path: str
) -> None:
    """argmax of the K-step return with the *current* value networks, or the target networks where these are their
    average; h follows the action taken, per environment."""
    value = {"target_rate": rate, "networks": networks, "lookahead": steps}
    agent = acting_agent(forward={"layers": layers}, value=value, update_path=path)
    unused, used = agent.models.target, agent.models.value
    if rate < 1:
        unused, used = used, unused
    assert agent.models.acting_value is used
    with torch.no_grad():  # the other network must play no part
        for parameter in unused.parameters():
            parameter.fill_(9.0)
    rng = np.random.default_rng(0)
    h = np.zeros((3, 8))
    chosen, different = set(), 0
    for t in range(40):
        observations = rng.normal(size=(3, 3), scale=3).astype(np.float32)
        z = observations.astype(np.float64)
        returns, following = hand_agent_returns(agent, z, h, steps)
        actions = agent.actor.act(observations, epsilon=0.0)
        np.testing.assert_array_equal(actions, returns.argmax(1), err_msg=f"step {t}")
        before, h = h, following[np.arange(3), actions]
        np.testing.assert_allclose(agent.actor.hidden.numpy(), h, atol=1e-5, err_msg=f"step {t}")
        chosen |= set(actions.tolist())
        different += int((actions != hand_agent_returns(agent, z, before)[0].argmax(1)).sum())
    assert len(chosen) > 1, "the greedy action never changes: the test shows nothing"
    assert (different > 0) == (steps > 1), "further steps change nothing"
    assert np.ptp(h, axis=0).max() > 1e-3, "the environments' hidden states are all the same"


def test_terminating_action_loses_its_future() -> None:
    """The policy applies Eq. 7 too: with V = 10 everywhere, an action that ends the episode is avoided."""
    forward = {"layers": 2, "units": 2, "features": "tanh"}
    agent = small_agent(vector_spec(1, 2), forward=forward, termination={"layers": 2, "units": 1})
    with torch.no_grad():
        for parameter in agent.models.parameters():
            parameter.zero_()
        agent.models.forward_model.layers[0].weight[:, -2:] = torch.eye(2)
        agent.models.termination.layers[0].weight.fill_(1.0)
        agent.models.termination.layers[1].weight.fill_(1.0)
    agent.model.weight.copy_(torch.tensor([[0.0, 5.0], [1.0, 2.0]]))  # action 1 pays more and ends the episode
    observation = np.zeros((1, 1), np.float32)
    bias = agent.models.value.networks()[0].linear_layers()[-1].bias
    for value, best in ((10.0, 0), (0.0, 1), (-10.0, 1)):
        bias.data.fill_(value)
        assert {int(agent.actor.act(observation, 0.0)[0]) for _ in range(20)} == {best}, f"V = {value}"


@pytest.mark.parametrize(
    ("returns", "tied"),
    [
        ([1.0, 1.0, 1.0], [0, 1, 2]),
        ([2.0, 1.0, 2.0], [0, 2]),
        ([1000.0, 1000.004, 999.0], [0, 1]),  # apart by less than float32 can mean
        ([1.0, 0.999, 0.9], [0]),
        ([-3.0, -2.0, -2.0], [1, 2]),
    ],
    ids=["all", "two", "close", "none", "negative"],
)
def test_ties_are_broken_uniformly(returns: list[float], tied: list[int]) -> None:
    rows = 6000
    actions = greedy(torch.tensor([returns]).repeat(rows, 1), torch.Generator().manual_seed(0)).numpy()
    counts = np.bincount(actions, minlength=3)
    assert counts[[a for a in range(3) if a not in tied]].sum() == 0, counts
    if len(tied) > 1:
        expected = np.full(len(tied), rows / len(tied))
        assert chi_square(counts[tied], expected) < CHI2_999[len(tied) - 1], counts


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_policy_noise(epsilon: float) -> None:
    """Random with probability epsilon, then uniform over all actions, the greedy one included."""
    agent = acting_agent()
    actor = Actor(agent, 6000, seed=1)
    observations = np.full((6000, 3), 0.3, np.float32)
    returns, _ = hand_agent_returns(agent, observations[:1].astype(np.float64), np.zeros((1, 8)))
    counts = np.bincount(actor.act(observations, epsilon), minlength=3)
    expected = np.full(3, 6000 * epsilon / 3)
    expected[returns.argmax()] += 6000 * (1 - epsilon)
    if epsilon == 0:
        np.testing.assert_array_equal(counts, expected)
    else:
        assert chi_square(counts, expected) < CHI2_999[2], (counts, expected)


@pytest.mark.parametrize(
    ("algo", "schedule"),
    [
        ("psdrl", {0: 0.001, 50_000: 0.001, 10**6: 0.001}),
        ("fresh-value", {0: 0.001, 10**6: 0.001}),
        ("egreedy-exploit", {0: 1.0, 25_000: 0.505, 50_000: 0.01, 10**6: 0.01}),
        ("egreedy-explore", {0: 1.0, 50_000: 0.9505, 500_000: 0.505, 10**6: 0.01, 2 * 10**6: 0.01}),
    ],
)
def test_epsilon_schedules(algo: str, schedule: dict[int, float]) -> None:
    config = small_config(algo=algo)
    assert {step: pytest.approx(config.epsilon(step)) for step in schedule} == schedule


@pytest.mark.parametrize("released", [(), ("keep-hidden",)], ids=["paper", "released"])
def test_random_actions_and_the_hidden_state(released: tuple[str, ...]) -> None:
    agent = acting_agent(released=released)
    rng = np.random.default_rng(0)
    h = rng.normal(size=(3, 8)) / 2
    for t in range(10):
        agent.actor.hidden = torch.from_numpy(h).float()
        observations = rng.normal(size=(3, 3)).astype(np.float32)
        actions = agent.actor.act(observations, epsilon=1.0)
        advanced = hand_hidden(agent.models.forward_model, observations.astype(np.float64), actions, h)
        wanted = h if released else advanced
        np.testing.assert_allclose(agent.actor.hidden.numpy(), wanted, atol=1e-5, err_msg=f"step {t}")
        assert np.abs(advanced - h).max() > 1e-2


def test_keep_still_advances_with_greedy_actions() -> None:
    agent = acting_agent(released=("keep-hidden",))
    observations = np.ones((3, 3), np.float32)
    actions = agent.actor.act(observations, epsilon=0.0)
    wanted = hand_hidden(agent.models.forward_model, observations.astype(np.float64), actions, np.zeros((3, 8)))
    np.testing.assert_allclose(agent.actor.hidden.numpy(), wanted, atol=1e-5)


def test_new_episodes_reset_only_their_own_hidden_state() -> None:
    agent = acting_agent()
    agent.actor.act(np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32), 0.0)
    before = agent.actor.hidden.clone()
    assert (before.abs().amax(1) > 0).all()
    agent.actor.start(np.array([False, True, False]))
    assert torch.equal(agent.actor.hidden[[0, 2]], before[[0, 2]])
    assert torch.count_nonzero(agent.actor.hidden[1]) == 0


def test_environments_do_not_see_each_other() -> None:
    """The same row gives the same hidden state whatever the other environments do."""
    rng = np.random.default_rng(3)
    row = rng.normal(size=3).astype(np.float32)
    seen = []
    for _ in range(2):
        agent = acting_agent()
        observations = rng.normal(size=(3, 3)).astype(np.float32)
        observations[1] = row
        actions = agent.actor.act(observations, 0.0)
        seen.append((actions[1], agent.actor.hidden[1].numpy()))
    assert seen[0][0] == seen[1][0]
    np.testing.assert_allclose(seen[0][1], seen[1][1], atol=1e-6)


def test_evaluation_leaves_training_untouched() -> None:
    config = psdrl.configure(env="deepsea-4", preset="debug", device="cpu", policy={"epsilon": 0.5})
    env = make_env(config)
    agent = PsdrlAgent(config, env.spec)
    env.close()
    add_episode(agent.replay, np.random.default_rng(0), 6)
    agent.replay.start(0, np.ones(16, np.uint8))
    agent.replay.add(0, 1, 0.5, np.zeros(16, np.uint8), False, False)
    agent.actor.hidden.fill_(0.25)

    def state() -> dict:
        replay = agent.replay.state_dict()
        rows = [(ring, name, x) for ring, rows in enumerate(replay["rows"]) for name, x in rows.items()]
        tensors = {f"replay/{ring}/{name}": x for ring, name, x in rows} | {"replay": replay["counters"]}
        tensors |= {f"models/{name}": value.clone() for name, value in agent.models.state_dict().items()}
        tensors |= {"hidden": agent.actor.hidden.clone(), "model": agent.model.weight.clone()}
        tensors |= {name: value for name, value in agent.state_dict()["random"].items() if name != "device"}
        tensors |= {"global": torch.random.get_rng_state(), "numpy": str(np.random.get_state())}  # noqa: NPY002
        return tensors | {"counters": agent.state_dict()["counters"], "open": len(agent.replay._open[0].actions)}

    before = state()
    returns = evaluate(agent, 3)
    assert len(returns) == 3
    for name, value in state().items():
        same = torch.equal(value, before[name]) if isinstance(value, torch.Tensor) else value == before[name]
        assert same, f"evaluation changed {name}"


def test_evaluation_is_reproducible_and_has_streams() -> None:
    config = psdrl.configure(env="deepsea-6", preset="debug", device="cpu", policy={"epsilon": 1.0})
    env = make_env(config)
    agent = PsdrlAgent(config, env.spec)
    env.close()
    assert evaluate(agent, 8, stream=1) == evaluate(agent, 8, stream=1)
    assert evaluate(agent, 8, stream=1) != evaluate(agent, 8, stream=2)


def test_observations_go_through_one_pinned_buffer_on_a_gpu(monkeypatch):
    """With a CPU in the place of the GPU: only the question whether it is one, and pinning, are replaced."""
    plain, agent = small_agent(), small_agent()
    rng = np.random.default_rng(0)
    shape = (plain.config.num_envs, *plain.spec.shape)
    observations = [rng.normal(size=shape).astype(np.float32) for _ in range(3)]
    expected = [plain.actor.act(x, 0.0).tolist() for x in observations]
    made: list[torch.Tensor] = []

    def pinned(shape, dtype):
        made.append(torch.full(shape, 99, dtype=dtype))
        return made[-1]

    for module in ("psdrl.agents.psdrl.acting", "psdrl.runtime.device"):
        monkeypatch.setattr(f"{module}.is_gpu", lambda device: True)
        monkeypatch.setattr(f"{module}.pinned_empty", pinned)
    for x, actions in zip(observations, expected, strict=True):
        assert agent.actor.act(x, 0.0).tolist() == actions
        assert torch.equal(made[0], torch.from_numpy(x))
    assert len(made) == 1
