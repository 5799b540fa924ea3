"""The state of environments: a fresh vector that restores it goes on bit for bit, whatever the moment it was taken."""

import importlib.util
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

import psdrl
from psdrl.config import Config
from psdrl.envs import make_env
from psdrl.envs.minatar import GAMES
from psdrl.envs.vector import Step, VectorEnv

needs_envpool = pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="envpool is not installed")
BACKENDS = [pytest.param("envpool", marks=needs_envpool), "ale", "gymnasium"]


def stored(state: Any) -> Any:
    """A state as a file would give it back: JSON and arrays; everything else raises."""
    if isinstance(state, dict):
        assert all(isinstance(name, str) for name in state)
        return {name: stored(value) for name, value in state.items()}
    return state.copy() if isinstance(state, np.ndarray) else json.loads(json.dumps(state))


def atari(game: str = "Pong", backend: str = "ale", num_envs: int = 1, groups: int = 1, **protocol: Any) -> Config:
    several = {"num_envs": num_envs, "env_groups": groups}
    return psdrl.configure(game=game, preset="debug", device="cpu", env_backend=backend, atari=protocol, **several)


def other(env: str, num_envs: int = 1, **settings: Any) -> Config:
    return psdrl.configure(env=env, preset="debug", device="cpu", num_envs=num_envs, **settings)


def actions_of(env: VectorEnv, steps: int, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(env.spec.num_actions, size=(steps, env.num_envs))


def assert_equal(step: Step, expected: Step, where: str) -> None:
    for name, value, want in zip(Step._fields, step, expected, strict=True):
        np.testing.assert_array_equal(value, want, err_msg=f"{name}, {where}")


def check(make: Callable[[], VectorEnv], moments: list[int], tail: int = 30) -> list[Step]:
    """Play; at each moment (0: after reset) take the state, half of them with a step in flight; restore in fresh
    environments, and compare `tail` steps. Returns the steps played."""
    env = make()
    actions = actions_of(env, max(moments) + tail)
    seen, states, steps = [env.reset().copy()], {}, []
    for t, row in enumerate(actions):
        if t in moments and t % 2:
            states[t] = stored(env.state())
        env.send(row)
        if t in moments and not t % 2:
            states[t] = stored(env.state())
        step = env.recv()
        steps.append(Step(*(np.array(column) for column in step)))
        seen.append(step.observation.copy())
    env.close()
    for t, state in states.items():
        again = make()
        observation = again.restore(state)
        assert observation is not None, f"moment {t} was not restored"
        np.testing.assert_array_equal(observation, seen[t], err_msg=f"moment {t}")
        assert_equal_states(stored(again.state()), state, f"moment {t}")
        for later in range(t, t + tail):
            assert_equal(again.step(actions[later]), steps[later], f"moment {t}, step {later}")
        again.close()
    return steps


def assert_equal_states(state: Any, expected: Any, where: str) -> None:
    """A restored vector can be saved again, and says the same."""
    if isinstance(expected, dict):
        assert set(state) == set(expected), where
        for name in expected:
            assert_equal_states(state[name], expected[name], f"{where}: {name}")
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(state, expected, err_msg=where)
    else:
        assert state == expected, where


def around_an_end(steps: list[Step]) -> bool:
    """Whether environments ended at different times."""
    ends = np.array([step.terminated | step.truncated for step in steps])
    return bool((ends.any(0).all() and not (ends == ends[:, :1]).all()) or ends.shape[1] == 1)


MOMENTS = [0, 7, 24, 25, 26, 27, 61]  # 25: the end, its reset pending; 26: just started


@pytest.mark.parametrize("backend", BACKENDS)
def test_atari(backend: str) -> None:
    """Two environments that the cap ends: before an end, at it, while the reset is pending, after it."""
    steps = check(lambda: make_env(atari("Breakout", backend, 2, max_steps=25)), MOMENTS)
    assert steps[24].truncated.all()
    assert steps[25].started.all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_atari_episodes_of_different_lengths(backend: str) -> None:
    """Four games that end when they are lost, each in its own time, so that each was reset another number of times."""
    config = atari("Breakout", backend, 4, noop_max=5)
    env = make_env(config)
    env.reset()
    started = [env.step(row).started for row in actions_of(env, 700)]
    env.close()
    counts = np.cumsum(started, 0)
    apart = [t for t in range(700) if len(set(counts[t].tolist())) > 1]
    assert apart, "all games ended at the same time"
    first = int(np.flatnonzero(counts.any(1))[0])
    check(lambda: make_env(config), [first, first + 1, apart[len(apart) // 2], apart[-1]], tail=25)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "protocol",
    [
        {"sticky": 0.25, "max_steps": 25},
        {"stack": 3, "max_steps": 25},
        {"life_loss": True},
        {"sticky": 0.3, "stack": 2, "life_loss": True, "full_actions": True, "repeat": 3},
    ],
    ids=["sticky", "stack", "life loss", "all"],
)
def test_atari_beyond_the_paper(backend: str, protocol: dict[str, Any]) -> None:
    config = atari("Breakout", backend, 2, noop_max=5, **protocol)
    env = make_env(config)
    env.reset()
    steps = [env.step(row) for row in actions_of(env, 120)]
    env.close()
    ends = [t for t in range(115) if (steps[t].terminated | steps[t].truncated).any()]
    assert ends
    check(lambda: make_env(config), sorted({0, 5, ends[0], ends[0] + 1, ends[0] + 2, ends[-1], ends[-1] + 1}), tail=30)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("moments", [(25, 0), (0, 25), (25, 26), (31, 12)], ids=str)
def test_atari_environments_at_different_moments(backend: str, moments: tuple[int, int]) -> None:
    """One environment as it was at one moment, the other at another; 25 is an end whose reset is pending."""
    config = atari("Freeway", backend, 2, max_steps=25)
    env = make_env(config)
    actions = actions_of(env, 60)
    env.reset()
    states, steps = [stored(env.state())], []
    for row in actions:
        steps.append(Step(*(np.array(column) for column in env.step(row))))
        states.append(stored(env.state()))
    env.close()
    again = make_env(config)
    assert again.restore(mixed([states[t] for t in moments])) is not None
    for later in range(25):
        rows = [t + later for t in moments]
        step = again.step(np.array([actions[t, i] for i, t in enumerate(rows)]))
        expected = Step(*(np.stack([steps[t][c][i] for i, t in enumerate(rows)]) for c in range(len(Step._fields))))
        assert_equal(step, expected, f"{later} steps on")
    again.close()


def mixed(states: list[Any]) -> Any:
    """The first environment of the first state, the second of the second."""
    if "resets" not in states[0]:
        return {str(i): state[str(i)] for i, state in enumerate(states)}
    episodes = [np.split(state["actions"], state["lengths"].cumsum()[:-1])[i] for i, state in enumerate(states)]
    return states[0] | {
        "actions": np.concatenate(episodes),
        "resets": np.array([state["resets"][i] for i, state in enumerate(states)]),
        "lengths": np.array([len(episode) for episode in episodes]),
        "checksums": [state["checksums"][i] for i, state in enumerate(states)],
    }


@needs_envpool
@pytest.mark.parametrize("game", ["Pong", "Seaquest", "Qbert", "VideoPinball", "IceHockey", "TimePilot", "YarsRevenge"])
def test_envpool_games(game: str) -> None:
    """In the last three the console's memory outlives a reset."""
    check(lambda: make_env(atari(game, "envpool", 2, max_steps=40)), [40, 41, 70, 95], tail=30)


@pytest.mark.parametrize("game", ["IceHockey", "TimePilot", "YarsRevenge"])
def test_ale_games_whose_memory_outlives_a_reset(game: str) -> None:
    check(lambda: make_env(atari(game, "ale", 2, max_steps=40)), [41, 70], tail=30)


def test_groups() -> None:
    config = atari("Breakout", "ale", 4, 2, max_steps=25)
    check(lambda: make_env(config), [3, 24, 25, 26, 27, 40], tail=20)
    state = make_env(config)
    state.reset()
    fewer = make_env(replace(config, env_groups=4))
    assert fewer.restore(stored(state.state())) is None, "the state of other groups"


@pytest.mark.parametrize("env", ["deepsea-5", "deepsea-6-image"])
def test_deepsea(env: str) -> None:
    check(lambda: make_env(other(env, 2)), list(range(16)), tail=15)


@pytest.mark.parametrize("game", GAMES)
def test_minatar(game: str) -> None:
    """With everything that has a state: sticky actions, ramping, frame stack, time limit; ends at different times."""
    minatar = {"sticky": 0.2, "ramping": True, "stack": 3, "max_steps": 60}
    config = other(f"minatar/{game}", 3, minatar=minatar)
    check(lambda: make_env(config), [0, 5, 13, 29, 30, 41, *range(58, 66), 140], tail=150)


@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "FrozenLake-v1", "CliffWalking-v1"])
def test_gymnasium(name: str) -> None:
    """By their generators and the episode's actions; in FrozenLake the generator also draws the outcome of a step."""
    steps = check(lambda: make_env(other(name, 3)), [0, 1, 9, *range(198, 204), 260], tail=60)
    if name in ("CartPole-v1", "FrozenLake-v1"):
        assert around_an_end(steps)


class Whim(gymnasium.Env):
    """Every observation is drawn: by a generator that gymnasium knows, by its own, or by none that has a seed."""

    def __init__(self, source: str, length: int = 6) -> None:
        self.source, self.length = source, length
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[NDArray, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.own = np.random.default_rng(seed)
        self.t = 0
        return self.draw(), {}

    def draw(self) -> NDArray:
        sources = {"gymnasium": self.np_random, "own": self.own, "none": np.random.default_rng()}
        return sources[self.source].random(2, np.float32)

    def step(self, action: int) -> tuple[NDArray, float, bool, bool, dict]:
        self.t += 1
        return self.draw(), float(action), self.t == self.length, False, {}


@pytest.fixture
def whim() -> Iterator[str]:
    name = "psdrl-test/Whim-v0"
    gymnasium.register(name, lambda **kwargs: Whim(**kwargs), kwargs={"source": "gymnasium"})
    yield name
    del gymnasium.registry[name]


def test_a_users_environment(whim: str) -> None:
    check(lambda: make_env(other(whim, 2)), list(range(16)), tail=15)


@pytest.mark.parametrize(("source", "steps", "restored"), [("none", 3, False), ("own", 3, True), ("own", 10, False)])
def test_an_environment_that_plays_otherwise_is_not_restored(
    whim: str, source: str, steps: int, restored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generator of its own is known as long as the first episode, which began with the seed."""
    monkeypatch.setitem(gymnasium.registry[whim].kwargs, "source", source)
    env = make_env(other(whim))
    env.reset()
    for row in actions_of(env, steps):
        env.step(row)
    again = make_env(other(whim))
    assert (again.restore(stored(env.state())) is not None) == restored
    assert again.reset().shape == (1, 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_state_of_another_game_is_not_restored(backend: str) -> None:
    env = make_env(atari("Breakout", backend))
    env.reset()
    for row in actions_of(env, 20):
        env.step(row)
    again = make_env(atari("Freeway", backend))
    assert again.restore(stored(env.state())) is None
    assert make_env(atari("Breakout", backend, 2)).restore(stored(env.state())) is None
    env.close()
    again.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("what", ["an action", "a reset", "the checksum"])
def test_a_state_that_was_changed_is_not_restored(backend: str, what: str) -> None:
    """Another game comes out: the cars elsewhere after another number of no-ops, or the chicken; or the checksum is
    not that of the game."""
    env = make_env(atari("Freeway", backend, 1, max_steps=30))
    env.reset()
    for _ in range(50):
        env.step(np.array([1]))  # up
    state: Any = stored(env.state())
    env.close()
    lane = state["0"] if backend == "gymnasium" else state
    if what == "an action":
        lane["actions"][2] = 2
        if backend != "gymnasium":
            lane["all"][-17] = 2  # the same one of the 19
    elif what == "the checksum":
        name = "checksum" if backend == "gymnasium" else "checksums"
        lane[name] = lane[name] + 1 if backend == "gymnasium" else [lane[name][0] + 1]
    elif backend == "gymnasium":
        lane["generator"] = np.random.PCG64(99).state
    else:
        lane["resets"][0] += 2
    again = make_env(atari("Freeway", backend, 1, max_steps=30))
    assert again.restore(state) is None
    assert again.reset().shape == (1, 1, 64, 64), "it can be reset and used"
    again.close()
