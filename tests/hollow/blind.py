"""python blind.py [--see] MODULE ...: runs a module of psdrl on the hollow driver without its checks of values.

Kernels do nothing there, so no number means anything. Every call is still made, every result is still copied to the
host, and an exception inside a check is still a failure. Actions, and indices into a buffer on the host, are taken
modulo their number: the host refuses others. Where HOLLOW_REPORT names a file, torch's own peak of allocated memory
per device is written into it at exit.

--see leaves the kernels' checks on, to show that kernels which do nothing fail them; that no fallback can serve on a
device which cannot add is not considered.
"""

import contextlib
import json
import os
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from psdrl.agents.bootstrap.acting import HeadActor
from psdrl.agents.bootstrap.agent import BootstrapAgent
from psdrl.agents.dreamer.acting import LatentActor
from psdrl.agents.psdrl import examination, posterior
from psdrl.agents.psdrl.acting import Actor
from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.agents.successor import posterior as successor_posterior
from psdrl.agents.successor.acting import ThompsonActor
from psdrl.agents.successor.agent import SuccessorAgent
from psdrl.envs.gym import GymVector
from psdrl.errors import Diverged
from psdrl.kernels import checks
from psdrl.replay.episodes import Replay
from psdrl.run import checkpoint
from psdrl.run.store import saver


def raised(problem: str | None) -> bool:
    """Whether a check failed by an exception ("TypeError: ..."), not by a wrong value ("error 0.1, ..."): an index that
    a kernel should have written, and that the host then looks up, is a wrong value too."""
    return bool(re.match(r"[\w.]+: (?!index -?\d+ is out of bounds)", problem or ""))


def without_errors(findings: Any) -> list[Any]:
    """Keep what failed by an exception."""
    return [f if raised(f.problem) else f._replace(error=0.0, problem=None) for f in findings]


def blinded(check_all: Callable[..., Any]) -> Callable[..., list[Any]]:
    return lambda *args, **kwargs: without_errors([*check_all(*args, **kwargs)])


def read_back(info: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    """In place of `posterior.check`: the copy to the host that it makes, without its verdict."""
    info.reshape(-1).tolist()


def unjudged(check_finite: Callable[..., Any]) -> Callable[..., Any]:
    """An agent's look at its numbers, without its verdict: "finite" is a kernel's answer, too."""

    def wrapped(*args: Any, **kwargs: Any) -> None:
        with contextlib.suppress(Diverged):
            check_finite(*args, **kwargs)

    return wrapped


def valid(act: Callable[..., Any], count: Callable[[Any], int]) -> Callable[..., Any]:
    """An actor's `act` with actions that exist."""
    return lambda self, *args, **kwargs: act(self, *args, **kwargs) % count(self)


def sent(send: Callable[..., Any]) -> Callable[..., Any]:
    """A vector environment's `send`, likewise."""
    return lambda self, actions: send(self, actions % self.spec.num_actions)


def on_host(replay: Replay, slots: torch.Tensor) -> torch.Tensor:
    """Slots that exist, where the host looks them up."""
    held = replay.observations
    return (slots.cpu() % len(held)).to(slots.device) if held.device.type == "cpu" else slots


def within(frames: Callable[..., Any]) -> Callable[..., Any]:
    """`Replay.frames` with slots that exist; a slice of them is the host's own, and does."""

    def wrapped(self: Replay, slots: Any, *args: Any, **kwargs: Any) -> Any:
        return frames(self, slots if isinstance(slots, slice) else on_host(self, slots), *args, **kwargs)

    return wrapped


def existing(stored_slots: Callable[..., Any]) -> Callable[..., Any]:
    """`Replay.stored_slots` likewise."""
    return lambda self, *args, **kwargs: on_host(self, stored_slots(self, *args, **kwargs))


def without_distances(updates: Callable[..., Any]) -> Callable[..., Any]:
    """doctor's updates in every mode: exceptions and failed captures count, distances do not."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        for result in updates(*args, **kwargs):
            if result.data and "not captured" not in result.detail:  # an exception leaves no data
                result.status = "ok"
            yield result

    return wrapped


def report() -> None:
    """Peak of allocated bytes per device, as torch counts them."""
    peaks = [torch.cuda.max_memory_allocated(i) for i in range(torch.cuda.device_count())]
    Path(os.environ["HOLLOW_REPORT"]).write_text(json.dumps({"allocated_bytes": peaks}), encoding="utf-8")


def main() -> None:
    """Run the module named by the first argument."""
    if sees := sys.argv[1] == "--see":
        del sys.argv[1]
    if sees:
        checks._unusable = lambda device: None
    else:
        checks.check_all = blinded(checks.check_all)  # type: ignore[assignment]
        examination.updates = without_distances(examination.updates)
    posterior.check = read_back
    checkpoint.not_finite = saver.not_finite = lambda tensors: None  # what was never computed may be anything
    PsdrlAgent._check_finite = unjudged(PsdrlAgent._check_finite)  # type: ignore[method-assign]
    BootstrapAgent._check_finite = unjudged(BootstrapAgent._check_finite)  # type: ignore[method-assign]
    SuccessorAgent._check_finite = unjudged(SuccessorAgent._check_finite)  # type: ignore[method-assign]
    Actor.act = valid(Actor.act, lambda self: self.agent.spec.num_actions)  # type: ignore[method-assign]
    HeadActor.act = valid(HeadActor.act, lambda self: self.num_actions)  # type: ignore[method-assign]
    LatentActor.act = valid(LatentActor.act, lambda self: self.num_actions)  # type: ignore[method-assign]
    ThompsonActor.act = valid(ThompsonActor.act, lambda self: self.num_actions)  # type: ignore[method-assign]
    successor_posterior.check = read_back
    GymVector.send = sent(GymVector.send)  # type: ignore[method-assign]
    Replay.frames = within(Replay.frames)  # type: ignore[method-assign]
    Replay.stored_slots = existing(Replay.stored_slots)  # type: ignore[method-assign]
    module, sys.argv = sys.argv[1], sys.argv[1:]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        if "HOLLOW_REPORT" in os.environ:
            report()


if __name__ == "__main__":
    main()
