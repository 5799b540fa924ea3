"""All that a run knows of an agent: it acts, observes, learns, and can be saved, described and played."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from psdrl.config import Config
from psdrl.envs.vector import EnvSpec, Step
from psdrl.replay.rows import Rings
from psdrl.runtime.execution import EAGER, Execution
from psdrl.runtime.work import Workload

Metrics = dict[str, float]


@dataclass
class Result:
    """One line of `psdrl.doctor`'s report: what `examine(device, quick, seconds)` in the `examination` of an agent's
    folder gives."""

    kind: str
    name: str
    status: Literal["ok", "wrong", "skipped"]
    detail: str
    data: dict[str, Any] = field(default_factory=dict)
    hint: str = ""  # what to do if it is wrong


class Actor(Protocol):
    """Plays N environments, each with its own episode."""

    def start(self, started: NDArray[np.bool_]) -> None:
        """New episodes begin where `started` (N,)."""

    def act(self, observations: NDArray) -> NDArray[np.int64]:
        """Actions (N,) for observations (N, ...)."""

    def state_dict(self) -> dict[str, Any]:
        """What it knows of the running episodes; its random stream is the agent's to keep."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""


class Agent(ABC):
    """What learns in a run. Its class is made by name (`psdrl.agents.registry`), from settings and an environment."""

    PHASES: ClassVar[dict[str, str]]  # the phases of an update, and what Nsight shows of them
    POLICIES: ClassVar[dict[str, str]]  # the ways to play it, the default first, each with a few words
    config: Config
    spec: EnvSpec
    device: torch.device
    execution: Execution = EAGER  # how its steps run
    actors: Sequence[Actor]  # one per group of environments
    replay: Rings  # as far as checkpoints know it

    def __init__(self) -> None:
        self.failed: dict[str, str] = {}  # start-up checks that failed, see `failed_checks`
        self.step = 0  # environment steps taken
        self.updates = 0
        self.episodes = 0

    @classmethod
    def failed_checks(cls, config: Any, spec: EnvSpec, device: torch.device) -> dict[str, str]:
        """Check what such an agent will use on this device and put fallbacks in the place of what fails, before any
        agent is made: the failures, each with its reason."""
        return {}

    @classmethod
    def workload(cls, config: Any, spec: EnvSpec) -> Workload | None:
        """What a run does, for the forecast of its cost; None: nobody has described it."""
        return None

    @abstractmethod
    def begin(self, first: int, observations: NDArray) -> None:
        """Environments `first`, `first` + 1, ... start their first episodes."""

    @abstractmethod
    def observe(self, first: int, actions: NDArray[np.int64], step: Step) -> None:
        """Keep what actions (N,) in environments `first`, `first` + 1, ... led to; where `step.started`, an episode
        begins and the action did nothing. `self.step` has been counted."""

    @abstractmethod
    def update_due(self) -> bool:
        """Whether to learn now."""

    @abstractmethod
    def update(self, on_phase: Callable[[str], None] = lambda name: None) -> Metrics:
        """Learn; returns what is worth logging. Raises `psdrl.errors.Diverged` if a number is not finite."""

    def undoing(self) -> Callable[[bool], None]:
        """Called before an update: keeps what it changes. The result puts that back; with True also random streams and
        counters, so that the same update is due again. Here: all of the state, in both cases."""
        state = copy.deepcopy(self.state_dict())
        return lambda streams: self.load_state_dict(state)

    @abstractmethod
    def player(self, stream: int, policy: str | None = None, num_envs: int = 1, epsilon: float | None = None) -> Actor:
        """Plays environments by one of POLICIES, with a random stream of its own: training goes on undisturbed.

        epsilon: probability of a random action; by default that of the agent's own evaluation."""

    @abstractmethod
    def description(self) -> dict[str, str]:
        """Lines of the summary at the start of a run."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything but the replay buffer and the running episodes."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""

    @property
    def fallbacks(self) -> list[str]:
        """What did not run as it should have, in words for the end of a run: failed checks, steps not captured."""
        failed = [f"{name} failed its check on {self.device}; its fallback served" for name in self.failed]
        return failed + [f"{name} ran without a CUDA graph" for name in self.execution.failures]
