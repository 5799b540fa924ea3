"""DreamerV2 as an agent: when it learns, what it stores, how it plays, how it is saved; graphs; a bandit to learn."""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from psdrl.agents.dreamer.acting import LatentActor, make_decision
from psdrl.agents.dreamer.agent import NUMBERS, REPORT_EVERY, DreamerAgent
from psdrl.agents.dreamer.learning import make_steps, scan
from psdrl.agents.dreamer.networks import States
from psdrl.agents.dreamer.presets import PRESETS
from psdrl.agents.dreamer.settings import DreamerConfig
from psdrl.agents.registry import configure
from psdrl.envs import make_env
from psdrl.envs.vector import EnvSpec, Step
from psdrl.errors import UserError
from psdrl.run.checkpoint import restore, save
from psdrl.run.evaluation import evaluate
from psdrl.run.loop import train
from psdrl.runtime.execution import Execution
from psdrl.runtime.graphs import Cuda
from tests.conftest import Run
from tests.helpers import ListLog, ScriptedEnv, ScriptedEpisode, vector_spec
from tests.recorder import StandIn, as_on_a_gpu


def small_config(**settings: Any) -> DreamerConfig:
    settings = {"env": "deepsea-4", "preset": "debug", "device": "cpu", "eval_every": 0} | settings
    return configure(algo="dreamer", **settings)


def small_agent(**settings: Any) -> DreamerAgent:
    return DreamerAgent(small_config(**settings), vector_spec())


def script(num_envs: int = 1, length: int = 7) -> ScriptedEnv:
    ends = ("terminated", "truncated")
    return ScriptedEnv([[ScriptedEpisode(length, end) for end in ends] for _ in range(num_envs)])


def test_the_papers_settings() -> None:
    """PSDRL's table for Dv2, and what the released configuration adds."""
    config = configure(algo="dreamer", game="Pong", preset="paper", device="cpu")
    model, behaviour, learning = config.model, config.behaviour, config.learning
    assert (model.latents, model.classes, model.recurrent, model.units, model.depth) == (32, 32, 600, 600, 48)
    assert model.heads == behaviour.layers == (400, 400, 400, 400)
    assert (model.kl_weight, model.kl_balance, model.discount_weight) == (0.1, 0.8, 5.0)
    assert (model.learning_rate, behaviour.actor_rate, behaviour.critic_rate) == (2e-4, 4e-5, 1e-4)
    assert (behaviour.horizon, behaviour.discount, behaviour.trace, behaviour.entropy) == (15, 0.999, 0.95, 1e-3)
    assert (behaviour.target_every, learning.every, learning.batch, learning.length) == (100, 8, 16, 50)
    assert (learning.clip, learning.epsilon, learning.decay) == (100, 1e-5, 1e-6)
    assert (config.replay.capacity, config.replay.sequences, config.reward_transform) == (2_000_000, "within", "tanh")
    assert (config.exploration.random_steps, config.steps, config.atari.size) == (50_000, 1_000_000, 64)
    assert (
        len(DreamerAgent.workload(config, EnvSpec("Pong", "image", (1, 64, 64), "uint8", 6, "")).updates()) == 118_750
    )


@pytest.mark.parametrize("name", [*(name for name in PRESETS if name != "paper"), "auto"])
@pytest.mark.parametrize("env", ["deepsea-5", "minatar/breakout", "CartPole-v1", "game"])
def test_every_preset_makes_an_agent_that_acts_and_learns(name: str, env: str) -> None:
    where = {"game": "Pong", "env_backend": "ale"} if env == "game" else {"env": env}
    sizes = {"batch": 2, "length": 3}
    config = configure(algo="dreamer", preset=name, device="cpu", replay={"capacity": 100}, learning=sizes, **where)
    envs = make_env(config)
    agent = DreamerAgent(config, envs.spec)
    step = envs.reset()
    agent.begin(0, step)
    agent.step = 10**6  # past the random steps
    for t in range(4):
        actions = agent.actors[0].act(step)
        outcome = envs.step(actions)
        agent.observe(0, actions, outcome._replace(truncated=np.array([t == 3])))
        step = outcome.observation
    assert agent.update_due()
    before = copy.deepcopy(agent.networks.state_dict())
    agent.update()
    envs.close()
    same = [key for key, x in agent.networks.state_dict().items() if x.equal(before[key])]
    expected = {"world.mean", "world.deviation", *(key for key in before if key.startswith("slow_critic"))}
    assert set(same) <= expected | {"world.recurrent.from_action.weight"}, "untrained"
    assert agent.learned == 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"model": {"latents": 0}}, "--model.latents is 0"),
        ({"model": {"kl_balance": 1.5}}, "--model.kl-balance"),
        ({"model": {"heads": (0,)}}, "must be positive"),
        ({"behaviour": {"discount": 1.0}}, "--behaviour.discount"),
        ({"behaviour": {"horizon": 1}}, "--behaviour.horizon"),
        ({"behaviour": {"actor_rate": 0.0}}, "--behaviour.actor-rate"),
        ({"learning": {"decay": -1.0}}, "--learning.decay"),
        ({"learning": {"length": 2000}}, "--replay.capacity 1000"),
        ({"steps": 0}, "--steps"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        small_config(**settings)


def counted(agent: DreamerAgent) -> tuple[list[int], list[int]]:
    """Steps at which it learns, and at which the slow critic is copied."""
    learned: list[int] = []
    copied: list[int] = []
    learn, update_target = agent._learn, agent.networks.update_target

    def noted(phase: Any) -> Tensor:
        learned.append(agent.step)
        return learn(phase)

    def copying() -> None:
        copied.append(len(learned))
        update_target()

    agent._learn, agent.networks.update_target = noted, copying  # type: ignore[method-assign]
    return learned, copied


def test_when_it_learns_and_copies() -> None:
    """Random until step 20, then an update every 3 steps; a copy after every fourth."""
    agent = small_agent(
        steps=60, learning={"every": 3}, exploration={"random_steps": 20}, behaviour={"target_every": 4}
    )
    learned, copied = counted(agent)
    train(agent, script())
    assert learned == list(range(20, 60, 3))
    assert copied == [4, 8, 12]
    assert agent.updates == agent.learned == len(learned)
    slow, critic = agent.networks.slow_critic[0].weight, agent.networks.critic[0].weight
    assert not slow.equal(critic)


def test_learning_waits_for_a_first_sequence_and_does_not_make_up_for_it() -> None:
    """No episode has ended before step 7."""
    agent = small_agent(steps=15, learning={"every": 2, "length": 4}, exploration={"random_steps": 0})
    learned, _ = counted(agent)
    train(agent, script())
    assert learned == [8, 10, 12, 14]


def test_many_environments_take_as_many_gradient_steps() -> None:
    """8 environments step together: 4 gradient steps each time, not one."""
    agent = small_agent(steps=200, num_envs=8, learning={"every": 2}, exploration={"random_steps": 64})
    learned, _ = counted(agent)
    train(agent, script(8))
    assert len(learned) == len(range(64, learned[-1] + 1, 2))
    assert len(set(learned)) == agent.updates < len(learned) / 3


def test_reports_are_means_since_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psdrl.agents.dreamer.agent.REPORT_EVERY", 4)
    agent = small_agent(steps=60, learning={"every": 2}, exploration={"random_steps": 20})
    learn, found = agent._learn, []

    def kept(phase: Any) -> Tensor:
        found.append(learn(phase))
        return found[-1]

    agent._learn, log = kept, ListLog()  # type: ignore[method-assign]
    train(agent, script(), log)
    assert log.steps_with("loss/image") == [26, 34, 42, 50, 58]
    for i, name in enumerate(NUMBERS):
        wanted = [np.mean([float(x[i]) for x in found[j : j + 4]]) for j in range(0, 20, 4)]
        assert log.values_of(name) == pytest.approx(wanted, rel=1e-4, abs=1e-6), name
    assert [seconds > 0 for seconds in log.values_of("time/model") + log.values_of("time/behaviour")] == [True] * 10
    assert REPORT_EVERY == 100


@pytest.mark.parametrize(
    ("transform", "wanted"), [("sign", [-1, 0, 1]), ("tanh", np.tanh([-5, 0, 0.5])), ("none", [-5, 0, 0.5])]
)
def test_what_is_stored(transform: str, wanted: list[float]) -> None:
    """Transformed rewards; a time limit is no end; a row that starts an episode is left out."""
    agent = small_agent(reward_transform=transform, model={"standardise": True})
    agent.begin(0, np.zeros((1, 3), np.float32))
    rewards, ended, cut = [-5, 0, 99, 0.5], [False, True, False, False], [False, False, False, True]
    for t in range(4):
        flags = (np.array([flag]) for flag in (ended[t], cut[t], t == 2, ended[t] or cut[t], False))
        step = Step(np.full((1, 3), t, np.float32), np.array([rewards[t]], np.float32), *flags)
        agent.observe(0, np.array([1]), step)
    assert agent.replay.rewards[[0, 1, 3]].tolist() == pytest.approx(list(wanted))
    assert agent.replay.terminated[:5].tolist() == [0, 1, 0, 0, 0]
    assert agent.moments is not None
    assert (agent.moments.count, agent.moments.mean.tolist()) == (5, [6 / 5] * 3)


def test_an_episode_is_followed_as_the_model_is_trained() -> None:
    """Acting through an episode gives the states of a scan over its observations and actions, from the same noise."""
    agent = small_agent(exploration={"random_steps": 0})
    actor, world = agent.actors[0], agent.networks.world
    rng, frames = copy.deepcopy(actor.rng), np.random.default_rng(0).normal(size=(6, 1, 3)).astype(np.float32)
    actor.start(np.ones(1, bool))
    states, actions = [], []
    for t, frame in enumerate(frames):
        if t == 4:  # another episode begins
            actor.start(np.ones(1, bool))
        actions.append(int(actor.act(frame)[0]))
        states.append(actor.state)
    noise = []
    for _ in frames:
        rng.random(1)
        rng.integers(2, size=1)
        noise.append(rng.random((1, actor.groups + 1), np.float32))
    first = torch.tensor([1.0, 0, 0, 0, 1, 0])[:, None]
    before = torch.tensor([0, *actions[:-1]])[:, None]
    found, _ = scan(
        world, world.inputs(torch.from_numpy(frames)), before, first, torch.tensor(np.stack(noise))[..., :-1]
    )
    torch.testing.assert_close(found.hidden, torch.stack([state.hidden for state in states]), rtol=1e-5, atol=1e-6)
    assert found.sample.equal(torch.stack([state.sample for state in states]))


def test_random_steps_do_not_ask_the_networks() -> None:
    agent = small_agent(exploration={"random_steps": 5})
    actor, asked = agent.actors[0], []
    decide = actor._decide
    actor._decide = lambda *inputs: (asked.append(inputs[4].item()), decide(*inputs))[1]  # type: ignore[func-returns-value]
    frame = np.zeros((1, 3), np.float32)
    actor.start(np.ones(1, bool))
    for agent.step in range(8):
        actor.act(frame)
    assert asked == [0, 1, 1], "the episode begins for them where they are first asked"


def test_players() -> None:
    """By default the most likely action; the latent state is drawn in any case; epsilon is a share of random ones."""
    agent = small_agent(exploration={"random_steps": 10**6})
    agent.networks.actor[-1].weight.data.zero_()
    agent.networks.actor[-1].bias.data = torch.tensor([0.0, 1.0])
    frames = np.zeros((400, 3), np.float32)
    modes = agent.player(1, num_envs=400)
    assert isinstance(modes, LatentActor)
    assert modes.act(frames).mean() == 1
    assert len(modes.state.sample.unique(dim=0)) > 3
    share = 1 / (1 + np.exp(-1))
    assert agent.player(1, "sample", 400).act(frames).mean() == pytest.approx(share, abs=4 * 0.5 / 20)
    assert agent.player(1, "mode", 400, epsilon=1.0).act(frames).mean() == pytest.approx(0.5, abs=4 * 0.5 / 20)


def test_evaluation_leaves_training_as_it_was() -> None:
    one, other = (DreamerAgent(small_config(steps=300), vector_spec(16)) for _ in range(2))
    envs = [make_env(agent.config) for agent in (one, other)]
    train(one, envs[0])
    log = ListLog()
    other.config = small_config(steps=300, eval_every=50)
    train(other, envs[1], log)
    assert len(log.values_of("eval/return")) == 6
    evaluate(other, 2, policy="sample")
    same_state(one, other)


def same_state(one: DreamerAgent, other: DreamerAgent) -> None:
    """Networks, optimisers, counters, random streams, moments and replay are equal, bit for bit."""
    states = [agent.state_dict() | {"replay": agent.replay.state_dict()} for agent in (one, other)]
    mine, theirs = (torch.utils._pytree.tree_flatten_with_path(state)[0] for state in states)
    assert len(mine) == len(theirs) > 100
    for (path, x), (_, y) in zip(mine, theirs, strict=True):
        assert torch.equal(x, y) if isinstance(x, Tensor) else x == y, path


def test_a_resumed_agent_goes_on_as_the_one_that_never_stopped(tmp_path: Path) -> None:
    """Through a checkpoint on disk; both begin new episodes there, as every run that is continued does."""
    settings: dict[str, Any] = {"exploration": {"random_steps": 50}, "model": {"standardise": True}}
    straight, resumed = small_agent(steps=200, **settings), small_agent(steps=400, **settings)
    train(straight, script())
    restore(save(tmp_path, straight), resumed)
    same_state(straight, resumed)
    straight.config = resumed.config
    for agent in (straight, resumed):
        train(agent, script())
    assert straight.step == 400
    same_state(straight, resumed)


def test_actors_refuse_states_that_cannot_be() -> None:
    actor = small_agent().actors[0]
    good = copy.deepcopy(actor.state_dict())
    actor.load_state_dict(good)
    for name, value in (("last", [7]), ("running", [0.5])):
        with pytest.raises(ValueError, match="last action"):
            actor.load_state_dict(good | {name: np.array(value)})


def test_a_checkpoint_of_a_gpu_is_no_order_to_capture() -> None:
    agent = small_agent()
    state = copy.deepcopy(agent.state_dict())
    state["optimisers"]["actor"]["param_groups"][0]["capturable"] = True
    agent.load_state_dict(state)
    assert not agent.optimisers["actor"].param_groups[0]["capturable"]


def test_what_an_update_changed_is_put_back() -> None:
    """All of it, and with the streams the same update gives the same numbers again."""
    agent = small_agent(steps=104, exploration={"random_steps": 100}, model={"standardise": True})
    train(agent, script())
    assert agent.learned == 1
    agent.step += 8
    agent.observe(0, np.array([0]), script().step(np.array([0])))  # other moments
    before, undo = copy.deepcopy(agent.state_dict()), agent.undoing()
    agent.update()
    after = copy.deepcopy(agent.state_dict())
    undo(True)
    equal(agent.state_dict(), before)
    agent.update()
    equal(agent.state_dict(), after)


def equal(one: Any, other: Any) -> None:
    mine, theirs = (torch.utils._pytree.tree_flatten_with_path(state)[0] for state in (one, other))
    for (path, x), (_, y) in zip(mine, theirs, strict=True):
        assert torch.equal(x, y) if isinstance(x, Tensor) else x == y, path


def test_groups_of_environments_have_actors_of_their_own() -> None:
    agent = small_agent(num_envs=4, env_groups=2)
    assert [actor.last.shape for actor in agent.actors] == [(2,), (2,)]
    first, second = (actor.rng.random(4).tolist() for actor in agent.actors)
    assert first != second


def with_graphs(agent: DreamerAgent) -> StandIn:
    """The agent as on a GPU, with a recording device under its steps."""
    cuda = StandIn()
    agent.execution = Execution(agent.device, cuda_graphs=True, primitives=Cuda(torch.device("cpu"), cuda))
    agent._steps = make_steps(agent.networks, agent.optimisers, agent.config, agent.execution)
    agent.actors = [agent._actor(agent.config.num_envs, 5)]
    agent.update = as_on_a_gpu(agent.update)  # type: ignore[method-assign]
    return cuda


@pytest.mark.parametrize("num_envs", [1, 5])
def test_graphs_learn_and_act_as_eager_steps_do(num_envs: int) -> None:
    """Both gradient steps, actions and players, replayed from graphs, over copies into the slow critic."""
    settings = {"num_envs": num_envs, "steps": 300, "exploration": {"random_steps": 50}}
    eager, captured = small_agent(**settings), small_agent(**settings)
    eager.actors = [eager._actor(num_envs, 5)]
    cuda = with_graphs(captured)
    for agent in (eager, captured):
        train(agent, script(num_envs))
    assert captured.execution.failures == []
    assert len(cuda.graphs) == 3, "model, behaviour and acting"
    assert min(graph.replays for graph in cuda.graphs) > 25
    for (name, x), y in zip(eager.networks.named_parameters(), captured.networks.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6, msg=name)
    players = eager.player(0), captured.player(0)
    for frame in np.random.default_rng(0).normal(size=(30, 1, 3)).astype(np.float32):
        assert players[0].act(frame) == players[1].act(frame)
    captured.player(1).act(np.zeros((1, 3), np.float32))
    assert len(cuda.graphs) == 4, "a second player uses the first one's graph"


def filled(agent: DreamerAgent) -> None:
    """An episode of 20 steps, and an update that is due."""
    rng = np.random.default_rng(0)
    agent.begin(0, rng.normal(size=(1, 3)).astype(np.float32))
    for t in range(20):
        flags = (np.array([flag]) for flag in (t == 19, False, False, t == 19, False))
        step = Step(rng.normal(size=(1, 3)).astype(np.float32), rng.normal(size=1).astype(np.float32), *flags)
        agent.observe(0, np.array([rng.integers(2)]), step)
    agent.step = 100


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_steps_agree(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch traces them, and the code it makes of that, which takes a minute to compile."""
    monkeypatch.setattr("psdrl.runtime.execution._compiled", partial(torch.compile, backend=backend, fullgraph=True))
    eager, compiled = small_agent(), small_agent()
    compiled.execution = Execution(compiled.device, compile=True)
    compiled._steps = make_steps(compiled.networks, compiled.optimisers, compiled.config, compiled.execution)
    for agent in (eager, compiled):
        filled(agent)
        agent.update()
    torch.testing.assert_close(eager._sums, compiled._sums, rtol=1e-3, atol=1e-5)
    for (name, x), y in zip(eager.networks.named_parameters(), compiled.networks.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-5, msg=name)


def test_bfloat16_is_for_products_only() -> None:
    """Samples, states, losses and parameters stay float32, and an update comes near that of float32."""
    full, half = small_agent(precision="fp32"), small_agent(precision="bf16")
    for agent in (full, half):
        filled(agent)
        agent.update()
    assert half._sums[:4].tolist() == pytest.approx(full._sums[:4].tolist(), rel=0.05, abs=0.05)
    noise = torch.zeros(1, half.config.model.latents + 1)
    state = half.networks.world.recurrent.start(1)
    decide = make_decision(half.networks, half.execution, "mode")
    _, *state = decide(torch.ones(1, 3), *state, torch.zeros(1, dtype=torch.long), torch.zeros(1), noise)
    assert [x.dtype for x in States(*state)] == [torch.float32] * 2


def test_from_the_command_line(cli_run: Run, tmp_path: Path) -> None:
    """Train, resume, evaluate by both policies; another policy is refused."""
    flags = ("--algo", "dreamer", "--env", "deepsea-4", "--preset", "debug", "--device", "cpu", "--logdir", "run")
    first = cli_run("train", *flags, "--steps", "200")
    assert first.code == 0, first.err
    assert "3 x 4 classes, 8 GRU units" in first.out
    again = cli_run("train", *flags, "--steps", "300")
    assert "resumed at step 200" in again.out
    for policy in ("mode", "sample"):
        played = cli_run("evaluate", "run", "--episodes", "2", "--policy", policy)
        assert played.code == 0, played.err
        assert f"policy {policy}" in played.out
    refused = cli_run("evaluate", "run", "--policy", "mean")
    assert refused.code == 2
    assert "mode" in refused.err
