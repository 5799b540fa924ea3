"""A user's own gymnasium objects: environments, vectors of them, functions that make them."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

import psdrl
from psdrl.envs import VectorEnv, make_env, wrap
from psdrl.errors import UserError


def config(**settings: Any) -> Any:
    return psdrl.configure(env="CartPole-v1", preset="debug", device="cpu", **settings)


def cartpole() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1")


def record(env: VectorEnv, steps: int = 80) -> list[tuple[NDArray, ...]]:
    rng = np.random.default_rng(0)
    first = env.reset()
    rows = [tuple(env.step(rng.integers(2, size=env.num_envs))) for _ in range(steps)]
    env.close()
    return [(first,), *rows]


def assert_same(found: list[tuple[NDArray, ...]], expected: list[tuple[NDArray, ...]]) -> None:
    for t, (row, want) in enumerate(zip(found, expected, strict=True)):
        for value, other in zip(row, want, strict=True):
            np.testing.assert_array_equal(value, other, err_msg=f"row {t}")


def test_an_environment_plays_as_by_name() -> None:
    assert_same(record(wrap(cartpole(), config())), record(make_env(config())))


@pytest.mark.parametrize("groups", [1, 2])
def test_a_function_plays_as_by_name(groups: int) -> None:
    several = config(num_envs=4, env_groups=groups)
    env = wrap(cartpole, several)
    assert (env.num_envs, len(env.groups)) == (4, groups)
    assert_same(record(env), record(make_env(several)))


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_sync_vector_in_any_mode(mode: AutoresetMode) -> None:
    envs = SyncVectorEnv([cartpole] * 3, autoreset_mode=mode)
    assert_same(record(wrap(envs, config(num_envs=3))), record(make_env(config(num_envs=3))))


def test_an_async_vector() -> None:
    env = wrap(AsyncVectorEnv([cartpole] * 2), config(num_envs=2))
    env.reset()
    assert env.state() is None, "nobody knows what its processes hold"
    assert_same(record(env), record(make_env(config(num_envs=2))))


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_a_vector_that_hides_last_observations_is_refused(mode: AutoresetMode) -> None:
    envs = AsyncVectorEnv([cartpole] * 2, autoreset_mode=mode)
    with pytest.raises(UserError, match="NEXT_STEP"):
        wrap(envs)
    envs.close()


class Pictures(gymnasium.vector.VectorEnv):
    """Two environments that show pictures, with actions from 1 on; `bad` is what the third step returns."""

    num_envs = 2
    single_observation_space = spaces.Box(0, 255, (20, 30, 3), np.uint8)
    single_action_space = spaces.Discrete(3, start=1)
    observation_space = gymnasium.vector.utils.batch_space(single_observation_space, 2)
    action_space = gymnasium.vector.utils.batch_space(single_action_space, 2)
    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, bad: str = "") -> None:
        self.bad, self.t = bad, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[NDArray, dict]:
        return np.zeros((2, 20, 30, 3), np.uint8), {}

    def step(self, actions: NDArray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.t += 1
        done = np.array([self.t == 2, False])
        reward = actions.astype(float)
        if self.bad and self.t == 3:
            reward[1] = np.nan
        return np.full((2, 20, 30, 3), 50, np.uint8), reward, done, np.zeros(2, bool), {}


def test_any_vector() -> None:
    env = wrap(Pictures())
    assert (env.spec.kind, env.spec.shape, env.spec.num_actions) == ("image", (1, 64, 64), 3)
    assert env.reset().shape == (2, 1, 64, 64)
    rows = [env.step(np.array([0, 2])) for _ in range(3)]
    assert rows[0].reward.tolist() == [1, 3]
    assert [row.started.tolist() for row in rows] == [[False, False], [False, False], [True, False]]
    assert rows[1].over.tolist() == [True, False]
    assert (rows[0].observation == 50).all()


def test_nan_of_a_vector_is_said_at_its_step() -> None:
    env = wrap(Pictures("nan"))
    env.reset()
    for _ in range(2):
        env.step(np.zeros(2, np.int64))
    with pytest.raises(UserError, match="Pictures returned NaN as its reward at step 3"):
        env.step(np.zeros(2, np.int64))


def test_our_own_vector_passes_through() -> None:
    env = make_env(config())
    assert wrap(env) is env
    env.close()


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(UserError, match="num_envs is 4, but the object given is 1"):
        wrap(cartpole(), config(num_envs=4))
    with pytest.raises(UserError, match="dict is no environment"):
        wrap({})  # type: ignore[arg-type]
    with pytest.raises(UserError, match="made a list, but must make"):
        wrap(list)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="discrete action space"):
        wrap(gymnasium.make("Pendulum-v1"))


def test_states_of_wrapped_environments() -> None:
    env = wrap(cartpole)
    env.reset()
    for t in range(50):
        env.step(np.array([t % 2]))
    state, again = env.state(), wrap(cartpole)
    assert state is not None
    assert again.restore(state) is not None
    np.testing.assert_array_equal(again.step(np.array([1])).observation, env.step(np.array([1])).observation)
