"""Environments that raise, return nonsense, die or hang: said where it happened, made anew, their episode discarded."""

import os
import time
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

import psdrl
from psdrl.envs import make_env, wrap
from psdrl.envs.vector import VectorEnv
from psdrl.errors import UserError


class Faulty(gymnasium.Env):
    """Shows its generator's draws; at step `at` of every `every`-th episode (counted over all environments of this
    process) it does what `fault` says."""

    episodes = 0

    def __init__(self, fault: str, at: int = 3, every: int = 2, length: int = 5) -> None:
        self.fault, self.at, self.every, self.length = fault, at, every, length
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[NDArray, dict]:
        super().reset(seed=seed)
        Faulty.episodes += 1
        self.t, self.number = 0, Faulty.episodes
        return self.np_random.random(2, np.float32), {}

    def step(self, action: int) -> Any:
        self.t += 1
        observation: Any = self.np_random.random(2, np.float32)
        reward: Any = 1.0
        if self.t == self.at and self.number % self.every == 0:
            if self.fault == "raise":
                raise ZeroDivisionError("division by zero")
            if self.fault == "die":
                os._exit(9)
            if self.fault == "hang":
                time.sleep(1e6)
            if self.fault == "old":
                return observation, 0.0, False, {}
            observation = {
                "nan": np.array([0, np.nan]), "inf": np.array([0, -np.inf]), "shape": np.zeros((1, 2)),
                "dtype": np.array(["a", "b"]), "scalar": 0.5,
            }.get(self.fault, observation)  # fmt: skip
            reward = {"nan reward": np.nan, "inf reward": np.inf, "no reward": None}.get(self.fault, 1.0)
        return observation, reward, self.t == self.length, False, {}


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = "psdrl-test/Faulty-v0"
    monkeypatch.setattr(Faulty, "episodes", 0)
    gymnasium.register(name, lambda **kwargs: Faulty(**kwargs))
    yield name
    del gymnasium.registry[name]


def make(name: str, monkeypatch: pytest.MonkeyPatch, num_envs: int = 1, **kwargs: Any) -> VectorEnv:
    settings = {key: kwargs.pop(key) for key in list(kwargs) if key.startswith("env_")}
    monkeypatch.setattr(gymnasium.registry[name], "kwargs", kwargs)
    return make_env(psdrl.configure(env=name, preset="debug", device="cpu", num_envs=num_envs, **settings))


SAYS = {
    "raise": "raised ZeroDivisionError: division by zero",
    "nan": "returned NaN in its observation",
    "inf": "returned infinity in its observation",
    "shape": r"observation of shape \(1, 2\) instead of \(2,\)",
    "scalar": r"observation of shape \(\) instead of \(2,\)",
    "dtype": "observation of type <U1 instead of float32",
    "nan reward": "returned NaN as its reward",
    "inf reward": "returned infinity as its reward",
    "no reward": "the reward None, which is no number",
    "old": r"returned 4 values from step\(\) instead of observation, reward, terminated, truncated, info",
}


@pytest.mark.parametrize("fault", SAYS)
def test_said_at_its_step(faulty: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make(faulty, monkeypatch, fault=fault, env_restarts=0)
    env.reset()
    for _ in range(5 + 1 + 2):  # the first episode, its successor's start, two steps of that
        env.step(np.zeros(1, np.int64))
    with pytest.raises(UserError, match=f"{faulty} .*{SAYS[fault]} at step 3 of its episode 2") as error:
        env.step(np.zeros(1, np.int64))
    assert "--env-restarts" in str(error.value)


@pytest.mark.parametrize("fault", ["raise", "nan", "shape"])
def test_a_failed_episode_is_discarded_and_another_begins(
    faulty: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other environment goes on undisturbed; the row is a start, and the next episode is another one."""
    env = make(faulty, monkeypatch, fault=fault, every=3, num_envs=2)  # episode 3 is the first one's second
    first = env.reset()
    seen: list[str] = []
    rows = []
    for t in range(30):
        step = env.step(np.zeros(2, np.int64))
        rows.append(step)
        said = env.faults()
        seen += said
        assert bool(said) == bool(step.failed.any()), f"step {t}"
        assert (step.started[step.failed]).all()
        assert not step.reward[step.failed].any()
        assert not (step.over & step.failed).any()
        assert np.isfinite(step.observation).all()
    assert rows[8].failed.tolist() == [True, False], "the third step of episode 3"
    assert rows[8].observation[0].tolist() != first[0].tolist(), "the seed's first episode once more"
    assert not rows[9].started[0]
    assert "psdrl-test/Faulty-v0" in seen[0]
    assert "step 3 of its episode 2; its episode is discarded" in seen[0]


def test_restarts_are_bounded_and_an_episode_that_ends_begins_the_count_again(
    faulty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make(faulty, monkeypatch, fault="raise", every=2, env_restarts=1)
    env.reset()
    failed = sum(int(env.step(np.zeros(1, np.int64)).failed[0]) for _ in range(100))
    assert failed > 5
    env = make(faulty, monkeypatch, fault="raise", every=1, env_restarts=4)
    env.reset()
    for _ in range(4 * 3 + 2):  # four restarts, each by the third step of an episode
        env.step(np.zeros(1, np.int64))
    with pytest.raises(UserError, match="5 times without an episode that ended"):
        env.step(np.zeros(1, np.int64))


def test_a_fault_in_the_first_reset_is_no_matter_of_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Faulty):
        def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
            return np.zeros(3, np.float32), {}

    env = wrap(lambda: Broken("none"), psdrl.configure(env="CartPole-v1", preset="debug", device="cpu"))
    with pytest.raises(UserError, match=r"Broken returned an observation of shape \(3,\) instead of \(2,\)"):
        env.reset()


def test_a_state_after_a_fault_is_restored(faulty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make(faulty, monkeypatch, fault="raise", every=2)
    env.reset()
    failures = sum(int(env.step(np.ones(1, np.int64)).failed[0]) for _ in range(11))
    assert failures == 1
    state = env.state()
    assert state is not None
    again = make(faulty, monkeypatch, fault="none")
    observation = again.restore(state)
    assert observation is not None
    for _ in range(2):
        np.testing.assert_array_equal(
            again.step(np.ones(1, np.int64)).observation, env.step(np.ones(1, np.int64)).observation
        )


def test_atari_has_no_processes_of_ours() -> None:
    with pytest.raises(UserError, match="--env-process is for --env"):
        make_env(psdrl.configure(game="Pong", preset="debug", device="cpu", env_process=True))
