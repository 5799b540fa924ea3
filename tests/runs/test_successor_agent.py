"""Successor Uncertainties as an agent: when it learns and draws, what its posterior sees, how it plays, how it is
saved; graphs; DeepSea."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import psdrl
from psdrl.agents.registry import configure
from psdrl.agents.successor.acting import ThompsonActor
from psdrl.agents.successor.agent import SuccessorAgent
from psdrl.agents.successor.learning import make_step
from psdrl.agents.successor.presets import PRESETS
from psdrl.agents.successor.settings import SuccessorConfig
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


def small_config(**settings: Any) -> SuccessorConfig:
    settings = {"env": "deepsea-4", "preset": "debug", "device": "cpu", "eval_every": 0} | settings
    return configure(algo="successor", **settings)


def small_agent(**settings: Any) -> SuccessorAgent:
    return SuccessorAgent(small_config(**settings), vector_spec())


def script(num_envs: int = 1, length: int = 7) -> ScriptedEnv:
    ends = ("terminated", "truncated")
    return ScriptedEnv([[ScriptedEpisode(length, end) for end in ends] for _ in range(num_envs)])


def test_the_papers_settings() -> None:
    """PSDRL's table for SU, and what the released code adds."""
    config = configure(algo="successor", game="Pong", preset="paper", device="cpu")
    network, learning, posterior = config.network, config.learning, config.posterior
    assert (network.features, network.torso, network.channels) == (64, (1024,), (32, 64, 64))
    assert (network.residual, network.fixed_phi, network.initial_w) == (False, False, 1.0)
    assert (learning.every, learning.batch, learning.learning_rate, learning.discount) == (2, 64, 5e-5, 0.99)
    assert (learning.clip, learning.target_every, learning.draws) == (10.0, 10_000, 100)
    assert (posterior.beta, posterior.ridge, posterior.forgetting, posterior.action_noise) == (1e-3, 1.0, 1e-5, True)
    assert (config.exploration.random_steps, config.exploration.draw_every) == (100_000, 250)
    assert (config.replay.capacity, config.replay.stack, config.atari.size) == (1_000_000, 4, 84)
    assert (config.reward_transform, config.steps) == ("sign", 1_000_000)
    assert (network.joint_normalisation, learning.next_action) == (False, "posterior"), "right, not as released"
    assert config.atari == psdrl.configure(game="Pong", preset="paper", device="cpu", atari={"size": 84}).atari


WHERE = {"deepsea": "deepsea-5", "minatar": "minatar/breakout", "control": "CartPole-v1"}


CASES = [*((name, WHERE.get(name, "game")) for name in PRESETS), *(("auto", env) for env in WHERE.values())]


@pytest.mark.parametrize(("name", "env"), CASES)
def test_every_preset_makes_an_agent_that_acts_and_learns(name: str, env: str) -> None:
    where = {"game": "Pong", "env_backend": "ale"} if env == "game" else {"env": env}
    config = configure(algo="successor", preset=name, device="cpu", replay={"capacity": 100}, **where)
    envs = make_env(config)
    agent = SuccessorAgent(config, envs.spec)
    observation = envs.reset()
    agent.begin(0, observation)
    agent.step = 10**6  # past the random steps
    for _ in range(3):
        actions = agent.actors[0].act(observation)
        outcome = envs.step(actions)
        agent.observe(0, actions, outcome)
        observation = outcome.observation
    agent.next_update = agent.step
    assert agent.update_due()
    agent.update()
    envs.close()
    assert not torch.equal(agent.networks.online.psi.weight, agent.networks.target.psi.weight)
    assert agent.posterior.gram.any()
    assert agent.perturbations.any()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"network": {"features": 0}}, "--network.features is 0"),
        ({"learning": {"discount": 1.0}}, "--learning.discount"),
        ({"learning": {"draws": 0}}, "--learning.draws"),
        ({"posterior": {"beta": 0.0}}, "--posterior.beta"),
        ({"posterior": {"ridge": 0.0}}, "--posterior.ridge"),
        ({"posterior": {"forgetting": 1.0}}, "--posterior.forgetting"),
        ({"exploration": {"draw_every": 0}}, "--exploration.draw-every"),
        ({"network": {"kernels": (3,)}}, "equal lengths"),
        ({"network": {"torso": (0,)}}, "positive"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        small_config(**settings)


def watched(agent: SuccessorAgent) -> dict[str, list[int]]:
    """Steps at which it learns, copies and draws, and how many rows its posterior takes in."""
    seen: dict[str, list[int]] = {"learned": [], "copied": [], "drawn": [], "rows": []}
    gradient_step, update_target = agent.gradient_step, agent.networks.update_target
    draw, absorb = agent.posterior.draw, agent.posterior.absorb

    def noted(name: str, call: Any, *arguments: Any) -> Any:
        seen[name].append(len(arguments[0]) if name == "rows" else agent.step)
        return call(*arguments)

    agent.gradient_step = lambda *batch: noted("learned", gradient_step, *batch)
    agent.networks.update_target = lambda: noted("copied", update_target)  # type: ignore[method-assign]
    agent.posterior.draw = lambda *how: noted("drawn", draw, *how)  # type: ignore[method-assign]
    agent.posterior.absorb = lambda phi: noted("rows", absorb, phi)  # type: ignore[method-assign]
    return seen


def test_when_it_learns_copies_and_draws() -> None:
    """Random until step 20, then a gradient step every 3 steps, a copy at every multiple of 10, a draw every 8."""
    agent = small_agent(
        steps=60, learning={"every": 3, "target_every": 10}, exploration={"random_steps": 20, "draw_every": 8}
    )
    seen = watched(agent)
    train(agent, script())
    assert seen["learned"] == list(range(20, 60, 3))
    assert seen["copied"] == [20, 32, 41, 50], "with the first gradient step at or after each multiple"
    assert seen["drawn"] == [20, 28, 36, 44, 52]
    assert seen["rows"] == [8, 8, 8, 8], "each transition once, random steps never"


def test_many_environments_draw_less_often_and_learn_as_much() -> None:
    agent = small_agent(
        steps=400, num_envs=8, learning={"every": 2}, exploration={"random_steps": 16, "draw_every": 10}
    )
    seen = watched(agent)
    train(agent, script(8))
    assert all(abs(step - wanted) < 16 for step, wanted in zip(seen["drawn"], range(16, 400, 80), strict=True))
    assert sum(seen["rows"]) == seen["drawn"][-1] - seen["drawn"][0]
    for step in set(seen["learned"]):
        assert sum(s <= step for s in seen["learned"]) == len(range(16, step + 1, 2))
    assert len(agent.perturbations.unique(dim=0)) == 8, "environments share a draw"


def test_posterior_knows_the_features_of_what_was_done() -> None:
    """Its precision against phi of the stored transitions, one by one."""
    agent = small_agent(
        steps=40, exploration={"random_steps": 10, "draw_every": 30}, learning={"every": 1000},
        posterior={"forgetting": 0.01},
    )  # fmt: skip
    train(agent, script())
    assert agent.posterior.ridge == 1.0, "a draw without data forgets nothing"
    agent._draw()
    slots = np.flatnonzero(agent.replay.followed)[10:]
    assert len(slots) == 30
    batch, online = agent.replay.transitions_at(slots), agent.networks.online
    with torch.no_grad():
        phi = online.local(online.hidden(batch.frames[:, :-1]))[range(30), batch.actions].double()
    precision = torch.eye(8, dtype=torch.float64)
    for row in phi:
        precision = 0.99 * precision + torch.outer(row, row)
    found = agent.posterior.gram + agent.posterior.ridge * torch.eye(8)
    torch.testing.assert_close(found.tril(), precision.tril(), rtol=1e-6, atol=1e-9)


def test_reports_are_means_since_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psdrl.agents.transitions.REPORT_EVERY", 4)
    agent = small_agent(steps=60, exploration={"random_steps": 20, "draw_every": 5})
    losses: list[list[float]] = []
    gradient_step = agent.gradient_step

    def kept(*batch: Tensor) -> tuple[Tensor, ...]:
        out = gradient_step(*batch)
        losses.append([float(x) for x in out])
        return out

    agent.gradient_step, log = kept, ListLog()
    train(agent, script(), log)
    assert log.steps_with("loss/q") == [26, 34, 42, 50, 58]
    for i, name in enumerate(("loss/reward", "loss/successor", "loss/q", "train/q", "train/gradient_norm")):
        wanted = [np.mean([row[i] for row in losses[j : j + 4]]) for j in range(0, 20, 4)]
        assert log.values_of(name) == pytest.approx(wanted, rel=1e-4), name
    for phase in SuccessorAgent.PHASES:
        assert [seconds > 0 for seconds in log.values_of(f"time/{phase}")] == [True] * 5
    deviations = log.values_of("posterior/sd")
    assert 0 < deviations[-1] < deviations[0] < 1e-3


@pytest.mark.parametrize(("transform", "wanted"), [("sign", [-1, 0, 1]), ("none", [-5, 0, 0.5])])
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
    slots = np.flatnonzero(agent.replay.followed)
    assert agent.replay.rewards[slots].tolist() == pytest.approx(wanted)
    assert agent.replay.terminated[slots].tolist() == [False, True, cut_is_end]


def test_players() -> None:
    """By default the mean; a draw per episode on request; never training's noise."""
    agent = small_agent(exploration={"random_steps": 0}, posterior={"beta": 1.0})
    for policy in (None, "greedy", "sample"):
        actor = agent.player(1, policy, num_envs=2)
        assert isinstance(actor, ThompsonActor)
        assert actor.action_noise == actor.random_share() == 0
        assert bool(actor.perturbations.any()) == (policy == "sample")
    assert isinstance(actor, ThompsonActor)
    first = actor.perturbations.clone()
    actor.start(np.array([True, False]))
    assert not torch.equal(actor.perturbations[0], first[0])
    assert torch.equal(actor.perturbations[1], first[1])
    assert agent.actors[0].action_noise == 1.0
    assert not agent.perturbations.any(), "a player's draws are its own"


def same(one: Any, other: Any) -> bool:
    """Whether two parts of a state are equal, bit for bit."""
    pairs = zip(*(torch.utils._pytree.tree_leaves(state) for state in (one, other)), strict=True)
    return all(torch.equal(x, y) if isinstance(x, Tensor) else x == y for x, y in pairs)


def same_state(one: SuccessorAgent, other: SuccessorAgent) -> None:
    """Networks, optimiser, posterior, draws, counters, random streams and replay are equal, bit for bit."""
    states = [agent.state_dict() | {"replay": agent.replay.state_dict()} for agent in (one, other)]
    mine, theirs = (torch.utils._pytree.tree_flatten_with_path(state)[0] for state in states)
    assert len(mine) == len(theirs) > 50
    for (path, x), (_, y) in zip(mine, theirs, strict=True):
        assert torch.equal(x, y) if isinstance(x, Tensor) else x == y, path


def test_evaluation_leaves_training_as_it_was() -> None:
    one, other = (SuccessorAgent(small_config(steps=300), vector_spec(16)) for _ in range(2))
    envs = [make_env(agent.config) for agent in (one, other)]
    train(one, envs[0])
    log = ListLog()
    other.config = small_config(steps=300, eval_every=50)
    train(other, envs[1], log)
    assert len(log.values_of("eval/return")) == 6
    evaluate(other, 2, policy="sample")
    same_state(one, other)


def test_a_resumed_agent_goes_on_as_the_one_that_never_stopped(tmp_path: Path) -> None:
    """Through a checkpoint on disk, between two draws; both begin new episodes there."""
    settings: dict[str, Any] = {"learning": {"every": 2}, "exploration": {"random_steps": 50, "draw_every": 30}}
    straight, resumed = small_agent(steps=400, **settings), small_agent(steps=700, **settings)
    train(straight, script())
    restore(save(tmp_path, straight), resumed)
    same_state(straight, resumed)
    assert (straight.absorbed < straight.replay.complete()).any(), "nothing waits for the posterior"
    straight.config = resumed.config
    for agent in (straight, resumed):
        train(agent, script())
    assert straight.step == 700
    same_state(straight, resumed)


def test_an_undone_update_is_due_again() -> None:
    """With its streams: the same draw and the same gradient step, from the same posterior."""
    agent = small_agent(steps=160, learning={"every": 20}, exploration={"random_steps": 50, "draw_every": 20})
    train(agent, script())
    agent.step = 170
    before = copy.deepcopy(agent.state_dict())
    undo, networks = agent.undoing(), copy.deepcopy(agent.networks.state_dict())
    agent.update()
    once = copy.deepcopy(agent.state_dict())
    undo(True)
    agent.networks.load_state_dict(networks)
    agent._sums.copy_(before["sums"])
    agent._summed = before["counters"]["_summed"]
    for name in ("posterior", "perturbations", "absorbed", "draws", "random"):
        assert same(agent.state_dict()[name], before[name]), name
        assert not same(once[name], before[name]), name
    agent.update()
    assert torch.equal(agent.perturbations, once["perturbations"])
    assert torch.equal(agent._sums[:3], once["sums"][:3])


def test_groups_of_environments_have_actors_of_their_own() -> None:
    agent = small_agent(num_envs=4, env_groups=2)
    agent.perturbations.copy_(torch.arange(4.0)[:, None].expand(4, 8))
    assert [actor.perturbations[:, 0].tolist() for actor in agent.actors] == [[0, 1], [2, 3]]
    first, second = (actor.rng.random(4).tolist() for actor in agent.actors)
    assert first != second


@pytest.mark.parametrize("num_envs", [1, 3])
def test_graphs_learn_and_act_as_eager_steps_do(num_envs: int) -> None:
    """Gradient steps and actions replayed from graphs, over draws, new posteriors and copies into the target."""
    settings = {"num_envs": num_envs, "steps": 250, "exploration": {"random_steps": 50, "draw_every": 20}}
    eager, captured = small_agent(**settings), small_agent(**settings)
    cuda = StandIn()
    captured.execution = Execution(captured.device, cuda_graphs=True, primitives=Cuda(torch.device("cpu"), cuda))
    captured.gradient_step = make_step(
        captured.networks, captured.posterior.root, captured.optimiser, captured.config.learning, captured.execution
    )
    for agent in (eager, captured):
        agent.actors = agent._training_actors([5])
    captured.update = as_on_a_gpu(captured.update)  # type: ignore[method-assign]
    for agent in (eager, captured):
        train(agent, script(num_envs))
    assert captured.execution.failures == []
    assert len(cuda.graphs) == 2, "one for learning, one for acting"
    assert min(graph.replays for graph in cuda.graphs) > 50
    for (name, x), y in zip(eager.networks.named_parameters(), captured.networks.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6, msg=name)
    frames = np.random.default_rng(0).normal(size=(30, 1, 3)).astype(np.float32)
    for policy in ("greedy", "sample"):
        players = eager.player(0, policy), captured.player(0, policy)
        for frame in frames:
            assert players[0].act(frame) == players[1].act(frame)
    assert len(cuda.graphs) == 3, "all players use one graph"


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_steps_agree(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced, and with Inductor's code."""
    monkeypatch.setattr("psdrl.runtime.execution._compiled", lambda f: torch.compile(f, backend=backend))
    eager, compiled = small_agent(), small_agent()
    compiled.execution = Execution(compiled.device, compile=True)
    compiled.gradient_step = make_step(
        compiled.networks, compiled.posterior.root, compiled.optimiser, compiled.config.learning, compiled.execution
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
    for (name, x), y in zip(
        eager.networks.online.named_parameters(), compiled.networks.online.parameters(), strict=True
    ):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-5, msg=name)


def test_from_the_command_line(cli_run: Run) -> None:
    """Train, resume, evaluate by both policies; another policy is refused."""
    flags = ("--algo", "successor", "--env", "deepsea-4", "--preset", "debug", "--device", "cpu", "--logdir", "run")
    first = cli_run("train", *flags, "--steps", "300")
    assert first.code == 0, first.err
    assert "beta 0.001 (a standard deviation)" in first.out
    again = cli_run("train", *flags, "--steps", "400")
    assert "resumed at step 300" in again.out
    for policy in ("greedy", "sample"):
        played = cli_run("evaluate", "run", "--episodes", "2", "--policy", policy)
        assert played.code == 0, played.err
        assert f"policy {policy}" in played.out
    refused = cli_run("evaluate", "run", "--policy", "vote")
    assert refused.code == 2
    assert "sample" in refused.err


def test_deepsea_is_explored() -> None:
    """Five times right in a row: a random policy finds it once in 32 episodes and gains nothing from it."""
    agent = SuccessorAgent(configure(algo="successor", env="deepsea-5", device="cpu", seed=1), vector_spec(25))
    env, log = make_env(agent.config), ListLog()
    train(agent, env, log, lambda: agent.episodes >= 200)
    env.close()
    assert np.mean(np.array(log.values_of("train/return")[-50:]) > 0.5) > 0.9
    assert evaluate(agent, 1)[0] == pytest.approx(0.99)
