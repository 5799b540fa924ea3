"""Atari beyond the paper's protocol: the same in every backend, and exactly what the settings say."""

import functools
import importlib.util
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import psdrl
from psdrl.config import AtariConfig
from psdrl.envs import make_env
from psdrl.envs.atari import AleVector, make_atari
from psdrl.envs.vector import Step, VectorEnv
from psdrl.errors import UserError
from psdrl.run.callbacks import Callback, Episode, Run
from psdrl.run.loop import train

needs_envpool = pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="envpool is not installed")
BACKENDS = [pytest.param("envpool", marks=needs_envpool), "ale", "gymnasium"]
SEEDS = [3, 8]


def make(backend: str, game: str = "Breakout", **protocol: Any) -> VectorEnv:
    return make_atari(game, 2, SEEDS, AtariConfig(**protocol), backend)


def record(env: VectorEnv, actions: NDArray) -> tuple[NDArray, list[Step]]:
    first = env.reset().copy()
    steps = [Step(*(np.array(column) for column in env.step(row))) for row in actions]
    env.close()
    return first, steps


def some_actions(count: int, most: int = 4) -> NDArray[np.int64]:
    return np.random.default_rng(0).integers(most, size=(count, 2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_sticky_actions_are_drawn_per_decision_from_the_seed(backend: str) -> None:
    """The game is that of the actions which the draws leave over, sent to an environment that is not sticky."""
    actions = some_actions(70)
    _, steps = record(make(backend, sticky=0.4, max_steps=25), actions)
    draws = np.stack(
        [np.random.Generator(np.random.PCG64(np.random.SeedSequence([s, 0x571C]))).random(70) for s in SEEDS]
    )
    executed, last = actions.copy(), np.zeros(2, np.int64)
    for t in range(70):
        executed[t] = np.where(draws[:, t] < 0.4, last, actions[t])
        last = np.where(steps[t].started, 0, executed[t])
    changed = (executed != actions).mean()
    assert 0.2 < changed < 0.4, "some 40 % are repeated, a quarter of them with the same action"
    _, plain = record(make(backend, max_steps=25), executed)
    for t, (step, expected) in enumerate(zip(steps, plain, strict=True)):
        for name, value, want in zip(Step._fields, step, expected, strict=True):
            np.testing.assert_array_equal(value, want, err_msg=f"{name} at step {t}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_full_actions(backend: str) -> None:
    env = make(backend, "Pong", full_actions=True)
    assert env.spec.num_actions == 18
    env.reset()
    for action in range(18):
        env.step(np.full(2, action))
    env.close()


@functools.cache
def one_noop_seeds() -> list[int]:
    """Seeds for which ale-py, which draws 0 or 1 no-ops here, draws one."""
    env = make_atari("Breakout", 16, list(range(16)), AtariConfig(noop_max=1), "ale")
    assert isinstance(env, AleVector)
    _, info = env._envs.reset(seed=np.arange(16))
    env.close()
    return np.flatnonzero(info["frame_number"] == 1)[:2].tolist()


@needs_envpool
@pytest.mark.parametrize("repeat", [1, 2, 5])
def test_repeats_show_the_same_frames_in_every_backend(repeat: int) -> None:
    """Until a cap, which counts decisions; at the cap itself ale-py shows a frame of before."""
    actions, protocol = some_actions(41), AtariConfig(repeat=repeat, noop_max=1, max_steps=40)
    runs = {
        backend: record(make_atari("Breakout", 2, one_noop_seeds(), protocol, backend), actions)[1]
        for backend in ("envpool", "ale", "gymnasium")
    }
    for backend in runs:
        for t in range(39):
            for name, value, want in zip(Step._fields, runs[backend][t], runs["envpool"][t], strict=True):
                np.testing.assert_array_equal(value, want, err_msg=f"{name} of {backend} at step {t}")
        assert runs[backend][39].truncated.all()
        assert runs[backend][40].started.all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_stacked_frames(backend: str) -> None:
    actions = some_actions(40)
    first, plain = record(make(backend, max_steps=25), actions)
    env = make(backend, max_steps=25, stack=3)
    assert env.spec.shape == (3, 64, 64)
    stacked_first, stacked = record(env, actions)
    np.testing.assert_array_equal(stacked_first, np.repeat(first, 3, 1))
    history = [first] * 3
    for t, (step, want) in enumerate(zip(stacked, plain, strict=True)):
        assert want.started.all() == (t == 25)
        history = [want.observation] * 3 if want.started.all() else [*history[1:], want.observation]
        np.testing.assert_array_equal(step.observation, np.concatenate(history, 1), err_msg=f"step {t}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_lost_life_ends_an_episode_but_no_game(backend: str) -> None:
    """The game is that of the same actions with a no-op after each loss; its five lives make five episodes."""
    actions = some_actions(420)
    _, steps = record(make(backend, life_loss=True, noop_max=5), actions)
    lost = np.array([step.terminated & ~step.over for step in steps])
    executed = actions.copy()
    executed[1:][lost[:-1]] = 0
    _, plain = record(make(backend, noop_max=5), executed)
    overs = np.array([step.over for step in plain])
    assert overs.any(0).all(), "no game ended"
    for t, (step, want) in enumerate(zip(steps, plain, strict=True)):
        before = lost[t - 1] if t else np.zeros(2, bool)
        np.testing.assert_array_equal(step.observation, want.observation, err_msg=f"step {t}")
        np.testing.assert_array_equal(step.reward, want.reward, err_msg=f"step {t}")
        np.testing.assert_array_equal(step.over, want.terminated | want.truncated, err_msg=f"step {t}")
        np.testing.assert_array_equal(step.started, want.started | before, err_msg=f"step {t}")
        np.testing.assert_array_equal(step.terminated, (want.terminated & ~before) | lost[t], err_msg=f"step {t}")
    for env in range(2):
        end = int(np.flatnonzero(overs[:, env])[0])
        assert lost[:end, env].sum() == 4, "four of the five lives; the fifth is the game's end"


def test_evaluation_knows_no_lost_lives() -> None:
    config = psdrl.configure(game="Breakout", preset="debug", device="cpu", atari={"life_loss": True})
    env = make_env(config, num_envs=1, stream=1)
    env.reset()
    rng = np.random.default_rng(0)
    while not (step := env.step(rng.integers(4, size=1))).terminated[0]:
        pass
    assert step.over[0], "an episode of an evaluation is a whole game"
    env.close()


class Returns(Callback):
    """Keeps what the loop tells of episodes."""

    def __init__(self) -> None:
        self.found: list[tuple[float, float]] = []

    def on_episode(self, run: Run, episode: Episode) -> None:
        self.found.append((episode.score, episode.length))


def test_training_scores_whole_games(monkeypatch: pytest.MonkeyPatch) -> None:
    """With lost lives as ends of episodes, the returns logged are those of games, and more episodes are stored."""
    config = psdrl.configure(
        game="Breakout", preset="debug", device="cpu", env_backend="gymnasium", num_envs=2, steps=700,
        eval_every=0, policy={"update_every": 10_000, "epsilon": 1.0},
        atari={"life_loss": True},
    )  # fmt: skip
    env = make_env(config)
    seen: list[Step] = []
    recv = env.recv

    def receive() -> Step:
        seen.append(recv())
        return seen[-1]

    monkeypatch.setattr(env, "recv", receive)
    log, agent = Returns(), psdrl.Agent(config, env.spec)
    train(agent.core, env, log)
    expected, score, length = [], np.zeros(2), np.zeros(2)
    for step in seen:
        score, length = score + step.reward, length + ~step.started
        for i in np.flatnonzero(step.over):
            expected.append((score[i], length[i]))
            score[i] = length[i] = 0
    assert log.found == expected
    assert len(expected) >= 2
    assert len(agent.core.replay.episodes) > 3 * len(expected)
    env.close()


@pytest.mark.parametrize(("name", "value"), [("sticky", 1.5), ("sticky", -0.1), ("repeat", 0), ("stack", 0)])
def test_settings_that_cannot_work_are_refused(name: str, value: float) -> None:
    with pytest.raises(UserError, match=f"--atari.{name}"):
        psdrl.configure(game="Pong", preset="debug", device="cpu", atari={name: value})


@pytest.mark.parametrize("algo", ["psdrl", "bootstrap", "dreamer"])
def test_agents_learn_from_stacks(algo: str) -> None:
    config = psdrl.configure(
        game="Pong",
        algo=algo,
        preset="debug",
        device="cpu",
        steps=300,
        eval_every=0,
        atari={"stack": 3, "max_steps": 60},
    )
    env = make_env(config)
    agent = psdrl.Agent(config, env.spec)
    agent.train(env)
    assert agent.updates > 0
    env.close()
