"""Atari 2600 in the paper's protocol: grey frames of 64x64, action repeat 4, minimal actions, no frame stack, no sticky
actions, no life information, 1 to 30 no-ops, a cap of 27,000 steps.

Three backends. Their frames are equal but for the last one of an episode that ends within an action repeat, where
EnvPool pools the two last frames of the game and the others what they had."""

import importlib.util
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from psdrl.config import AtariConfig
from psdrl.envs.vector import EnvSpec, GymVector, Step, VectorEnv
from psdrl.errors import UserError, nearest

# The paper's 55 games: the usual 57 without Defender and Surround.
_NAMES = (
    "Alien Amidar Assault Asterix Asteroids Atlantis BankHeist BattleZone BeamRider Berzerk Bowling Boxing "
    "Breakout Centipede ChopperCommand CrazyClimber DemonAttack DoubleDunk Enduro FishingDerby Freeway Frostbite "
    "Gopher Gravitar Hero IceHockey Jamesbond Kangaroo Krull KungFuMaster MontezumaRevenge MsPacman NameThisGame "
    "Phoenix Pitfall Pong PrivateEye Qbert Riverraid RoadRunner Robotank Seaquest Skiing Solaris SpaceInvaders "
    "StarGunner Tennis TimePilot Tutankham UpNDown Venture VideoPinball WizardOfWor YarsRevenge Zaxxon "
)
GAMES = tuple(_NAMES.split())
MODULES = {"envpool": "envpool", "ale": "ale_py", "gymnasium": "ale_py"}


def choose_backend(name: str) -> str:
    """The backend asked for, or the first that is installed."""
    installed = [backend for backend, module in MODULES.items() if importlib.util.find_spec(module)]
    if name == "auto" and installed:
        return installed[0]
    if name in installed:
        return name
    module = MODULES.get(name, "ale_py")
    raise UserError(
        f"Atari with --env-backend {name} needs the package {module}: pip install {module.replace('_', '-')}."
    )


def check_game(game: str) -> str:
    """The game's name, whatever its case; refuses a game that is not among the 55."""
    by_lower = {name.lower(): name for name in GAMES}
    if game.lower() not in by_lower:
        raise UserError(f"Unknown Atari game {game!r}{nearest(game, GAMES) or ': see psdrl.envs.atari.GAMES.'}")
    return by_lower[game.lower()]


def make_atari(
    game: str, num_envs: int, seeds: list[int], protocol: AtariConfig, backend: str, render: bool = False
) -> VectorEnv:
    """N environments of one game."""
    game = check_game(game)
    if render or choose_backend(backend) == "gymnasium":
        return _gymnasium(game, num_envs, seeds, protocol, render)
    if choose_backend(backend) == "ale":
        return AleVector(game, num_envs, seeds, protocol)
    return EnvPoolVector(game, num_envs, seeds, protocol)


def _spec(game: str, size: int, num_actions: int, backend: str) -> EnvSpec:
    return EnvSpec(game, "image", (1, size, size), "uint8", num_actions, backend)


def _count(space: gymnasium.Space[Any]) -> int:
    assert isinstance(space, gymnasium.spaces.Discrete)
    return int(space.n)


class EnvPoolVector(VectorEnv):
    """EnvPool: the environments run in C++ threads."""

    def __init__(self, game: str, num_envs: int, seeds: list[int], protocol: AtariConfig) -> None:
        import envpool

        self._pool = envpool.make(
            f"{game}-v5",
            env_type="gymnasium",
            num_envs=num_envs,
            seed=seeds,  # a plain seed means seed + i, which collides between runs
            stack_num=1,
            img_height=protocol.size,
            img_width=protocol.size,
            use_fire_reset=False,
            noop_max=protocol.noop_max,
            max_episode_steps=protocol.max_steps,
            frame_skip=4,
            episodic_life=False,
            reward_clip=False,
            full_action_space=False,
            repeat_action_probability=0.0,
            use_inter_area_resize=True,  # with this the frames equal gymnasium's
        )
        self.num_envs = num_envs
        self.spec = _spec(game, protocol.size, _count(self._pool.action_space), "envpool")

    def reset(self) -> NDArray:
        return self._pool.reset()[0]

    def send(self, actions: NDArray[np.int64]) -> None:
        self._pool.send(np.asarray(actions, np.int32))

    def recv(self) -> Step:
        # A batch is the whole pool, so all of it is waited for and comes in order (info["env_id"] is 0, 1, ...).
        observation, reward, terminated, truncated, info = self._pool.recv()
        return Step(observation, reward, terminated, truncated, info["elapsed_step"] == 0)

    def close(self) -> None:
        self._pool.close()


class AleVector(VectorEnv):
    """ale-py's own vector environment. It draws 0 to noop_max no-ops, the others 1 to noop_max."""

    def __init__(self, game: str, num_envs: int, seeds: list[int], protocol: AtariConfig) -> None:
        from ale_py.vector_env import AtariVectorEnv

        name = "".join("_" + c.lower() if c.isupper() else c for c in game).lstrip("_")
        self._envs = AtariVectorEnv(
            name,
            num_envs,
            img_height=protocol.size,
            img_width=protocol.size,
            stack_num=1,
            noop_max=protocol.noop_max + 1,  # exclusive here
            max_num_frames_per_episode=4 * protocol.max_steps,  # counted from the end of the no-ops
            repeat_action_probability=0.0,
            reward_clipping=False,
            use_fire_reset=False,
        )
        self._seeds = np.asarray(seeds)
        self._done = np.zeros(num_envs, bool)
        self.num_envs = num_envs
        self.spec = _spec(game, protocol.size, _count(self._envs.single_action_space), "ale")

    def reset(self) -> NDArray:
        self._done[:] = False
        return self._envs.reset(seed=self._seeds)[0]

    def send(self, actions: NDArray[np.int64]) -> None:
        self._envs.send(np.asarray(actions))

    def recv(self) -> Step:
        observation, reward, terminated, truncated, _ = self._envs.recv()
        started = self._done
        self._done = terminated | truncated
        return Step(observation, np.asarray(reward, np.float32), terminated, truncated, started)

    def close(self) -> None:
        self._envs.close()


def _gymnasium(game: str, num_envs: int, seeds: list[int], protocol: AtariConfig, render: bool) -> VectorEnv:
    import ale_py

    gymnasium.register_envs(ale_py)

    def make() -> gymnasium.Env[Any, Any]:
        env: gymnasium.Env[Any, Any] = gymnasium.make(
            f"ALE/{game}-v5",
            frameskip=1,
            repeat_action_probability=0.0,
            full_action_space=False,
            max_num_frames_per_episode=None,
            render_mode="rgb_array" if render else None,
        )
        env = gymnasium.wrappers.AtariPreprocessing(
            env, noop_max=protocol.noop_max, frame_skip=4, screen_size=protocol.size
        )
        return gymnasium.wrappers.TimeLimit(env, protocol.max_steps)

    envs = gymnasium.vector.SyncVectorEnv([make] * num_envs)
    return GymVector(_spec(game, protocol.size, _count(envs.single_action_space), "gymnasium"), envs, seeds)
