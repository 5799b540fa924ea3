"""Who listens to a run: the protocol of callbacks, and how the loop tells them what happens."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psdrl.agents.interface import Agent
from psdrl.config import Config
from psdrl.envs.vector import Step
from psdrl.errors import UserError


class Run:
    """What a callback sees of a run."""

    def __init__(self, agent: Agent, logdir: Path | None = None) -> None:
        self.agent = agent
        self.logdir = logdir  # where the run is written, None if nowhere
        self.stopping = False

    @property
    def config(self) -> Config:
        """The settings."""
        return self.agent.config

    @property
    def step(self) -> int:
        """Environment steps taken so far."""
        return self.agent.step

    def stop(self) -> None:
        """End the run after this step, as Ctrl-C does: the last checkpoint is written."""
        self.stopping = True


class Episode(NamedTuple):
    """An episode that has ended."""

    env: int  # number of its environment
    score: float  # sum of its rewards, as the environment gave them
    length: int  # steps


class Callback:
    """Listens to a run. A subclass overrides what it needs; methods return nothing.

    All methods run in the loop's own thread, in the order of the callbacks; what is not overridden is never called.
    An exception in one of them ends the run, like any other error; `on_end` of every callback is still called."""

    def on_start(self, run: Run) -> None:
        """Before the first step, after `resume` if the run continues an earlier one."""

    def on_step(self, run: Run, first: int, actions: NDArray[np.int64], step: Step) -> None:
        """Environments `first`, `first` + 1, ... took actions (N,), with this outcome; `run.step` counts them. Where
        `step.started`, the row only began an episode and is no transition."""

    def on_episode(self, run: Run, episode: Episode) -> None:
        """An episode has ended."""

    def on_fault(self, run: Run, faults: int) -> None:
        """An environment has failed and was made anew, or could not be restored in a resumed run: its episode is
        discarded; `faults` of them so far."""

    def on_phase(self, run: Run, name: str) -> None:
        """The run now does this: acting, evaluating, saving, or a phase of an update."""

    def on_update(self, run: Run, metrics: dict[str, float]) -> None:
        """The agent has learned; `metrics` is empty where it does not report every update."""

    def on_rejected(self, run: Run, phase: str, cause: str) -> None:
        """An update met a number that is not finite, and was undone."""

    def on_evaluation(self, run: Run, returns: list[float]) -> None:
        """Evaluation episodes were played."""

    def on_checkpoint(self, run: Run, path: Path) -> None:
        """A checkpoint is complete at `path`; it was written in the background, so `run.step` may be further."""

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """The run is over, after its last checkpoint; or `error` ended it."""

    def state(self) -> dict[str, Any]:
        """What `resume` needs to continue from here: numbers and strings, kept in a checkpoint."""
        return {}

    def resume(self, state: dict[str, Any]) -> None:
        """Continue, from `on_start` on, where `state` was taken."""


class Scalars(Callback):
    """Episodes, updates and evaluations as named numbers; a subclass says in `scalars` what becomes of them."""

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Numbers at this step."""
        raise NotImplementedError

    def on_episode(self, run: Run, episode: Episode) -> None:
        self.scalars(run.step, {"train/return": float(episode.score), "train/length": float(episode.length)})

    def on_fault(self, run: Run, faults: int) -> None:
        self.scalars(run.step, {"env/faults": float(faults)})

    def on_update(self, run: Run, metrics: dict[str, float]) -> None:
        if metrics:
            self.scalars(run.step, metrics)

    def on_rejected(self, run: Run, phase: str, cause: str) -> None:
        self.scalars(run.step, {f"rejected/{phase}": 1.0})

    def on_evaluation(self, run: Run, returns: list[float]) -> None:
        self.scalars(run.step, {"eval/return": float(np.mean(returns))})


EVENTS = ("on_step", "on_episode", "on_fault", "on_phase", "on_update", "on_rejected", "on_evaluation", "on_checkpoint")


class Listeners:
    """The callbacks of a run; inside `with`, from `on_start` to `on_end`, `tell` reaches them."""

    def __init__(self, callbacks: Callback | Iterable[Callback], run: Run) -> None:
        self.callbacks = [callbacks] if isinstance(callbacks, Callback) else list(callbacks)
        self.run = run
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                raise UserError(
                    f"{callback!r} is no callback: give an object whose class inherits psdrl.run.callbacks.Callback."
                )
        # An event to which nobody listens costs an empty loop.
        self._heard: dict[str, list[Callable[..., None]]] = {
            event: [getattr(c, event) for c in self.callbacks if _overrides(c, event)] for event in EVENTS
        }
        self._ends = ExitStack()

    def __enter__(self) -> "Listeners":
        with self._ends as ends:  # if one cannot start, those before it end
            for callback in self.callbacks:
                callback.on_start(self.run)
                ends.push(_end(callback, self.run))
            self._ends = ends.pop_all()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ends.__exit__(kind, error, trace)

    def tell(self, event: str, *what: Any) -> None:
        """Call this method of all who override it."""
        for hear in self._heard[event]:
            hear(self.run, *what)

    def phase(self, name: str) -> None:
        """What the run is doing now."""
        self.tell("on_phase", name)

    def state(self) -> dict[str, dict[str, Any]]:
        """What every callback needs to continue from here, by the name of its class."""
        return {type(c).__name__: state for c in self.callbacks if (state := c.state())}


def resume(callbacks: Iterable[Callback], states: dict[str, dict[str, Any]]) -> None:
    """Callbacks of a run that continues, from what `Listeners.state` gave."""
    for callback in callbacks:
        name = type(callback).__name__
        try:
            if name in states:
                callback.resume(states[name])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"The checkpoint's state of {name} cannot be used: {error!r}.") from None


def _overrides(callback: Callback, event: str) -> bool:
    return getattr(getattr(callback, event), "__func__", None) is not getattr(Callback, event)


def _end(callback: Callback, run: Run) -> Any:
    def exit(kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        callback.on_end(run, error)

    return exit
