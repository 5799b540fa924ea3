"""Observations of any gymnasium environment: checked where they come from, then pictures of 64x64 or flat vectors.

| observation | becomes |
| --- | --- |
| Box of uint8, or of floats within [0, 1] or [0, 255], with two sides of 16 or more: (H, W), (H, W, 1 or 3), (1 or 3, H, W) | one grey picture |
| the same k times: (k, H, W), (k, H, W, 1 or 3), (k, 1 or 3, H, W) | k grey pictures |
| Box of one dimension | itself |
| any other Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple of such, up to 1024 numbers | a vector |
| anything else | refused |
"""  # noqa: E501

import math
from collections.abc import Callable
from typing import Any

import cv2
import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from psdrl.errors import UserError

SIZE = 64  # of pictures
SHORTEST = 16  # side of a picture: smaller ones are grids of symbols
LONGEST = 1024  # vector that is made of something else
MOST = 16  # pictures in one observation

Convert = Callable[[Any], NDArray]


class Unfit(ValueError):
    """What an environment returned cannot be used; the text continues the environment's name."""


class Checked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises `Unfit` at the step that returns NaN, infinity, or something else than the environment declares."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        outcome = self.env.reset(seed=seed, options=options)
        _check_count(outcome, "reset", ("observation", "info"))
        check_observation(self.env.observation_space, outcome[0])
        return outcome

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        outcome = self.env.step(action)
        _check_count(outcome, "step", ("observation", "reward", "terminated", "truncated", "info"))
        check_observation(self.env.observation_space, outcome[0])
        check_reward(outcome[1])
        return outcome


def _check_count(outcome: Any, method: str, names: tuple[str, ...]) -> None:
    if not isinstance(outcome, tuple) or len(outcome) != len(names):
        count = f"{len(outcome)} values" if isinstance(outcome, tuple) else "no tuple"
        raise Unfit(f"returned {count} from {method}() instead of {', '.join(names)}")


def check_observation(space: spaces.Space[Any], observation: Any) -> None:
    """Shape, type and finite numbers of a Box; bounds are not checked, since many environments overstep theirs."""
    if isinstance(space, spaces.Box):
        array = np.asarray(observation)
        if array.shape != space.shape:
            raise Unfit(f"returned an observation of shape {array.shape} instead of {space.shape}")
        if not np.can_cast(array.dtype, space.dtype, "same_kind"):
            raise Unfit(f"returned an observation of type {array.dtype} instead of {space.dtype}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise Unfit(f"returned {'NaN' if np.isnan(array).any() else 'infinity'} in its observation")
    elif isinstance(space, spaces.Dict) and isinstance(observation, dict) and set(observation) == set(space.keys()):
        for name, part in space.items():
            check_observation(part, observation[name])
    elif isinstance(space, spaces.Tuple) and isinstance(observation, tuple) and len(observation) == len(space):
        for part, value in zip(space, observation, strict=True):
            check_observation(part, value)
    elif not space.contains(observation):
        raise Unfit(f"returned the observation {str(observation)[:60]}, which is not in {str(space)[:60]}")


def check_reward(reward: Any) -> None:
    """A finite number."""
    try:
        value = float(reward)
    except (TypeError, ValueError):
        raise Unfit(f"returned the reward {str(reward)[:60]}, which is no number") from None
    if not math.isfinite(value):
        raise Unfit(f"returned {'NaN' if math.isnan(value) else 'infinity'} as its reward")


class Converted(gymnasium.ObservationWrapper[NDArray, Any, Any]):
    """Observations as pictures or vectors."""

    def __init__(self, env: gymnasium.Env[Any, Any], name: str) -> None:
        super().__init__(env)
        self.observation_space, self._convert = conversion(env.observation_space, name)

    def observation(self, observation: Any) -> NDArray:
        return self._convert(observation)


def conversion(space: spaces.Space[Any], name: str) -> tuple[spaces.Box, Convert]:
    """What the agent sees of observations in `space`, and how it is made."""
    if isinstance(space, spaces.Box) and looks_like_pictures(space):
        convert = _pictures(space, name)
        count = len(convert(np.zeros(space.shape, space.dtype)))
        return spaces.Box(0, 255, (count, SIZE, SIZE), np.uint8), convert
    if _parts_with_pictures(space):
        raise UserError(
            f"{name} has observations {space} with a picture among other things: keep the picture alone, or flatten "
            "them as you like, e.g. with gymnasium.wrappers.TransformObservation."
        )
    size = spaces.flatdim(space) if space.is_np_flattenable else 0
    flat = spaces.flatten_space(space) if size else None
    if not isinstance(flat, spaces.Box):
        raise UserError(f"{name} has observations {space}, which cannot be flattened into a vector.")
    if size > LONGEST and not (isinstance(space, spaces.Box) and len(space.shape) == 1):
        raise UserError(
            f"{name} has observations {space}: neither a picture nor a vector, and {size} numbers are many; if you "
            "mean a vector, wrap the environment in gymnasium.wrappers.FlattenObservation."
        )
    return flat, lambda observation: np.asarray(spaces.flatten(space, observation))


def looks_like_pictures(space: spaces.Box) -> bool:
    """Whether a Box has the type of a picture and two sides that are long enough."""
    if len(space.shape) < 2 or sum(side >= SHORTEST for side in space.shape) < 2:
        return False
    return space.dtype == np.uint8 or (np.issubdtype(space.dtype, np.floating) and _range(space) in (1, 255))


def _range(space: spaces.Box) -> float:
    """The upper bound of all numbers, if 0 is their lower bound."""
    low, high = float(space.low.min()), float(space.high.max())
    return high if low == 0 and float(space.high.min()) == high else 0


def _parts_with_pictures(space: spaces.Space[Any]) -> bool:
    parts = list(space.values()) if isinstance(space, spaces.Dict) else []
    parts += list(space) if isinstance(space, spaces.Tuple) else []
    return any(
        looks_like_pictures(part) if isinstance(part, spaces.Box) else _parts_with_pictures(part) for part in parts
    )


def _pictures(space: spaces.Box, name: str) -> Convert:
    """Observations of this shape as grey pictures (k, 64, 64)."""
    shape = space.shape
    scale = 255.0 if space.dtype != np.uint8 and _range(space) == 1 else 1.0
    last, first = shape[-1] in (1, 3), len(shape) > 2 and shape[-3] in (1, 3)
    sides = shape[-3:-1] if last else shape[-2:]
    layers = len(shape) - 2 - (last or first)  # dimensions that count pictures
    if (len(shape) > 2 and layers == 1 and shape[0] > MOST) or layers > 1 or min(sides) < SHORTEST:
        raise UserError(
            f"{name} has observations {space}: pictures need 1 or 3 colours, first or last, and may be stacked, up to "
            f"{MOST} of them, in the first dimension."
        )

    def convert(observation: Any) -> NDArray:
        pictures = np.asarray(observation)
        if pictures.dtype != np.uint8:
            pictures = np.clip(np.rint(pictures * scale), 0, 255).astype(np.uint8)
        pictures = pictures if layers == 1 else pictures[None]
        if first and not last:
            pictures = np.moveaxis(pictures, -3, -1)
        return np.stack([_grey(np.ascontiguousarray(picture)) for picture in pictures])

    return convert


def _grey(picture: NDArray) -> NDArray:
    """A picture (H, W), (H, W, 1) or (H, W, 3) as 64x64 grey."""
    if picture.ndim == 3:
        picture = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY) if picture.shape[2] == 3 else picture[:, :, 0]
    return cv2.resize(picture, (SIZE, SIZE), interpolation=cv2.INTER_AREA)


def prepared(env: gymnasium.Env[Any, Any], name: str) -> gymnasium.Env[Any, Any]:
    """Any gymnasium environment with discrete actions: checked, actions from 0 on, pictures or vectors."""
    actions = env.action_space
    if not isinstance(actions, spaces.Discrete):
        raise UserError(f"{name} has actions {actions}, but PSDRL needs a discrete action space.")
    env = Checked(env)
    if actions.start != 0:
        start, count = int(actions.start), int(actions.n)
        env = gymnasium.wrappers.TransformAction(env, lambda a: a + start, spaces.Discrete(count))
    return Converted(env, name)
