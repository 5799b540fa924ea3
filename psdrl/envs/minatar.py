"""MinAtar games as gymnasium environments: 10 x 10 binary planes, flattened; minimal actions."""

import copy
from collections import deque
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from psdrl.config import MinAtarConfig

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")


class MinAtar(gymnasium.Env[NDArray, np.int64]):
    """One MinAtar game, with or without sticky actions and difficulty ramping.

    An observation holds the last `stack` frames, newest first, side by side in each cell; zeros before the first."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self, game: str, sticky: float = 0.0, ramping: bool = False, stack: int = 1, render_mode: str | None = None
    ) -> None:
        from minatar import Environment  # imports matplotlib: 1.5 s, only for those who play MinAtar

        self.render_mode = render_mode
        self._game = Environment(game, sticky_action_prob=sticky, difficulty_ramping=ramping)
        self._actions = self._game.minimal_action_set()
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))
        height, width, planes = self._game.state_shape()
        self.grid = (height, width, planes * stack)
        self._frames = deque([np.zeros((height, width, planes), np.uint8)] * stack, stack)
        self.observation_space = gymnasium.spaces.Box(0, 1, (int(np.prod(self.grid)),), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[NDArray, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self._game.seed(seed)
        self._game.reset()
        self._game.last_action = 0  # the library carries the sticky action over into the next episode
        self._frames.extend([np.zeros_like(self._frames[0])] * len(self._frames))
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[NDArray, float, bool, bool, dict]:
        reward, terminated = self._game.act(self._actions[action])
        return self._observation(), float(reward), bool(terminated), False, {}

    def state_dict(self) -> dict[str, Any]:
        """The game's variables, its generator (which also draws sticky actions), the last action and the frames."""
        game = {name: _plain(value) for name, value in vars(self._game.env).items() if name != "random"}
        return {
            "game": game,
            "random": self._game.random.get_state(legacy=False),
            "last_action": int(self._game.last_action),
            "frames": np.stack(self._frames),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        if set(state["game"]) | {"random"} != set(vars(self._game.env)):
            raise ValueError("this is the state of another game or version")
        for name, value in state["game"].items():
            setattr(self._game.env, name, copy.deepcopy(value))
        self._game.random.set_state(state["random"])
        self._game.env.random = self._game.random
        self._game.last_action = state["last_action"]
        self._frames.extend(np.array(state["frames"], np.uint8))

    def _observation(self) -> NDArray[np.uint8]:
        self._frames.appendleft(self._game.state().astype(np.uint8))
        return np.concatenate(self._frames, 2).reshape(-1)

    def render(self) -> NDArray[np.uint8]:
        planes = self._game.state()
        channel = (planes * np.arange(1, planes.shape[2] + 1)).max(2)
        palette = np.random.default_rng(7).integers(60, 256, (planes.shape[2] + 1, 3)).astype(np.uint8)
        palette[0] = 0
        return palette[channel].repeat(16, 0).repeat(16, 1)


def make_minatar(game: str, protocol: MinAtarConfig, mode: str | None = None) -> gymnasium.Env[NDArray, np.int64]:
    """A game in this protocol."""
    env = MinAtar(game, protocol.sticky, protocol.ramping, protocol.stack, mode)
    return gymnasium.wrappers.TimeLimit(env, protocol.max_steps)


def _plain(value: Any) -> Any:
    """A copy of nested lists whose numbers are Python's; arrays stay arrays."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else copy.deepcopy(value)
