"""Environments in processes of their own: they play the same, and survive death and hanging."""

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
from psdrl.envs import make_env
from psdrl.envs.vector import VectorEnv
from psdrl.errors import UserError


class Mortal(gymnasium.Env):
    """Shows its generator's draws; at the third step of every second episode it dies, hangs or raises."""

    def __init__(self, fault: str) -> None:
        self.fault, self.number = fault, 0
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[NDArray, dict]:
        super().reset(seed=seed)
        self.t, self.number = 0, self.number + 1
        return self.np_random.random(2, np.float32), {}

    def step(self, action: int) -> tuple[NDArray, float, bool, bool, dict]:
        self.t += 1
        if self.t == 3 and self.number % 2 == 0:
            if self.fault == "die":
                os._exit(9)
            if self.fault == "hang":
                time.sleep(1e6)
            if self.fault == "raise":
                raise ZeroDivisionError("division by zero")
        return self.np_random.random(2, np.float32), 1.0, self.t == 5, False, {}


@pytest.fixture
def mortal() -> Iterator[str]:
    name = "psdrl-test/Mortal-v0"
    gymnasium.register(name, lambda **kwargs: Mortal(**kwargs))
    yield name
    del gymnasium.registry[name]


def make(name: str, fault: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> VectorEnv:
    monkeypatch.setattr(gymnasium.registry[name], "kwargs", {"fault": fault})
    several = {"num_envs": 2, "env_process": True, "env_timeout": 2.0} | settings
    return make_env(psdrl.configure(env=name, preset="debug", device="cpu", **several))


@pytest.mark.parametrize(
    ("fault", "says"),
    [("die", "died with exit code 9"), ("hang", "did not answer within 2 s"), ("raise", "raised ZeroDivisionError")],
)
def test_death_hanging_and_exceptions(mortal: str, fault: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of an environment that only this process has registered."""
    env = make(mortal, fault, monkeypatch)
    try:
        env.reset()
        rows = [env.step(np.zeros(2, np.int64)) for _ in range(12)]
        assert [t for t, row in enumerate(rows) if row.failed.any()] == [8]
        assert rows[8].failed.all()
        assert rows[8].started.all()
        assert not rows[9].started.any()
        faults = env.faults()
        assert len(faults) == 2
        assert all(says in fault and "discarded" in fault for fault in faults)
        assert not (rows[8].observation[0] == rows[8].observation[1]).any()
        state = env.state()
        after = env.step(np.ones(2, np.int64))
    finally:
        env.close()
    assert state is not None
    again = make(mortal, "none", monkeypatch, env_timeout=60.0)
    try:
        assert again.restore(state) is not None
        np.testing.assert_array_equal(again.step(np.ones(2, np.int64)).observation, after.observation)
    finally:
        again.close()


def test_deaths_are_bounded(mortal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make(mortal, "die", monkeypatch, num_envs=1, env_restarts=0)
    env.reset()
    for _ in range(8):
        env.step(np.zeros(1, np.int64))
    with pytest.raises(UserError, match="died with exit code 9, 1 times"):
        env.step(np.zeros(1, np.int64))
    env.close()


def test_processes_play_what_one_process_plays() -> None:
    """The same rows, and states as of the last recv though the children are a step ahead."""
    runs = []
    for process in (False, True):
        config = psdrl.configure(
            env="CartPole-v1", preset="debug", device="cpu", num_envs=2, env_process=process, env_restarts=1
        )
        env = make_env(config)
        rows, states = [env.reset()], []
        for t in range(60):
            env.send(np.array([t % 2, 1]))
            if t % 10 == 9:
                states.append(env.state())
            rows.append(env.recv().observation)
        env.close()
        runs.append((rows, states, config))
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    rows, states, config = runs[1]
    assert states[2] is not None
    again = make_env(config)
    observation = again.restore(states[2])  # before the outcome of step 29
    np.testing.assert_array_equal(observation, rows[29])
    for t in range(29, 60):
        np.testing.assert_array_equal(again.step(np.array([t % 2, 1])).observation, rows[t + 1], err_msg=f"step {t}")
    again.close()
