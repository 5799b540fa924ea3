"""The training loop on a scripted environment: what is stored, counted, reset and when updates happen."""

from itertools import accumulate

import numpy as np
import pytest
import torch

from psdrl.agents.psdrl import settings
from psdrl.agents.psdrl.acting import Actor
from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.envs.vector import GroupedEnv, Step
from psdrl.errors import UserError
from psdrl.run.loop import train
from tests.helpers import ListLog, ScriptedEnv, ScriptedEpisode, hand_hidden, small_config, stored_episodes

SCRIPT = [
    [ScriptedEpisode(3, "terminated"), ScriptedEpisode(5, "truncated"), ScriptedEpisode(1, "both")],
    [ScriptedEpisode(4, "truncated"), ScriptedEpisode(2, "terminated")],
    [ScriptedEpisode(1, "terminated")],
]


class WatchedEnv(ScriptedEnv):
    """Notes the agent's hidden state after each action of an episode's first step, and where rows only start."""

    agent: PsdrlAgent

    def __init__(self, script: list[list[ScriptedEpisode]]) -> None:
        super().__init__(script)
        self.first: list[tuple[int, np.ndarray, int, np.ndarray]] = []
        self.started_rows = 0

    def recv(self) -> Step:
        before, actions = self._observation(), self._actions
        hidden = self.agent.actor.hidden.double().numpy().copy()
        for i, (_, t) in enumerate(self._at):
            if t == 0 and not self._ended[i]:
                self.first.append((i, before[i].astype(np.float64), int(actions[i]), hidden[i]))
        step = super().recv()
        self.started_rows += int(step.started.sum())
        return step


def run(num_envs: int, steps: int, **changes: object) -> tuple[PsdrlAgent, WatchedEnv, ListLog]:
    options: dict = {
        "reward_transform": "none",
        "eval_every": 0,
        "checkpoint_every": 0,
        "policy": {"update_every": (250, 10**6)},
    }
    config = small_config(num_envs=num_envs, steps=steps, **(options | changes))
    env, log = WatchedEnv(SCRIPT[:num_envs]), ListLog()
    agent = PsdrlAgent(config, env.spec)
    env.agent = agent
    train(agent, env, log)
    return agent, env, log


@pytest.mark.parametrize("num_envs", [1, 2, 3])
@pytest.mark.parametrize("released", [(), ("time-limit-ends",)], ids=["paper", "released"])
def test_stored_transitions(num_envs: int, released: tuple[str, ...]) -> None:
    """Each episode as it was played: own observations, actions, rewards; no row that only starts an episode."""
    agent, env, log = run(num_envs, 60, replay={"capacity": 2000}, released=released)
    assert env.started_rows > 10, "no autoreset happened"
    episodes = stored_episodes(agent.replay)
    assert len(episodes) == agent.episodes == len(log.steps_with("train/return"))
    for k, episode in enumerate(episodes):
        i, number, _ = episode["observations"][0].astype(int)
        plan = env.script[i][number % len(env.script[i])]
        name = f"environment {i}, episode {number}"
        wanted = [(i, number, t) for t in range(plan.length + 1)]
        np.testing.assert_array_equal(episode["observations"], wanted, err_msg=name)
        np.testing.assert_array_equal(episode["actions"], [env.taken[i, number, t] for t in range(plan.length)])
        np.testing.assert_array_equal(episode["rewards"], [100 * i + 10 * number + t for t in range(plan.length)])
        ends = plan.end != "truncated" or bool(released)
        np.testing.assert_array_equal(episode["terminated"], [0.0] * (plan.length - 1) + [float(ends)], err_msg=name)
        assert log.values_of("train/return")[k] == episode["rewards"].sum(), name
        assert log.values_of("train/length")[k] == plan.length, name


@pytest.mark.parametrize("num_envs", [1, 2, 3])
def test_steps_count_transitions_over_all_environments(num_envs: int) -> None:
    agent, env, _ = run(num_envs, 60)
    assert agent.step == len(env.taken) == env.calls * num_envs - env.started_rows
    assert 60 <= agent.step < 60 + num_envs


@pytest.mark.parametrize("num_envs", [1, 3])
def test_hidden_state_starts_at_zero_with_each_episode(num_envs: int) -> None:
    """After the first action of every episode h is the GRU's output from h = 0, without updates in between."""
    agent, env, _ = run(num_envs, 40, policy={"update_every": (10**6,)})
    assert len(env.first) >= 10
    for i, z, action, hidden in env.first:
        wanted = hand_hidden(agent.models.forward_model, z[None], np.array([action]), np.zeros((1, 8)))[0]
        np.testing.assert_allclose(hidden, wanted, atol=1e-5, err_msg=f"environment {i}, observation {z}")


def steps_after_each_call(env: ScriptedEnv) -> list[int]:
    """Step counts after 0, 1, 2, ... calls, from the script alone."""
    counts = []
    lengths = [[e.length for e in script] for script in env.script]
    for plan in lengths:
        row: list[int] = []
        k = 0
        while len(row) < env.calls:
            row += [1] * plan[k % len(plan)] + [0]
            k += 1
        counts.append(row[: env.calls])
    return [0, *accumulate(sum(column) for column in zip(*counts, strict=True))]


@pytest.mark.parametrize("num_envs", [1, 2, 3])
def test_update_times(num_envs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first step at or past each multiple of m: 7 until step 28, then 14; none before an episode has ended."""
    monkeypatch.setattr(settings, "EARLY_STEPS", 28)
    agent, env, log = run(num_envs, 100, policy={"update_every": (7, 14)})
    times = steps_after_each_call(env)
    multiples = [7, 14, 21, 28, 42, 56, 70, 84, 98]
    wanted = [next(step for step in times if step >= multiple) for multiple in multiples]
    assert log.steps_with("loss/forward") == wanted
    assert agent.updates == len(multiples)


def test_nothing_is_learned_before_an_episode_has_ended() -> None:
    env = ScriptedEnv([[ScriptedEpisode(25, "terminated")]])
    policy = {"update_every": (10,)}
    config = small_config(steps=41, eval_every=0, policy=policy, reward_transform="none")
    agent, log = PsdrlAgent(config, env.spec), ListLog()
    train(agent, env, log)
    assert log.steps_with("loss/forward") == [30, 40]


def test_sequence_length_is_logged_when_it_shrinks() -> None:
    policy = {"update_every": (8,)}
    _, _, log = run(1, 17, policy=policy, replay={"batch": 4, "length": 4})
    assert log.values_of("train/sequence_length") == [4, 4]
    _, _, log = run(1, 17, policy=policy, replay={"batch": 4, "length": 6})
    assert log.values_of("train/sequence_length") == [3, 1], "the shortest episode so far, as none has 6 steps"


@pytest.mark.parametrize(
    ("transform", "stored"), [("tanh", np.tanh), ("none", np.array), ("clip", lambda r: np.clip(r, -1, 1))]
)
def test_reward_transform(transform: str, stored) -> None:
    agent, _, log = run(1, 20, reward_transform=transform)
    episode = stored_episodes(agent.replay)[0]
    np.testing.assert_allclose(episode["rewards"], stored(np.array([0.0, 1.0, 2.0])), rtol=1e-6)
    assert log.values_of("train/return")[0] == 3, "returns are shown untransformed"


def test_evaluations_happen_at_multiples() -> None:
    config = small_config(steps=50, eval_every=20, eval_episodes=2, reward_transform="none")
    from psdrl.envs import make_env

    env = make_env(config)
    agent, log = PsdrlAgent(config, env.spec), ListLog()
    train(agent, env, log)
    env.close()
    assert log.steps_with("eval/return") == [20, 40]


OPTIONS: dict = {
    "reward_transform": "none",
    "eval_every": 0,
    "checkpoint_every": 0,
    "policy": {"update_every": (25,), "epsilon": 0.3},
    "replay": {"capacity": 2000, "batch": 4, "length": 3},
}
SIX = [*SCRIPT, *([ScriptedEpisode(n, "truncated"), ScriptedEpisode(n + 2, "terminated")] for n in (2, 5, 7))]


def run_groups(groups: int, steps: int = 200, env: type[ScriptedEnv] = ScriptedEnv) -> tuple[PsdrlAgent, GroupedEnv]:
    """Six environments in this many groups, behind one object even if it is one."""
    config = small_config(num_envs=6, env_groups=groups, steps=steps, **OPTIONS)
    size = 6 // groups
    grouped = GroupedEnv([env(SIX[i : i + size], offset=i) for i in range(0, 6, size)])
    agent = PsdrlAgent(config, grouped.spec)
    train(agent, grouped)
    return agent, grouped


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_groups_store_whole_episodes(groups: int) -> None:
    """Every stored episode is one environment's, in order, with the actions that were taken in it; all is counted."""
    agent, env = run_groups(groups)
    taken = {key: action for part in env.groups for key, action in part.taken.items()}  # type: ignore[attr-defined]
    assert agent.updates >= 7
    assert 200 <= agent.step == len(taken) < 200 + 6, "what was begun is counted"
    episodes = stored_episodes(agent.replay)
    assert {int(episode["observations"][0, 0]) for episode in episodes} == set(range(6))
    ends = 0
    for episode in episodes:
        i, number, _ = episode["observations"][0].astype(int)
        plan = SIX[i][number % len(SIX[i])]
        name = f"environment {i}, episode {number}"
        steps = range(plan.length)
        np.testing.assert_array_equal(
            episode["observations"], [(i, number, t) for t in range(plan.length + 1)], err_msg=name
        )
        np.testing.assert_array_equal(episode["actions"], [taken[i, number, t] for t in steps], err_msg=name)
        np.testing.assert_array_equal(episode["rewards"], [100 * i + 10 * number + t for t in steps], err_msg=name)
    for i, script in enumerate(SIX):
        steps = sum(key[0] == i for key in taken)
        number = 0
        while steps >= script[number % len(script)].length:
            steps -= script[number % len(script)].length
            number += 1
        ends += number
    assert len(episodes) == agent.episodes == ends, "an episode for each end that the script has reached"


def test_one_group_is_the_ungrouped_run() -> None:
    """A GroupedEnv of one part, and that part alone: the same actions, networks and counters."""
    agent, env = run_groups(1)
    alone = ScriptedEnv(SIX)
    other = PsdrlAgent(agent.config, alone.spec)
    train(other, alone)
    assert alone.taken == env.groups[0].taken  # type: ignore[attr-defined]
    assert agent.updates == other.updates
    assert (agent.step, agent.episodes) == (other.step, other.episodes)
    for one, two in zip(agent.models.parameters(), other.models.parameters(), strict=True):
        assert one.equal(two)


def test_groups_have_random_streams_of_their_own() -> None:
    actors = {
        groups: PsdrlAgent(small_config(num_envs=6, env_groups=groups), ScriptedEnv(SIX).spec).actors
        for groups in (1, 3)
    }
    assert [len(actor.hidden) for actor in actors[3]] == [2, 2, 2]
    assert actors[1][0].generator.initial_seed() == actors[3][0].generator.initial_seed()
    assert len({actor.generator.initial_seed() for actor in actors[3]}) == 3


@pytest.mark.parametrize("groups", [2, 3])
def test_the_agent_acts_while_other_groups_step(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever the agent acts, after the first round, every other group is between its send and its recv."""
    stepping: set[int] = set()
    seen: list[tuple[int, set[int]]] = []

    class Noted(ScriptedEnv):
        def send(self, actions: np.ndarray) -> None:
            stepping.add(self.offset * groups // 6)
            super().send(actions)

        def recv(self) -> Step:
            stepping.remove(self.offset * groups // 6)
            return super().recv()

    act = Actor.act

    def noted(actor: Actor, *arguments: object) -> np.ndarray:
        seen.append((actor.agent.actors.index(actor), set(stepping)))
        return act(actor, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Actor, "act", noted)
    run_groups(groups, env=Noted)
    assert not stepping, "a step was never received"
    everyone = set(range(groups))
    assert [others for _, others in seen[groups:]] == [everyone - {g} for g, _ in seen[groups:]]
    assert {g for g, _ in seen} == everyone


def test_groups_that_do_not_divide_the_environments_are_refused() -> None:
    with pytest.raises(UserError, match="--env-groups is 4 but must divide --num-envs 6"):
        small_config(num_envs=6, env_groups=4)
    with pytest.raises(UserError, match="at least 1"):
        small_config(env_groups=0)


@pytest.mark.parametrize(("asked", "within"), [(0, 3), (1, 1), (2, 2), (5, 3)])
def test_a_run_has_at_most_the_threads_it_asks_for(asked: int, within: int) -> None:
    """And the process has its own number again afterwards."""
    seen: list[int] = []

    class Threads(ListLog):
        def scalars(self, step: int, values: dict[str, float]) -> None:
            seen.append(torch.get_num_threads())

    env = ScriptedEnv(SCRIPT[:1])
    agent = PsdrlAgent(small_config(steps=9, eval_every=0, checkpoint_every=0, threads=asked), env.spec)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        train(agent, env, Threads())
        after = torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {within}
    assert after == 3
