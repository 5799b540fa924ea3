"""For the tests of checkpoints: a small agent over a real replay buffer, and a disk that fails on order."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psdrl.agents.interface import Actor, Agent, Metrics
from psdrl.envs.vector import EnvSpec, Step
from psdrl.replay.episodes import Replay
from psdrl.replay.frames import FrameReplay
from psdrl.run.store.files import Disk

ACTIONS = 3


class SmallAgent(Agent):
    """Two weights, an optimiser's kind of state and a generator; `play` fills its replay buffer at random."""

    def __init__(self, kind: str = "episodes", capacity: int = 40, num_envs: int = 2, seed: int = 0) -> None:
        super().__init__()
        self.spec = EnvSpec("small", "vector", (2, 3), "uint8", ACTIONS, "test")
        self.device = torch.device("cpu")
        self.num_envs = num_envs
        self.replay: Any = (
            Replay(capacity, num_envs, (2, 3), "uint8")
            if kind == "episodes"
            else FrameReplay(capacity, num_envs, (2, 3), "uint8", 3, 9)
        )
        self.rng = np.random.default_rng(seed)
        self.weights = {"channels": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)}
        self.moments: dict[int, Tensor] = {}
        self.running = [False] * num_envs

    def play(self, steps: int) -> None:
        """Random transitions; weights and moments change too."""
        for _ in range(steps):
            env = int(self.rng.integers(self.num_envs))
            frame = self.rng.integers(0, 256, (2, 3)).astype(np.uint8)
            if not self.running[env]:
                self.replay.start(env, frame)
                self.running[env] = True
                continue
            action, reward, end = int(self.rng.integers(ACTIONS)), float(self.rng.normal()), self.rng.random() < 0.15
            if isinstance(self.replay, Replay):
                self.replay.add(env, action, reward, frame, bool(end), False)
            else:
                self.replay.add(env, action, reward, frame, bool(end), self.rng.random(9) < 0.5)
            self.running[env] = not end
            self.step += 1
        self.weights["channels"] += 0.1
        self.moments = {0: torch.full((3,), float(self.step)), 7: torch.tensor(self.step)}

    def state_dict(self) -> dict[str, Any]:
        return {
            "weights": self.weights,
            "moments": self.moments,
            "counters": {"step": self.step},
            "random": self.rng.bit_generator.state,
            "running": self.running,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = state["weights"]
        self.moments = state["moments"]
        self.step = state["counters"]["step"]
        self.rng.bit_generator.state = state["random"]
        self.running = state["running"]

    def begin(self, first: int, observations: NDArray) -> None:
        raise NotImplementedError

    def observe(self, first: int, actions: NDArray[np.int64], step: Step) -> None:
        raise NotImplementedError

    def update_due(self) -> bool:
        return False

    def update(self, on_phase: Callable[[str], None] = lambda name: None) -> Metrics:
        raise NotImplementedError

    def player(self, stream: int, policy: str | None = None, num_envs: int = 1, epsilon: float | None = None) -> Actor:
        raise NotImplementedError

    def description(self) -> dict[str, str]:
        return {}


def whole_state(agent: Agent) -> Any:
    """Everything that a checkpoint must bring back, copied, in a form that == compares exactly."""
    return frozen({"agent": agent.state_dict(), "replay": agent.replay.state_dict()})


def frozen(state: Any) -> Any:
    """A nested state as plain values: tensors and arrays by kind, shape, strides and bytes."""
    if isinstance(state, Tensor):
        return ("tensor", state.dtype, tuple(state.shape), state.stride(), state.flatten().tolist())
    if isinstance(state, np.ndarray):
        return ("array", state.dtype, state.shape, state.tobytes())
    if isinstance(state, np.generic):
        return ("scalar", state.dtype, state.tobytes())
    if isinstance(state, dict):
        return ("dict", [(key, type(key), frozen(value)) for key, value in state.items()])
    if isinstance(state, list | tuple):
        return (type(state), [frozen(value) for value in state])
    return (type(state), float(state).hex() if isinstance(state, float) else state)


class Crash(BaseException):
    """The process ends here: nothing cleans up."""


class FaultyDisk(Disk):
    """Fails at operation number `at`, counted from 0, and counts on.

    error: raise OSError with this number, or Crash; "short": write half, and say so; "silent": write half, and say all
    was written. after: the operation has happened when the error is raised. lasting: all later operations fail too.
    """

    def __init__(
        self, at: int = -1, error: int | type[Crash] | str = errno.ENOSPC, after: bool = False, lasting: bool = False
    ) -> None:
        self.at, self.error, self.after, self.lasting = at, error, after, lasting
        self.done: list[str] = []

    def _do(self, name: str, operation: Callable[[], Any]) -> Any:
        number = len(self.done)
        self.done.append(name)
        if isinstance(self.error, str) or not (number == self.at or (self.lasting and number > self.at >= 0)):
            return operation()
        if self.after:
            operation()
        raise self.error if isinstance(self.error, type) else OSError(self.error, "injected")

    def open(self, path: Path) -> BinaryIO:
        return self._do(f"open {path.name}", lambda: Disk.open(self, path))

    def write(self, file: BinaryIO, data: memoryview) -> int:
        if isinstance(self.error, str) and len(self.done) == self.at:
            self.done.append("half a write")
            half = Disk.write(self, file, data[: len(data) // 2])
            return half if self.error == "short" else len(data)
        return self._do("write", lambda: Disk.write(self, file, data))

    def fsync(self, file: BinaryIO) -> None:
        self._do("fsync", lambda: Disk.fsync(self, file))

    def fsync_directory(self, path: Path) -> None:
        self._do(f"fsync {path.name}", lambda: Disk.fsync_directory(self, path))

    def mkdir(self, path: Path) -> None:
        self._do(f"mkdir {path.name}", lambda: Disk.mkdir(self, path))

    def rename(self, old: Path, new: Path) -> None:
        self._do(f"rename {old.name}", lambda: Disk.rename(self, old, new))

    def unlink(self, path: Path) -> None:
        self._do(f"unlink {path.name}", lambda: Disk.unlink(self, path))

    def rmdir(self, path: Path) -> None:
        self._do(f"rmdir {path.name}", lambda: Disk.rmdir(self, path))


class ForgetfulDisk(FaultyDisk):
    """At a crash, what was not synced is lost: files lose their second half, renamed folders their new names."""

    def __init__(self, at: int) -> None:
        super().__init__(at, Crash)
        self.loose: dict[Path, None] = {}
        self.renamed: list[tuple[Path, Path]] = []

    def open(self, path: Path) -> BinaryIO:
        self.loose[path] = None
        return super().open(path)

    def fsync(self, file: BinaryIO) -> None:
        super().fsync(file)
        self.loose.pop(Path(file.name), None)

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self.renamed.append((old, new))

    def fsync_directory(self, path: Path) -> None:
        super().fsync_directory(path)
        self.renamed = [(old, new) for old, new in self.renamed if new.parent != path]

    def lose(self) -> None:
        """What a power failure takes."""
        for path in self.loose:
            if path.exists():
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        for old, new in reversed(self.renamed):
            if new.exists():
                new.rename(old)
