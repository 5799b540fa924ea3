"""Checkpoints of a run: found, restored, written.

A run directory holds config.json, metrics.jsonl, TensorBoard files, `checkpoint-STEP/` folders and the replay rows that
they share, `replay/segment-*.zst`. Tensors are safetensors, all else JSON: restoring a run executes none of its code.
Playing a run does not read its replay buffer.
"""

from pathlib import Path
from typing import Any, NamedTuple

from psdrl.agents.interface import Agent
from psdrl.errors import UserError
from psdrl.run.store import manifest
from psdrl.run.store.files import Damaged, read_checked
from psdrl.run.store.fitting import check_fit, tensor_bytes
from psdrl.run.store.manifest import REPLAY, Manifest
from psdrl.run.store.saver import Store, checkpoints
from psdrl.run.store.segments import restore_rows
from psdrl.run.store.settings import FREE, check_same, read_config, settings_of, write_config
from psdrl.run.store.tree import JSON_BYTES, from_json, from_safetensors, join, not_finite

__all__ = [
    "FREE",
    "Found",
    "Store",
    "check_same",
    "find",
    "latest",
    "newest",
    "read_config",
    "restore",
    "save",
    "settings_of",
    "write_config",
]
EXTRA_BYTES = 1 << 30  # most bytes of tensors in a run's own state, as that of its environments
_WRONG = (KeyError, IndexError, RuntimeError, ValueError, TypeError, AttributeError, OverflowError, AssertionError)


class Found(NamedTuple):
    """What a run has to go on from."""

    newest: Path | None  # the newest checkpoint of which every byte is as it was written
    damaged: list[tuple[Path, str]]  # newer ones that cannot serve, each with a reason, the newest first


def find(logdir: Path, replay: bool = True) -> Found:
    """The newest checkpoint that is whole; without `replay` its replay buffer is not looked at."""
    damaged: list[tuple[Path, str]] = []
    for path in checkpoints(logdir):
        try:
            manifest.verify(path, logdir / REPLAY if replay else None)
            return Found(path, damaged)
        except Damaged as error:
            damaged.append((path, str(error)))
    return Found(None, damaged)


def latest(logdir: Path) -> Path | None:
    """The newest whole checkpoint of a run, its replay buffer aside."""
    return find(logdir, replay=False).newest


def newest(logdir: Path, replay: bool = True) -> Found:
    """`find`, but a run that has checkpoints must have one that is whole."""
    found = find(logdir, replay)
    if found.newest is None and found.damaged:
        path, reason = found.damaged[0]
        more = f", and neither can {len(found.damaged) - 1} older" if len(found.damaged) > 1 else ""
        raise UserError(
            f"The checkpoint {path} cannot be used ({reason}){more}: remove the checkpoint folders to start again from "
            "the beginning, or use another --logdir."
        )
    return found


def save(logdir: Path, agent: Agent, extra: dict[str, Any] | None = None, keep: int = 2) -> Path:
    """Write one checkpoint of an agent, all of it, now; a run that goes on uses a `Store`."""
    problems: list[str] = []
    store = Store(logdir, keep, problems.append)
    store.save(agent, extra)
    store.wait()
    if store.saved is None:
        raise UserError(problems[0])
    return store.saved.path


def restore(checkpoint: Path, agent: Agent, replay: bool = True) -> dict[str, Any]:
    """Load a checkpoint into an agent of the same configuration; returns the `extra` that was saved with it, which is
    not read without `replay`. Everything is checked before it is used: the run may be a stranger's."""
    try:
        found = manifest.load(checkpoint)
        own = agent.state_dict()
        state, tensors = _read(checkpoint, found, "agent", (64 << 20) + 8 * tensor_bytes(own))
        bad = not_finite(tensors)
        if bad is not None:
            raise Damaged(f"{bad} is not finite")
        check_fit(own, state)
        extra = _read(checkpoint, found, "run", EXTRA_BYTES)[0] if replay else {}
        if not isinstance(extra, dict):
            raise Damaged("its run has no state")
        agent.load_state_dict(state)
        if max(agent.step, agent.updates, agent.episodes) >= 2**62:
            raise Damaged("it counts more steps than can be")
        if replay:
            agent.replay.load_counters(_read(checkpoint, found, "replay", 0)[0])
            restore_rows(checkpoint.parent / REPLAY, found, agent.replay, agent.spec.num_actions)
        return extra
    except Damaged as error:
        raise UserError(f"The checkpoint {checkpoint} cannot be used: {error}.") from None
    except _WRONG as error:
        message = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UserError(f"The checkpoint {checkpoint} does not fit its configuration: {message}") from None


def _read(checkpoint: Path, found: Manifest, part: str, limit: int) -> tuple[Any, dict[str, Any]]:
    """A state and its tensors, of at most so many bytes."""
    names = f"{part}.json", f"{part}.safetensors"
    limits = JSON_BYTES, limit + (1 << 20)
    data = (read_checked(checkpoint / name, found.files[name], most) for name, most in zip(names, limits, strict=True))
    tree, tensors = from_json(next(data), names[0]), from_safetensors(next(data), names[1])
    return join(tree, tensors), tensors
