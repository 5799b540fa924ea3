"""Bootstrapped DQN as an agent: when it learns, what it stores, how it plays, how it is saved; graphs; DeepSea."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import psdrl
from psdrl.agents.bootstrap.acting import HeadActor, VoteActor
from psdrl.agents.bootstrap.agent import BootstrapAgent
from psdrl.agents.bootstrap.learning import make_step
from psdrl.agents.bootstrap.presets import PRESETS
from psdrl.agents.bootstrap.settings import BootstrapConfig, ExplorationConfig
from psdrl.agents.registry import configure
from psdrl.agents.transitions import REPORT_EVERY
from psdrl.envs import make_env
from psdrl.envs.vector import Step
from psdrl.errors import UserError
from psdrl.run.checkpoint import restore, save
from psdrl.run.evaluation import evaluate
from psdrl.run.loop import train
from psdrl.runtime.execution import Execution
from psdrl.runtime.graphs import Cuda
from tests.conftest import Run
from tests.helpers import ListLog, ScriptedEnv, ScriptedEpisode, vector_spec
from tests.recorder import StandIn, as_on_a_gpu


def small_config(**settings: Any) -> BootstrapConfig:
    settings = {"env": "deepsea-4", "preset": "debug", "device": "cpu"} | settings
    return configure(algo="bootstrap", **settings)


def small_agent(**settings: Any) -> BootstrapAgent:
    return BootstrapAgent(small_config(**settings), vector_spec())


def script(num_envs: int = 1, length: int = 7) -> ScriptedEnv:
    ends = ("terminated", "truncated")
    return ScriptedEnv([[ScriptedEpisode(length, end) for end in ends] for _ in range(num_envs)])


@pytest.mark.parametrize(
    ("exploration", "shares"),
    [
        (ExplorationConfig(), {0: 1.0, 49_999: 1.0, 50_000: 0.0, 10**6: 0.0}),
        (ExplorationConfig(0), {0: 0.0}),
        (ExplorationConfig(100, 0.05), {99: 1.0, 100: 0.05, 5000: 0.05}),
        (
            ExplorationConfig(50_000, 0.01, 1_000_000),  # the released schedule
            {0: 1.0, 50_000: 1.0, 550_000: 0.505, 1_000_000: 1 - 0.99 * 0.95, 1_050_000: 0.01, 2_000_000: 0.01},
        ),
    ],
    ids=["default", "no random steps", "constant", "released"],
)
def test_epsilon_schedule(exploration: ExplorationConfig, shares: dict[int, float]) -> None:
    config = BootstrapConfig(exploration=exploration)
    assert {step: config.random_share(step) for step in shares} == pytest.approx(shares)


def test_the_papers_settings() -> None:
    """PSDRL's table for B+P, and what the released code adds."""
    config = configure(algo="bootstrap", game="Pong", preset="paper", device="cpu")
    assert (config.network.heads, config.network.prior_scale, config.network.units) == (9, 1.0, 512)
    learning = config.learning
    assert (learning.every, learning.batch, learning.learning_rate, learning.discount) == (2, 64, 6.25e-5, 0.99)
    assert (learning.clip, learning.target_every, learning.mask_probability) == (5.0, 10_000, 0.9)
    assert (config.replay.capacity, config.replay.stack, config.atari.size) == (1_000_000, 4, 84)
    assert (config.exploration.random_steps, config.reward_transform, config.steps) == (50_000, "sign", 1_000_000)
    assert config.atari == psdrl.configure(game="Pong", preset="paper", device="cpu", atari={"size": 84}).atari


@pytest.mark.parametrize("name", [*PRESETS, "auto"])
@pytest.mark.parametrize("env", ["deepsea-5", "minatar/breakout", "CartPole-v1", "game"])
def test_every_preset_makes_an_agent_that_acts_and_learns(name: str, env: str) -> None:
    where = {"game": "Pong", "env_backend": "ale"} if env == "game" else {"env": env}
    config = configure(algo="bootstrap", preset=name, device="cpu", replay={"capacity": 100}, **where)
    envs = make_env(config)
    agent = BootstrapAgent(config, envs.spec)
    step = envs.reset()
    agent.begin(0, step)
    agent.step = 10**6  # past the random steps
    for _ in range(3):
        actions = agent.actors[0].act(step)
        outcome = envs.step(actions)
        agent.observe(0, actions, outcome)
        step = outcome.observation
    agent.next_update = agent.step
    assert agent.update_due()
    agent.update()
    envs.close()
    assert not torch.equal(agent.networks.online.heads.hidden.weight, agent.networks.target.heads.hidden.weight)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"network": {"heads": 0}}, "--network.heads is 0"),
        ({"learning": {"discount": 1.0}}, "--learning.discount"),
        ({"learning": {"mask_probability": 1.5}}, "--learning.mask-probability"),
        ({"learning": {"learning_rate": 0.0}}, "--learning.learning-rate"),
        ({"exploration": {"epsilon": -0.1}}, "--exploration.epsilon"),
        ({"network": {"kernels": (3,)}}, "equal lengths"),
        ({"network": {"torso": (0,)}}, "positive"),
        ({"steps": 0}, "--steps"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        small_config(**settings)


def test_images_too_small_for_the_torso_are_refused() -> None:
    config = configure(
        algo="bootstrap", game="Pong", preset="debug", device="cpu", env_backend="ale", atari={"size": 9}
    )
    env = make_env(config)
    with pytest.raises(UserError, match="shrinks"):
        BootstrapAgent(config, env.spec)
    env.close()


def test_when_it_learns_and_copies() -> None:
    """Random until step 20, then a gradient step every 3 steps; a copy at every multiple of 10."""
    agent = small_agent(
        steps=60, learning={"every": 3, "target_every": 10}, exploration={"random_steps": 20}, eval_every=0
    )
    learned, copied = [], []
    gradient_step, update_target = agent.gradient_step, agent.networks.update_target

    def counted(*batch: Tensor) -> tuple[Tensor, ...]:
        learned.append(agent.step)
        return gradient_step(*batch)

    def noted() -> None:
        copied.append(agent.step)
        update_target()

    agent.gradient_step, agent.networks.update_target = counted, noted  # type: ignore[method-assign]
    train(agent, script())
    assert learned == list(range(20, 60, 3))
    assert copied == [20, 32, 41, 50], "with the first gradient step at or after each multiple"
    assert agent.updates == len(learned)


def test_many_environments_take_as_many_gradient_steps() -> None:
    """8 environments step together: 4 gradient steps each time, not one."""
    agent = small_agent(steps=400, num_envs=8, learning={"every": 2}, exploration={"random_steps": 16}, eval_every=0)
    learned: list[int] = []
    gradient_step = agent.gradient_step

    def counted(*batch: Tensor) -> tuple[Tensor, ...]:
        learned.append(agent.step)
        return gradient_step(*batch)

    agent.gradient_step = counted
    train(agent, script(8))
    assert agent.step == 400
    for step in set(learned):
        assert sum(s <= step for s in learned) == len(range(16, step + 1, 2)), f"left out or too many at step {step}"
    assert len(set(learned)) == agent.updates < len(learned) / 3


def test_reports_are_means_since_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psdrl.agents.transitions.REPORT_EVERY", 4)
    agent = small_agent(steps=60, learning={"every": 2}, exploration={"random_steps": 20}, eval_every=0)
    losses: list[float] = []
    gradient_step = agent.gradient_step

    def kept(*batch: Tensor) -> tuple[Tensor, ...]:
        out = gradient_step(*batch)
        losses.append(float(out[0]))
        return out

    agent.gradient_step, log = kept, ListLog()
    train(agent, script(), log)
    assert log.steps_with("loss/heads") == [26, 34, 42, 50, 58]
    wanted = [np.mean(losses[i : i + 4]) for i in range(0, 20, 4)]
    assert log.values_of("loss/heads") == pytest.approx(wanted, rel=1e-5)
    assert [seconds > 0 for seconds in log.values_of("time/learning")] == [True] * 5
    assert len(log.values_of("time/acting")) == 5, "nothing is logged for the updates between"
    assert REPORT_EVERY == 500


def stored(agent: BootstrapAgent) -> tuple[list[float], list[float], np.ndarray]:
    """Rewards, terminations and masks in the order they were stored."""
    slots = np.flatnonzero(agent.replay.followed)
    masks = np.unpackbits(agent.replay.masks[slots], axis=1, count=agent.replay.heads)
    return agent.replay.rewards[slots].tolist(), agent.replay.terminated[slots].tolist(), masks


@pytest.mark.parametrize(
    ("transform", "wanted"), [("sign", [-1, 0, 1]), ("tanh", np.tanh([-5, 0, 0.5])), ("none", [-5, 0, 0.5])]
)
@pytest.mark.parametrize("cut_is_end", [False, True])
def test_what_is_stored(transform: str, wanted: list[float], cut_is_end: bool) -> None:
    """Transformed rewards; a time limit is an end only if it is set so; a row that starts an episode is left out."""
    agent = small_agent(reward_transform=transform, replay={"time_limit_terminates": cut_is_end})
    agent.begin(0, np.zeros((1, 3), np.float32))
    rewards, ended, cut = [-5, 0, 99, 0.5], [False, True, False, False], [False, False, False, True]
    for t in range(4):
        flags = (np.array([flag]) for flag in (ended[t], cut[t], t == 2, ended[t] or cut[t], False))
        step = Step(np.full((1, 3), t, np.float32), np.array([rewards[t]], np.float32), *flags)
        agent.observe(0, np.array([1]), step)
    found, terminated, _ = stored(agent)
    assert found == pytest.approx(list(wanted))
    assert terminated == [False, True, cut_is_end]


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_masks_are_drawn_per_transition_and_head(probability: float) -> None:
    agent = small_agent(learning={"mask_probability": probability}, steps=1000, eval_every=0, exploration={
        "random_steps": 1000})  # fmt: skip
    train(agent, script())
    _, _, masks = stored(agent)
    assert masks.shape[0] > 700
    deviation = np.sqrt(probability * (1 - probability) / len(masks))
    assert (abs(masks.mean(0) - probability) <= 4 * deviation).all()
    if probability == 0.3:
        assert abs(np.corrcoef(masks.T)[0, 1]) < 4 / np.sqrt(len(masks)), "heads share their draws"


def test_players() -> None:
    """By default a vote; a head of its own stream on request, without the epsilon of training."""
    agent = small_agent(exploration={"random_steps": 0, "epsilon": 1.0})
    assert isinstance(agent.player(1), VoteActor)
    assert isinstance(agent.player(1, "vote"), VoteActor)
    heads = set()
    for stream in range(20):
        actor = agent.player(stream, "head")
        assert isinstance(actor, HeadActor)
        assert actor.random_share() == 0
        heads.add(int(actor.heads[0]))
    assert heads == {0, 1, 2}
    assert agent.actors[0].random_share() == 1


def test_evaluation_leaves_training_as_it_was() -> None:
    one, other = (BootstrapAgent(small_config(steps=300), vector_spec(16)) for _ in range(2))
    envs = [make_env(agent.config) for agent in (one, other)]
    train(one, envs[0])
    log = ListLog()
    other.config = small_config(steps=300, eval_every=50)
    train(other, envs[1], log)
    assert len(log.values_of("eval/return")) == 6
    evaluate(other, 2, policy="head")
    same_state(one, other)


def same_state(one: BootstrapAgent, other: BootstrapAgent) -> None:
    """Networks, optimiser, counters, random streams and replay are equal, bit for bit."""
    for name in ("step", "updates", "episodes", "next_update", "next_target", "_summed"):
        assert getattr(one, name) == getattr(other, name), name
    states = [agent.state_dict() | {"replay": agent.replay.state_dict()} for agent in (one, other)]
    mine, theirs = (torch.utils._pytree.tree_flatten_with_path(state)[0] for state in states)
    assert len(mine) == len(theirs) > 60
    for (path, x), (_, y) in zip(mine, theirs, strict=True):
        assert torch.equal(x, y) if isinstance(x, Tensor) else x == y, path


def test_a_resumed_agent_goes_on_as_the_one_that_never_stopped(tmp_path: Path) -> None:
    """Through a checkpoint on disk; both begin new episodes there, as every run that is continued does."""
    straight = small_agent(steps=400, learning={"every": 2}, exploration={"random_steps": 50}, eval_every=0)
    env = script(1)
    train(straight, env)
    resumed = small_agent(steps=800, learning={"every": 2}, exploration={"random_steps": 50}, eval_every=0)
    restore(save(tmp_path, straight), resumed)
    same_state(straight, resumed)
    straight.config = resumed.config
    for agent in (straight, resumed):
        train(agent, script(1))
    assert straight.step == 800
    same_state(straight, resumed)


def test_a_checkpoint_of_a_gpu_is_no_order_to_capture() -> None:
    """Adam's own state says for which device it was made; the run's device decides."""
    agent = small_agent()
    state = copy.deepcopy(agent.state_dict())
    state["optimiser"]["param_groups"][0]["capturable"] = True
    agent.load_state_dict(state)
    assert not agent.optimiser.param_groups[0]["capturable"]


def test_groups_of_environments_have_actors_of_their_own() -> None:
    agent = small_agent(num_envs=4, env_groups=2)
    assert [actor.heads.shape for actor in agent.actors] == [(2,), (2,)]
    first, second = (actor.rng.random(4).tolist() for actor in agent.actors)
    assert first != second
    assert BootstrapAgent(agent.config, vector_spec()).actors[0].rng.random(4).tolist() == first, (
        "a function of the seed"
    )


def with_graphs(agent: BootstrapAgent) -> StandIn:
    """The agent as on a GPU, with a recording device under its steps."""
    cuda = StandIn()
    agent.execution = Execution(agent.device, cuda_graphs=True, primitives=Cuda(torch.device("cpu"), cuda))
    agent.gradient_step = make_step(agent.networks, agent.optimiser, agent.config.learning, agent.execution)
    agent.actors = [agent._head_actor(agent.config.num_envs, 5, lambda: 0.0)]
    agent.update = as_on_a_gpu(agent.update)  # type: ignore[method-assign]
    return cuda


@pytest.mark.parametrize("num_envs", [1, 5])
def test_graphs_learn_and_act_as_eager_steps_do(num_envs: int) -> None:
    """Gradient steps, actions of heads and votes, replayed from graphs, over copies into the target network."""
    settings = {"num_envs": num_envs, "steps": 400, "eval_every": 0, "exploration": {"random_steps": 50}}
    eager, captured = small_agent(**settings), small_agent(**settings)
    eager.actors = [eager._head_actor(num_envs, 5, lambda: 0.0)]
    cuda = with_graphs(captured)
    for agent in (eager, captured):
        train(agent, script(num_envs))
    assert captured.execution.failures == []
    assert len(cuda.graphs) == 2, "one for learning, one for acting"
    assert min(graph.replays for graph in cuda.graphs) > 50
    for (name, x), y in zip(eager.networks.named_parameters(), captured.networks.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6, msg=name)
    frames = np.random.default_rng(0).normal(size=(30, 1, 3)).astype(np.float32)
    players = eager.player(0), captured.player(0)
    for frame in frames:
        assert players[0].act(frame) == players[1].act(frame)
    assert captured.player(1).act(frames[0]) == eager.player(1).act(frames[0])
    assert len(cuda.graphs) == 3, "a second player uses the first one's graph"


def test_compiled_steps_agree() -> None:
    eager, compiled = small_agent(), small_agent()
    compiled.execution = Execution(compiled.device, compile=True)
    compiled.gradient_step = make_step(
        compiled.networks, compiled.optimiser, compiled.config.learning, compiled.execution
    )
    for agent in (eager, compiled):
        rng = np.random.default_rng(0)
        agent.begin(0, rng.normal(size=(1, 3)).astype(np.float32))
        agent.step = 100
        for _ in range(20):
            flags = (np.zeros(1, bool) for _ in range(5))
            step = Step(rng.normal(size=(1, 3)).astype(np.float32), rng.normal(size=1).astype(np.float32), *flags)
            agent.observe(0, np.array([rng.integers(2)]), step)
        agent.update()
    torch.testing.assert_close(eager._sums, compiled._sums, rtol=1e-4, atol=1e-6)
    before = copy.deepcopy(eager.networks.target.state_dict())
    for (name, x), y in zip(
        eager.networks.online.named_parameters(), compiled.networks.online.parameters(), strict=True
    ):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-5, msg=name)
        assert not torch.equal(x, before[name]), name


def test_from_the_command_line(cli_run: Run, tmp_path: Path) -> None:
    """Train, resume, evaluate by both policies; another policy is refused."""
    flags = ("--algo", "bootstrap", "--env", "deepsea-4", "--preset", "debug", "--device", "cpu", "--logdir", "run")
    first = cli_run("train", *flags, "--steps", "300")
    assert first.code == 0, first.err
    assert "3, prior scale 1, mask probability 0.9" in first.out
    again = cli_run("train", *flags, "--steps", "400")
    assert "resumed at step 300" in again.out
    for policy in ("vote", "head"):
        played = cli_run("evaluate", "run", "--episodes", "2", "--policy", policy)
        assert played.code == 0, played.err
        assert f"policy {policy}" in played.out
    refused = cli_run("evaluate", "run", "--policy", "mean")
    assert refused.code == 2
    assert "vote" in refused.err


def test_deepsea_is_explored() -> None:
    """Six times right in a row: a random policy finds it once in 64 episodes and gains nothing from it."""
    agent = BootstrapAgent(configure(algo="bootstrap", env="deepsea-6", device="cpu", seed=1), vector_spec(36))
    env, log = make_env(agent.config), ListLog()
    train(agent, env, log, lambda: agent.episodes >= 400)
    env.close()
    assert np.mean(np.array(log.values_of("train/return")[-50:]) > 0.5) > 0.9
    assert evaluate(agent, 1)[0] == pytest.approx(0.99)
