"""Replay that also tells what was stored last: the posterior takes in each transition once."""

import numpy as np
from numpy.typing import NDArray

from psdrl.replay.frames import FrameReplay, Transitions


class RecentReplay(FrameReplay):
    """`FrameReplay`, whose slots are counted for each environment from the first one on."""

    def complete(self) -> NDArray[np.int64]:
        """How many slots of each environment (N,) are complete: the newest frame waits for its action."""
        return np.maximum(self.written - 1, 0)

    def since(self, known: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where transitions beyond the first `known` slots (N,) are stored, environment by environment; those that
        have left since are left out."""
        first = np.maximum(known, self.written - self.live)
        slots = [self._slot(env, np.arange(first[env], last)) for env, last in enumerate(self.complete())]
        found = np.concatenate(slots)
        return found[self.followed[found]]

    def transitions_at(self, slots: NDArray[np.int64]) -> Transitions:
        """The transitions that are stored there."""
        return self._read(slots)
