"""DeepSea, the hard-exploration problem of bsuite: a diver on an N x N grid who sinks one row per step.

Only N times "right" reaches the treasure (reward 1); each "right" costs 0.01/N, so greedy agents learn to go left.
Which of the two actions is "right" is drawn once per cell, from a fixed seed, and stays the same in all episodes.
"""

import re
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray


def deepsea_size(env: str | None) -> int | None:
    """N of deepsea-N or deepsea-N-image; None for any other name."""
    match = re.fullmatch(r"deepsea-(\d+)(-image)?", env or "")
    return int(match[1]) if match else None


SOLVED, WINDOW = 40, 50  # DeepSea is solved when the treasure was reached in 40 of 50 consecutive episodes


def solved_after(returns: Sequence[float]) -> int | None:
    """Episodes until DeepSea counts as solved: the end of the first such window; None: it is not solved."""
    hits = [score > 0.5 for score in returns]
    ends = range(SOLVED, len(hits) + 1)
    return next((end for end in ends if sum(hits[max(0, end - WINDOW) : end]) >= SOLVED), None)


class DeepSea(gymnasium.Env[NDArray, np.int64]):
    """Observations: the diver's cell as a one-hot vector of N*N, or as a 64x64 image."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, size: int, image: bool = False, mapping_seed: int = 42, render_mode: str | None = None) -> None:
        self.size, self.image, self.render_mode = size, image, render_mode
        self.action_space = gymnasium.spaces.Discrete(2)
        if image:
            self.observation_space = gymnasium.spaces.Box(0, 255, (1, 64, 64), np.uint8)
        else:
            self.observation_space = gymnasium.spaces.Box(0, 1, (size * size,), np.uint8)
        # The action that means "right" in each cell.
        self._right = np.random.default_rng(mapping_seed).integers(2, size=(size, size))
        self._row = self._column = 0

    def right(self) -> int:
        """The action that means "right" in the current cell (for tests and figures)."""
        return int(self._right[min(self._row, self.size - 1), self._column])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[NDArray, dict]:
        super().reset(seed=seed)
        self._row = self._column = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[NDArray, float, bool, bool, dict]:
        right = action == self.right()
        treasure = right and self._row == self._column == self.size - 1
        reward = (1.0 if treasure else 0.0) - (0.01 / self.size if right else 0.0)
        self._column = int(np.clip(self._column + (1 if right else -1), 0, self.size - 1))
        self._row += 1
        return self._observation(), reward, self._row == self.size, False, {}

    def state_dict(self) -> dict[str, Any]:
        """Where the diver is."""
        return {"row": self._row, "column": self._column}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put the diver back."""
        self._row, self._column = state["row"], state["column"]

    def _observation(self) -> NDArray:
        """The absorbing state below the last row shows no diver."""
        if self.image:
            frame = np.zeros((1, 64, 64), np.uint8)
            if self._row < self.size:
                edges = np.linspace(0, 64, self.size + 1).round().astype(int)
                rows, columns = (slice(edges[i], edges[i + 1]) for i in (self._row, self._column))
                frame[0, rows, columns] = 255
            return frame
        cell = np.zeros(self.size * self.size, np.uint8)
        if self._row < self.size:
            cell[self._row * self.size + self._column] = 1
        return cell

    def render(self) -> NDArray[np.uint8]:
        cell = max(4, 256 // self.size)
        grid = np.full((self.size, self.size, 3), (12, 40, 80), np.uint8)
        grid[-1, -1] = (230, 190, 60)
        if self._row < self.size:
            grid[self._row, self._column] = (240, 240, 240)
        return grid.repeat(cell, 0).repeat(cell, 1)
