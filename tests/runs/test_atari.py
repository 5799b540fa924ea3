"""Atari: the protocol of the paper and what the three backends do with it."""

import functools
import importlib.util

import numpy as np
import pytest
from numpy.typing import NDArray

import psdrl
from psdrl.config import AtariConfig
from psdrl.envs import make_env
from psdrl.envs.atari import GAMES, MODULES, AleVector, EnvPoolVector, choose_backend, make_atari
from psdrl.envs.vector import VectorEnv
from psdrl.errors import UserError

needs_envpool = pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="envpool is not installed")
BACKENDS = [pytest.param("envpool", marks=needs_envpool), "ale", "gymnasium"]
MINIMAL_ACTIONS = {"Pong": 6, "Breakout": 4, "Freeway": 3, "Asterix": 9, "Seaquest": 18, "Qbert": 6}


def make(game: str, backend: str = "envpool", num_envs: int = 1, seed: int = 0, **protocol: int) -> VectorEnv:
    return make_env(
        psdrl.configure(
            game=game, preset="debug", device="cpu", env_backend=backend, num_envs=num_envs, seed=seed, atari=protocol
        )
    )


def record(env: VectorEnv, actions: NDArray) -> tuple[NDArray, NDArray]:
    """Frames (T + 1, N, ...) and rewards (T, N) under these actions (T, N)."""
    frames, rewards = [env.reset().copy()], []
    for row in actions:
        step = env.step(row)
        frames.append(step.observation.copy())
        rewards.append(step.reward.copy())
    return np.array(frames), np.array(rewards)


@needs_envpool
@pytest.mark.parametrize("game", MINIMAL_ACTIONS)
def test_envpool_facts(game: str) -> None:
    """Shapes, minimal actions, truncation at the cap, next-step autoreset with the reset row marked."""
    env = make(game, num_envs=2, max_steps=12)
    assert env.spec.num_actions == MINIMAL_ACTIONS[game]
    assert (env.spec.kind, env.spec.shape, env.spec.dtype) == ("image", (1, 64, 64), "uint8")
    first = env.reset()
    assert (first.shape, first.dtype) == ((2, 1, 64, 64), np.uint8)
    rng = np.random.default_rng(0)
    previous = first
    for t in range(40):
        step = env.step(rng.integers(env.spec.num_actions, size=2))
        at = t % 13  # 12 steps and one row that starts the next episode
        assert step.observation.shape == (2, 1, 64, 64)
        assert step.truncated.tolist() == [at == 11] * 2, f"step {t}"
        assert not step.terminated.any(), f"step {t}: the cap is no termination"
        assert step.started.tolist() == [at == 12] * 2, f"step {t}"
        if step.started.any():
            assert (step.reward == 0).all(), f"step {t}"
            assert not np.array_equal(step.observation, previous), "the reset frame, not the final one again"
        previous = step.observation.copy()
    env.close()


@needs_envpool
@pytest.mark.parametrize("game", MINIMAL_ACTIONS)
def test_envpool_is_a_function_of_seed_and_actions(game: str) -> None:
    """The same seed plays the same game, also on after resets; environments of a pool differ in their no-ops."""
    actions = np.random.default_rng(1).integers(MINIMAL_ACTIONS[game], size=(60, 3))
    runs = []
    for seed in (1, 1, 2):
        env = make(game, num_envs=3, seed=seed, max_steps=25)
        runs.append(record(env, actions))
        env.close()
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    np.testing.assert_array_equal(runs[0][1], runs[1][1])
    assert not np.array_equal(runs[0][0], runs[2][0]), "another seed"
    same = np.repeat(actions[:, :1], 3, 1)
    env = make(game, num_envs=3, seed=1, max_steps=25)
    frames, _ = record(env, same)
    env.close()
    assert not (np.array_equal(frames[:, 0], frames[:, 1]) and np.array_equal(frames[:, 0], frames[:, 2]))


@needs_envpool
def test_envpool_seeds_do_not_depend_on_the_other_environments() -> None:
    """The seeds are explicit: environment i of a pool is the environment of seed i alone."""
    actions = np.random.default_rng(2).integers(6, size=(30, 2))
    both = make_atari("Pong", 2, [11, 12], AtariConfig(), "envpool")
    together, _ = record(both, actions)
    both.close()
    for i, seed in enumerate((11, 12)):
        single = make_atari("Pong", 1, [seed], AtariConfig(), "envpool")
        alone, _ = record(single, actions[:, i : i + 1])
        single.close()
        np.testing.assert_array_equal(together[:, i], alone[:, 0], err_msg=f"seed {seed}")


@needs_envpool
def test_life_losses_and_rewards_are_left_alone() -> None:
    """Breakout with 5 lives: one episode, although lives are lost; Asterix pays 50 at once, unclipped."""
    env = make("Breakout")
    env.reset()
    ended = [t for t in range(250) if bool(env.step(np.array([1 if t % 2 else 3])).terminated[0])]
    assert not ended or ended[0] > 100, "an episode that ends with the first life"
    env.close()
    env = make("Asterix", num_envs=4)
    env.reset()
    rng = np.random.default_rng(0)
    rewards = {float(r) for _ in range(300) for r in env.step(rng.integers(9, size=4)).reward}
    assert max(rewards) >= 50
    env.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_cap_and_autoreset_of_every_backend(backend: str) -> None:
    env = make("Pong", backend, num_envs=2, max_steps=5)
    assert env.spec.backend == backend
    assert env.reset().shape == (2, 1, 64, 64)
    for t in range(13):
        step = env.step(np.array([2, 3]))
        assert step.truncated.tolist() == [t % 6 == 4] * 2, f"step {t}"
        assert not step.terminated.any()
        assert step.started.tolist() == [t % 6 == 5] * 2, f"step {t}"
        assert step.reward.dtype == np.float32
    env.close()


@functools.cache
def one_noop_seed() -> int:
    """An environment seed for which ale-py, which draws 0 or 1 no-ops here, draws one."""
    env = make_atari("Pong", 8, list(range(8)), AtariConfig(noop_max=1), "ale")
    assert isinstance(env, AleVector)
    _, info = env._envs.reset(seed=np.arange(8))
    env.close()
    return int(np.flatnonzero(info["frame_number"] == 1)[0])


@functools.cache
def freeway_after_noops(most: int) -> dict[bytes, int]:
    """Frames after 0, 1, ... no-ops, from the emulator itself. Cars move in each of them, so they tell the number."""
    import ale_py
    import cv2
    from ale_py import roms

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    rom = roms.get_rom_path("freeway")
    assert rom is not None
    ale.loadROM(rom)
    ale.reset_game()
    frames = {}
    for count in range(most + 1):
        frame = cv2.resize(ale.getScreenGrayscale(), (64, 64), interpolation=cv2.INTER_AREA)
        frames[frame.tobytes()] = count
        ale.act(0)
    assert len(frames) == most + 1, "two numbers of no-ops look the same"
    return frames


@pytest.mark.parametrize("noop_max", [1, 5])
@pytest.mark.parametrize("backend", BACKENDS)
def test_number_of_noops(backend: str, noop_max: int) -> None:
    """Episodes start after 1 to noop_max no-ops; those of ale-py after 0 to noop_max. That one of six numbers is
    missing among 60 episodes has a chance of 6 (5/6)^60, 1e-4, and the seeds are fixed."""
    counts = freeway_after_noops(40)
    env = make("Freeway", backend, num_envs=4, noop_max=noop_max, max_steps=1)
    idle, seen = np.zeros(4, np.int64), []
    frames = env.reset()
    for _ in range(15):
        seen += [counts[frame.tobytes()] for frame in frames]
        assert env.step(idle).truncated.all()
        step = env.step(idle)
        assert step.started.all()
        frames = step.observation
    env.close()
    assert set(seen) == set(range(0 if backend == "ale" else 1, noop_max + 1))


@needs_envpool
@pytest.mark.parametrize(("game", "size"), [*((game, 64) for game in MINIMAL_ACTIONS), ("Pong", 84), ("Qbert", 84)])
def test_backends_show_the_same_frames(game: str, size: int) -> None:
    """All of the first 120 steps of an episode, pixel by pixel, and the rewards."""
    protocol, seed = AtariConfig(noop_max=1, size=size), one_noop_seed()
    actions = np.random.default_rng(3).integers(MINIMAL_ACTIONS[game], size=(120, 1))
    runs = {}
    for backend in ("envpool", "ale", "gymnasium"):
        env = make_atari(game, 1, [seed], protocol, backend)
        assert env.spec.shape == (1, size, size)
        runs[backend] = record(env, actions)
        assert runs[backend][0].shape[1:] == (1, *env.spec.shape)
        env.close()
    assert len({frame.tobytes() for frame in runs["envpool"][0]}) > 20, "nothing moves"
    for backend in ("ale", "gymnasium"):
        different = [t for t in range(121) if not np.array_equal(runs[backend][0][t], runs["envpool"][0][t])]
        assert not different, f"{backend} differs from envpool at steps {different[:5]}"
        np.testing.assert_array_equal(runs[backend][1], runs["envpool"][1], err_msg=backend)


def test_the_55_games() -> None:
    import ale_py
    import gymnasium
    from ale_py import roms

    assert len(GAMES) == len(set(GAMES)) == 55
    assert not {"Defender", "Surround"} & set(GAMES)
    known = {name.replace("_", "") for name in roms.get_all_rom_ids()}
    assert [game for game in GAMES if game.lower() not in known] == []
    gymnasium.register_envs(ale_py)
    assert [game for game in GAMES if f"ALE/{game}-v5" not in gymnasium.registry] == []


@pytest.mark.parametrize("game", ["VideoPinball", "UpNDown", "Jamesbond", "BankHeist"])
def test_ale_names_of_games_in_several_words(game: str) -> None:
    env = make(game, "ale")
    assert env.reset().shape == (1, 1, 64, 64)
    env.close()


@pytest.mark.parametrize(("name", "says"), [("Pnog", "did you mean Pong"), ("0815", "GAMES"), ("", "--game")])
def test_unknown_game(name: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        make(name).close()


def test_game_names_in_any_case() -> None:
    env = make("mspacman", "ale")
    assert env.spec.name == "MsPacman"
    env.close()


def test_noop_max_zero_is_refused() -> None:
    with pytest.raises(UserError, match="noop-max"):
        make("Pong", noop_max=0)


@pytest.mark.parametrize(
    ("missing", "asked", "chosen"),
    [
        (set(), "auto", "envpool"),
        ({"envpool"}, "auto", "ale"),
        (set(), "gymnasium", "gymnasium"),
        ({"envpool"}, "envpool", None),
        ({"envpool", "ale_py"}, "auto", None),
    ],
    ids=["all there", "no envpool", "asked for", "asked for, missing", "none"],
)
def test_choice_of_backend(missing: set[str], asked: str, chosen: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {module: None if module in missing else object() for module in MODULES.values()}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found[name])
    if chosen:
        assert choose_backend(asked) == chosen
    else:
        with pytest.raises(UserError, match="pip install"):
            choose_backend(asked)


@pytest.mark.parametrize("backend", [pytest.param("envpool", marks=needs_envpool), "ale"])
def test_groups_play_the_same_games(backend: str) -> None:
    """Four environments in two pools: the frames and rewards of four in one, over ends of episodes, stepped out of
    step with each other."""
    actions = np.random.default_rng(0).integers(6, size=(60, 4))
    together = make("Pong", backend, num_envs=4, max_steps=25)
    frames, rewards = record(together, actions)
    together.close()
    config = psdrl.configure(
        game="Pong", preset="debug", device="cpu", env_backend=backend, num_envs=4, env_groups=2,
        atari={"max_steps": 25},
    )  # fmt: skip
    env = make_env(config)
    assert (env.num_envs, [group.num_envs for group in env.groups]) == (4, [2, 2])
    np.testing.assert_array_equal(env.reset(), frames[0])
    halves = [slice(0, 2), slice(2, 4)]
    env.groups[0].send(actions[0, :2])
    for t in range(60):  # the second group is sent to before the first is received from, and the other way round
        env.groups[1].send(actions[t, 2:])
        first = env.groups[0].recv()
        if t < 59:
            env.groups[0].send(actions[t + 1, :2])
        for part, step in zip(halves, (first, env.groups[1].recv()), strict=True):
            np.testing.assert_array_equal(step.observation, frames[t + 1, part], err_msg=f"step {t}")
            np.testing.assert_array_equal(step.reward, rewards[t, part], err_msg=f"step {t}")
    np.testing.assert_array_equal(env.reset().shape, frames[0].shape)
    again = env.step(actions[0])
    assert again.observation.shape == (4, 1, 64, 64)
    assert [len(column) for column in again] == [4] * 7
    env.close()
    evaluation = make_env(config, num_envs=1)
    assert (evaluation.num_envs, len(evaluation.groups)) == (1, 1), "evaluation has one environment"
    evaluation.close()


@needs_envpool
def test_envpool_returns_its_environments_in_order() -> None:
    env = make("Pong", num_envs=4)
    assert isinstance(env, EnvPoolVector)
    env.reset()
    for _ in range(20):
        env.send(np.zeros(4, np.int64))
        assert env._pool.recv()[4]["env_id"].tolist() == [0, 1, 2, 3]
    env.close()
