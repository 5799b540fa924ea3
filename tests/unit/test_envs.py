"""Environments other than Atari: DeepSea as in bsuite, MinAtar, any gymnasium environment; seeds; unknown names."""

from collections.abc import Iterator
from contextlib import nullcontext

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

import psdrl
from psdrl.envs import make_env
from psdrl.envs.deepsea import DeepSea
from psdrl.envs.gym import GymVector
from psdrl.envs.make import env_seeds
from psdrl.envs.minatar import GAMES, MinAtar
from psdrl.envs.vector import Step, VectorEnv
from psdrl.errors import UserError


def make(env: str, **settings: object) -> VectorEnv:
    return make_env(psdrl.configure(env=env, preset="debug", device="cpu", **settings))


def play(env: VectorEnv, steps: int, seed: int = 0) -> Iterator[Step]:
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        yield env.step(rng.integers(env.spec.num_actions, size=env.num_envs))


def dive(env: DeepSea, rights: list[bool]) -> tuple[float, list[NDArray]]:
    """Return and observations of one episode that goes right where told."""
    observation, _ = env.reset()
    score, seen = 0.0, [observation]
    for t, right in enumerate(rights):
        action = env.right() if right else 1 - env.right()
        observation, reward, terminated, truncated, _ = env.step(np.int64(action))
        score += reward
        seen.append(observation)
        assert terminated == (t == env.size - 1), f"step {t}"
        assert not truncated
    return score, seen


@pytest.mark.parametrize("size", [1, 2, 5, 20])
def test_deepsea_returns(size: int) -> None:
    """As in bsuite: 1 for the treasure, 0.01/N per move right, nothing for left."""
    env = DeepSea(size)
    assert dive(env, [True] * size)[0] == pytest.approx(0.99)
    assert dive(env, [False] * size)[0] == 0
    if size > 1:
        assert dive(env, [True] * (size - 1) + [False])[0] == pytest.approx(-0.01 * (size - 1) / size)
        assert dive(env, [False] + [True] * (size - 1))[0] == pytest.approx(-0.01 * (size - 1) / size)


def test_deepsea_observations() -> None:
    """One-hot cell; one row down per step, walls on both sides, nothing below the last row."""
    _, seen = dive(DeepSea(4), [False, True, True, False])
    assert [int(o.argmax()) if o.any() else None for o in seen] == [0, 4 + 0, 8 + 1, 12 + 2, None]
    assert [int(o.sum()) for o in seen] == [1, 1, 1, 1, 0]


@pytest.mark.parametrize("size", [3, 10, 20])
def test_deepsea_image_shows_the_same_cell(size: int) -> None:
    rng = np.random.default_rng(size)
    for _ in range(5):
        rights = list(rng.random(size) < 0.7)
        (score, cells), (image_score, images) = (dive(DeepSea(size, image=i), rights) for i in (False, True))
        assert score == image_score
        for cell, image in zip(cells, images, strict=True):
            assert (image.shape, image.dtype) == ((1, 64, 64), np.uint8)
            centres = ((np.arange(size) + 0.5) * 64 / size).astype(int)
            np.testing.assert_array_equal(image[0][np.ix_(centres, centres)].ravel() > 0, cell > 0)


def test_deepsea_mapping_is_fixed() -> None:
    """Which action means right: the same in all episodes, runs and seeds; both actions occur."""
    mappings = []
    for seed in (0, 1):
        for _ in range(2):
            env = DeepSea(8)
            env.reset(seed=seed)
            path = []
            for _ in range(8):
                path.append(env.right())
                env.step(np.int64(env.right()))
            mappings.append(path)
    assert mappings == [mappings[0]] * 4
    assert set(mappings[0]) == {0, 1}


@pytest.mark.parametrize(
    ("name", "kind", "shape"), [("deepsea-7", "vector", (49,)), ("deepsea-7-image", "image", None)]
)
def test_deepsea_by_name(name: str, kind: str, shape: tuple | None) -> None:
    env = make(name, num_envs=2)
    assert (env.spec.kind, env.spec.shape) == (kind, shape or (1, 64, 64))
    assert (env.spec.dtype, env.spec.num_actions) == ("uint8", 2)
    assert env.reset().shape == (2, *env.spec.shape)
    steps = list(play(env, 17))
    assert [bool(s.terminated.all()) for s in steps] == [i in (6, 14) for i in range(17)]
    assert [bool(s.started.all()) for s in steps] == [i in (7, 15) for i in range(17)]
    env.close()


@pytest.mark.parametrize("game", GAMES)
def test_minatar_protocol(game: str) -> None:
    """Binary planes, minimal actions, the same seed the same game, another seed another."""
    plays = []
    for seed in (3, 3, 4):
        env = make(f"minatar/{game}", seed=seed, num_envs=2)
        frames = [env.reset(), *(step.observation for step in play(env, 150))]
        assert frames[0].shape == (2, env.spec.shape[0])
        assert env.spec.shape[0] % 100 == 0
        assert set(np.unique(frames)) <= {0, 1}
        assert 3 <= env.spec.num_actions <= 6
        plays.append(np.array(frames))
        env.close()
    assert np.array_equal(plays[0], plays[1])
    if game != "space_invaders":  # it has no chance in it
        assert not np.array_equal(plays[0], plays[2])
    assert not np.array_equal(plays[0][:, 0], plays[0][:, 1]), "two environments must differ"


def test_minatar_time_limit_truncates() -> None:
    env = make("minatar/freeway", minatar={"max_steps": 7})
    env.reset()
    steps = list(play(env, 8))
    assert [bool(s.truncated[0]) for s in steps] == [i == 6 for i in range(8)]
    assert not any(s.terminated[0] for s in steps)
    assert steps[7].started[0]
    env.close()


def sticky_fraction(sticky: float) -> float:
    """How often Breakout's paddle moves on after the action turned to no-op."""
    env = MinAtar("breakout", sticky=sticky)
    moved = count = 0
    for seed in range(400):
        env.reset(seed=seed)
        paddle = env._game.env.pos
        env.step(np.int64(1))  # left
        after = env._game.env.pos
        if after == paddle - 1:
            env.step(np.int64(0))
            moved += env._game.env.pos != after
            count += 1
    return moved / count


def test_minatar_sticky_actions() -> None:
    """Of the 400 first moves those are counted that were carried out: half of them at 0.5."""
    assert sticky_fraction(0.0) == 0
    assert abs(sticky_fraction(0.5) - 0.5) < 4 * np.sqrt(0.25 / 200)


def test_minatar_sticky_action_ends_with_its_episode() -> None:
    """Breakout's paddle starts at 4; an episode ends on `right`, the next begins with `left`. Carried out it leads to
    3, and what sticks before the first action is a no-op; the `right` of the last episode would lead to 5."""
    env = MinAtar("breakout", sticky=0.5)
    places = []
    for seed in range(40):
        env.reset(seed=seed)
        while env._game.last_action != env._actions[2]:
            env.step(np.int64(2))
        env.reset()
        assert env._game.env.pos == 4
        env.step(np.int64(1))
        places.append(env._game.env.pos)
    assert set(places) == {3, 4}, f"{places.count(5)} of 40 first actions are those of the episode before"


@pytest.mark.parametrize("ramping", [False, True])
def test_minatar_ramping(ramping: bool) -> None:
    """Space Invaders: aliens of a new wave move faster only with ramping."""
    env = MinAtar("space_invaders", ramping=ramping)
    env.reset(seed=0)
    game = env._game.env
    before = game.enemy_move_interval
    game.alien_map[:] = 0  # the wave is shot
    env.step(np.int64(0))
    assert (game.enemy_move_interval < before) == ramping


def test_minatar_options_reach_the_game() -> None:
    env = make("minatar/asterix", minatar={"sticky": 0.25, "ramping": True})
    assert isinstance(env, GymVector)
    inner = env.lanes[0].env.unwrapped
    assert isinstance(inner, MinAtar)
    assert inner._game.sticky_action_prob == 0.25
    assert inner._game.env.ramping is True
    env.close()


@pytest.mark.parametrize(
    ("grid", "understood"),
    [((2, 3, 2), True), ((2, 3, 5), False), ([[0, 1], [1, 0]], False), (np.zeros((2, 3, 2)), False), (None, False)],
)
def test_only_a_shape_that_fits_is_a_grid(grid: object, understood: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many environments have a `grid` of their own: a map, an array."""

    class Twelve(gymnasium.Env[NDArray, np.int64]):
        observation_space = spaces.Box(0, 1, (12,), np.float32)
        action_space = spaces.Discrete(2)

    monkeypatch.setattr(Twelve, "grid", grid, raising=False)
    gymnasium.register("Twelve-v0", Twelve)  # type: ignore[arg-type]
    try:
        assert make("Twelve-v0").spec.grid == (grid if understood else None)
    finally:
        del gymnasium.registry["Twelve-v0"]


def test_minatar_stacks_frames_newest_first() -> None:
    """Zeros before an episode's first frame, also in the second episode; cells keep their frames side by side."""
    single, stacked = MinAtar("asterix"), MinAtar("asterix", stack=3)
    assert (single.grid, stacked.grid) == ((10, 10, 4), (10, 10, 12))
    for seed in (5, 6):
        empty = np.zeros((10, 10, 4), np.uint8)
        expected = [empty, empty, single.reset(seed=seed)[0].reshape(10, 10, 4)]
        found = stacked.reset(seed=seed)[0]
        for t in range(6):
            np.testing.assert_array_equal(found.reshape(10, 10, 12), np.concatenate(expected[:-4:-1], 2))
            expected.append(single.step(np.int64(t % 5))[0].reshape(10, 10, 4))
            found = stacked.step(np.int64(t % 5))[0]


class Picture(gymnasium.Env):
    """Left half dark, right half in a colour that the last action chose."""

    def __init__(
        self,
        shape: tuple[int, ...] = (48, 80, 3),
        space: spaces.Space | None = None,
        start: int = 0,
        render_mode: str | None = None,
    ) -> None:
        self.observation_space = space or spaces.Box(0, 255, shape, np.uint8)
        self.action_space = spaces.Discrete(3, start=start)
        self.last = start

    def _picture(self) -> NDArray:
        if not isinstance(self.observation_space, spaces.Box):
            return self.observation_space.sample()
        picture = np.zeros(self.observation_space.shape, np.uint8)
        picture[:, picture.shape[1] // 2 :] = 60 * (self.last + 1)
        return picture

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[NDArray, dict]:
        super().reset(seed=seed)
        return self._picture(), {}

    def step(self, action: np.int64) -> tuple[NDArray, float, bool, bool, dict]:
        assert self.action_space.contains(action)
        self.last = int(action)
        return self._picture(), float(action), False, False, {}


@pytest.fixture
def picture() -> Iterator[str]:
    name = "psdrl-test/Picture-v0"
    gymnasium.register(name, Picture, disable_env_checker=True)  # type: ignore[arg-type]
    yield name
    del gymnasium.registry[name]


@pytest.mark.parametrize("shape", [(48, 80, 3), (64, 64, 3), (30, 30)], ids=str)
def test_images_become_64x64_grey(picture: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gymnasium.registry[picture].kwargs, "shape", shape)
    env = make(picture, num_envs=2)
    assert (env.spec.kind, env.spec.shape, env.spec.dtype) == ("image", (1, 64, 64), "uint8")
    env.reset()
    frame = env.step(np.array([0, 2])).observation
    assert (frame.shape, frame.dtype) == ((2, 1, 64, 64), np.uint8)
    assert (frame[:, 0, :, :28] == 0).all()
    np.testing.assert_allclose(frame[:, 0, :, 36:].mean((1, 2)), [60, 180], atol=1)
    env.close()


def test_actions_that_do_not_start_at_zero(picture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gymnasium.registry[picture].kwargs, "start", -1)
    env = make(picture)
    env.reset()
    assert [float(env.step(np.array([a])).reward[0]) for a in range(env.spec.num_actions)] == [-1, 0, 1]
    env.close()


class Plain(gymnasium.Env):
    """As small as the interface allows: no render modes."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[NDArray, dict]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: np.int64) -> tuple[NDArray, float, bool, bool, dict]:
        return np.ones(2, np.float32), 0.0, True, False, {}


def test_environment_without_render_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = gymnasium.envs.registration.EnvSpec("psdrl-test/Plain-v0", Plain)  # type: ignore[arg-type]
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    env = make(spec.id)
    assert env.reset().tolist() == [[0, 0]]
    env.close()


@pytest.mark.parametrize(
    ("name", "size", "actions"), [("CartPole-v1", 4, 2), ("FrozenLake-v1", 16, 4), ("Blackjack-v1", 45, 2)]
)
def test_vector_discrete_and_tuple_observations(name: str, size: int, actions: int) -> None:
    plays = []
    for seed in (5, 5, 6):
        env = make(name, seed=seed, num_envs=3)
        assert (env.spec.kind, env.spec.shape, env.spec.num_actions) == ("vector", (size,), actions)
        observations = [env.reset()]
        ended = np.zeros(3, bool)
        for step in play(env, 60):
            np.testing.assert_array_equal(step.started, ended, err_msg="next-step autoreset")
            assert (step.reward[step.started] == 0).all()
            ended = step.terminated | step.truncated
            observations.append(step.observation)
        assert observations[0].shape == (3, size)
        assert observations[0].dtype == np.float32
        plays.append(np.array(observations))
        env.close()
    assert np.array_equal(plays[0], plays[1])
    if name != "FrozenLake-v1":  # its outcome may coincide
        assert not np.array_equal(plays[0], plays[2])


def test_seeds_are_independent() -> None:
    """No seed is shared between runs, streams or environments; seed + i would collide."""
    seeds = [s for run in range(50) for stream in range(5) for s in env_seeds(run, stream, 8)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= s < 2**31 for s in seeds)
    assert env_seeds(3, 1, 4) == env_seeds(3, 1, 4)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("CartPol-v1", "did you mean CartPole-v1"),
        ("CartPole-v9", "did you mean CartPole-v1"),
        ("minatar/brakout", "did you mean breakout"),
        ("deepsea-0", "deepsea-N"),
        ("deepsea-ten", "deepsea-N"),
        ("ALE/Pong-v5", "--game Pong"),
        ("Pendulum-v1", "discrete action space"),
        ("no such env!", "no such env!"),
        ("nowhere:Thing-v0", "nowhere"),
        ("Taxi-v3", "Taxi"),
        ("xyzzyxyzzy-v0", "xyzzyxyzzy"),
    ],
)
def test_refused_environments(name: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        make(name).close()
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("space", "refused"),
    [
        (spaces.Sequence(spaces.Discrete(3)), True),
        (spaces.Box(0, 255, (48, 80, 1), np.uint8), False),
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), False),
        (spaces.Box(0, 255, (84, 84, 4), np.uint8), True),
    ],
    ids=["sequence", "one channel", "channels first", "four channels"],
)
def test_odd_observations_work_or_are_refused(
    picture: str, space: spaces.Space, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback: either an environment or one sentence that names the observations."""
    monkeypatch.setitem(gymnasium.registry[picture].kwargs, "space", space)
    with pytest.raises(UserError, match="observations") if refused else nullcontext():
        env = make(picture)
        assert env.reset().shape == (1, *env.spec.shape)
        env.close()
