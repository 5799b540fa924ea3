"""Atari 2600 in the paper's protocol: grey frames of 64x64, action repeat 4, minimal actions, no frame stack, no sticky
actions, no life information, 1 to 30 no-ops, a cap of 27,000 steps. `--atari.*` departs from it.

Three backends. Their frames are equal but for the last one of an episode that ends within an action repeat, where
EnvPool pools the two last frames of the game and the others what they had; ale-py does that at the cap too."""

import importlib.util
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from psdrl.config import AtariConfig
from psdrl.envs.gym import GymVector
from psdrl.envs.history import History, fits, rows
from psdrl.envs.layers import LifeLoss, Stack, Sticky
from psdrl.envs.vector import EnvSpec, State, Step, VectorEnv
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
# Games whose console keeps memory over a reset, found by restoring all 55 (see `History`).
CARRIED_OVER = ("IceHockey", "TimePilot", "YarsRevenge")
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
    bare: EnvPoolVector | AleVector | GymVector
    if render or choose_backend(backend) == "gymnasium":
        bare = _gymnasium(game, num_envs, seeds, protocol, render)
    elif choose_backend(backend) == "ale":
        bare = AleVector(game, num_envs, seeds, protocol)
    else:
        bare = EnvPoolVector(game, num_envs, seeds, protocol)
    env: VectorEnv = bare
    if protocol.life_loss:
        env = LifeLoss(env, bare)
    if protocol.sticky:
        env = Sticky(env, protocol.sticky, seeds)
    return Stack(env, protocol.stack) if protocol.stack > 1 else env


def _spec(game: str, size: int, num_actions: int, backend: str) -> EnvSpec:
    return EnvSpec(game, "image", (1, size, size), "uint8", num_actions, backend)


def _count(space: gymnasium.Space[Any]) -> int:
    assert isinstance(space, gymnasium.spaces.Discrete)
    return int(space.n)


class EnvPoolVector(VectorEnv):
    """EnvPool: the environments run in C++ threads."""

    lives: NDArray[np.int64]  # (N,) left

    def __init__(self, game: str, num_envs: int, seeds: list[int], protocol: AtariConfig) -> None:
        import envpool

        self._make = partial(
            envpool.make,
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
            frame_skip=protocol.repeat,
            episodic_life=False,
            reward_clip=False,
            full_action_space=protocol.full_actions,
            repeat_action_probability=0.0,
            use_inter_area_resize=True,  # with this the frames equal gymnasium's
        )
        self._pool = self._make()
        self.num_envs = num_envs
        self.spec = _spec(game, protocol.size, _count(self._pool.action_space), "envpool")
        self._history = History(num_envs)

    def reset(self) -> NDArray:
        observation, info = self._pool.reset()
        self.lives = info["lives"]
        self._history.begin(observation)  # its generators go on where they are
        return observation

    def send(self, actions: NDArray[np.int64]) -> None:
        self._sent = np.asarray(actions, np.int32)
        self._pool.send(self._sent)

    def recv(self) -> Step:
        # A batch is the whole pool, so all of it is waited for and comes in order (info["env_id"] is 0, 1, ...).
        observation, reward, terminated, truncated, info = self._pool.recv()
        self.lives = info["lives"]
        step = Step(observation, reward, terminated, truncated, info["elapsed_step"] == 0)
        self._history.add(self._sent, step, info["ram"])
        return step

    def state(self) -> State | None:
        return self._history.state() | {"game": self.spec.name}

    def restore(self, state: State) -> NDArray | None:
        """Play the running episodes again; where the console's memory says that this is not enough, everything."""
        if not fits(state, self.spec, self.num_envs):
            return None
        observation = None if self.spec.name in CARRIED_OVER else self._replay_episodes(state)
        if observation is None and (everything := rows(state, self.num_envs)) is not None:
            self._pool.close()
            self._pool, self._history = self._make(), History(self.num_envs)
            observation = self.reset()
            for row in everything:
                observation = self.step(row).observation
            observation = observation if self._history.same(state) else None
        self._history.remember(state)
        return observation

    def _replay_episodes(self, state: State) -> NDArray | None:
        """Reset each environment as often as it was, then play its episode again."""
        resets, episodes = state["resets"], History.episodes(state)
        history, last = History(self.num_envs), np.empty((self.num_envs, *self.spec.shape), np.uint8)
        for count in range(1, max(resets) + 1):
            ids = np.flatnonzero(resets >= count).astype(np.int32)
            observation, info = self._pool.reset(ids)
            for i, frame in zip(info["env_id"], observation, strict=True):
                history.start(i, count, frame)
                last[i] = frame
        for t in range(max(state["lengths"])):
            ids = np.flatnonzero(state["lengths"] > t).astype(np.int32)
            self._pool.send(np.array([episodes[i][t] for i in ids], np.int32), ids)
            observation, reward, _, _, info = self._pool.recv()
            for row, i in enumerate(info["env_id"]):
                history.extend(i, int(episodes[i][t]), observation[row], float(reward[row]), info["ram"][row])
                last[i] = observation[row]
        self._history, history.observation = history, last
        return last if history.same(state) else None

    def close(self) -> None:
        self._pool.close()


class AleVector(VectorEnv):
    """ale-py's own vector environment. It draws 0 to noop_max no-ops, the others 1 to noop_max."""

    lives: NDArray[np.int64]  # (N,) left

    def __init__(self, game: str, num_envs: int, seeds: list[int], protocol: AtariConfig) -> None:
        from ale_py.vector_env import AtariVectorEnv

        name = "".join("_" + c.lower() if c.isupper() else c for c in game).lstrip("_")
        self._make = partial(
            AtariVectorEnv,
            name,
            num_envs,
            img_height=protocol.size,
            img_width=protocol.size,
            stack_num=1,
            frameskip=protocol.repeat,
            maxpool=protocol.repeat > 1,
            noop_max=protocol.noop_max + 1,  # exclusive here
            max_num_frames_per_episode=protocol.repeat * protocol.max_steps,  # counted from the end of the no-ops
            repeat_action_probability=0.0,
            full_action_space=protocol.full_actions,
            reward_clipping=False,
            use_fire_reset=False,
        )
        self._envs = self._make()
        self._seeds = np.asarray(seeds)
        self._done = np.zeros(num_envs, bool)
        self._history = History(num_envs)
        self.num_envs = num_envs
        self.spec = _spec(game, protocol.size, _count(self._envs.single_action_space), "ale")

    def reset(self) -> NDArray:
        self._done = np.zeros(self.num_envs, bool)
        observation, info = self._envs.reset(seed=self._seeds)
        self.lives = info["lives"]
        self._history.begin(observation, again=False)
        return observation

    def send(self, actions: NDArray[np.int64]) -> None:
        self._sent = np.asarray(actions)
        self._envs.send(self._sent)

    def recv(self) -> Step:
        observation, reward, terminated, truncated, info = self._envs.recv()
        started = self._done
        self._done, self.lives = terminated | truncated, info["lives"]
        step = Step(observation, np.asarray(reward, np.float32), terminated, truncated, started)
        self._history.add(self._sent, step)
        return step

    def state(self) -> State | None:
        return self._history.state() | {"game": self.spec.name}

    def restore(self, state: State) -> NDArray | None:
        """Play the running episodes again; where that is not enough, everything."""
        if not fits(state, self.spec, self.num_envs):
            return None
        observation = None if self.spec.name in CARRIED_OVER else self._replay_episodes(state)
        if observation is None and (everything := rows(state, self.num_envs)) is not None:
            self._envs.close()
            self._envs = self._make()
            observation = self.reset()
            for row in everything:
                observation = self.step(row).observation
            observation = observation if self._history.same(state) else None
        self._history.remember(state)
        return observation

    def _replay_episodes(self, state: State) -> NDArray | None:
        """All episodes come to the present at once: a shorter one is seeded and
        reset later than a longer one, as often as it was. Its environment plays anything until then."""
        self.reset()
        episodes, longest = History.episodes(state), int(max(state["lengths"]))
        for t in range(longest + 1):
            for i in np.flatnonzero(longest - state["lengths"] == t):
                self._reset_one(int(i), int(state["resets"][i]))
            if t < longest:
                first = longest - state["lengths"]
                actions = [int(episodes[i][t - first[i]]) if t >= first[i] else 0 for i in range(self.num_envs)]
                self.step(np.array(actions))
        restored = self._history.observation
        return restored if restored is not None and self._history.same(state) else None

    def _reset_one(self, env: int, count: int) -> None:
        """Seed one environment and reset it so many times."""
        mask = np.arange(self.num_envs) == env
        for k in range(count):
            seed = self._seeds[env : env + 1] if k == 0 else None
            observation, info = self._envs.reset(seed=seed, options={"reset_mask": mask})
        self._done[env] = False
        self.lives = info["lives"]
        self._history.start(env, count, observation[env])
        self._history.observation = observation

    def close(self) -> None:
        self._envs.close()


def _gymnasium(game: str, num_envs: int, seeds: list[int], protocol: AtariConfig, render: bool) -> GymVector:
    import ale_py

    gymnasium.register_envs(ale_py)

    def make() -> gymnasium.Env[Any, Any]:
        env: gymnasium.Env[Any, Any] = gymnasium.make(
            f"ALE/{game}-v5",
            frameskip=1,
            repeat_action_probability=0.0,
            full_action_space=protocol.full_actions,
            max_num_frames_per_episode=None,
            render_mode="rgb_array" if render else None,
        )
        env = gymnasium.wrappers.AtariPreprocessing(
            env, noop_max=protocol.noop_max, frame_skip=protocol.repeat, screen_size=protocol.size
        )
        return gymnasium.wrappers.TimeLimit(env, protocol.max_steps)

    one = make()
    return GymVector(_spec(game, protocol.size, _count(one.action_space), "gymnasium"), [make] * num_envs, seeds, one)
