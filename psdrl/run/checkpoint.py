"""Checkpoints and the run directory.

A run directory holds config.json, metrics.jsonl, TensorBoard files and one checkpoint, `checkpoint-STEP/`, with the
agent and the replay buffer in separate files, so that playing a run does not load its replay buffer. A checkpoint is
written beside the old one and renamed when it is complete; a crash while saving leaves the old one.
"""

import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import torch

from psdrl.agents.interface import Agent
from psdrl.agents.registry import config_from_dict
from psdrl.config import Config
from psdrl.errors import UserError
from psdrl.version import __version__

# A resumed run may differ in these; everything else must be as it was.
FREE = {
    *("steps", "logdir", "log", "resume", "device", "compile", "cuda_graphs", "profile"),
    *("eval_every", "eval_episodes", "checkpoint_every"),
    "replay.device",  # where the frames lie changes no number
}


def save(logdir: Path, agent: Agent) -> Path:
    """Write the agent and its replay buffer; older checkpoints are removed."""
    final = logdir / f"checkpoint-{agent.step}"
    partial = logdir / f".partial-{agent.step}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    metrics = logdir / "metrics.jsonl"
    logged = {"metrics_bytes": metrics.stat().st_size if metrics.exists() else 0}
    for name, state in (("agent", agent.state_dict() | logged), ("replay", agent.replay.state_dict())):
        with open(partial / f"{name}.pt", "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    for old in logdir.glob("checkpoint-*"):
        if old != final:
            shutil.rmtree(old)
    return final


def latest(logdir: Path) -> Path | None:
    """The newest checkpoint of a run."""
    found = [p for p in logdir.glob("checkpoint-*") if p.name.removeprefix("checkpoint-").isdigit()]
    return max(found, key=lambda p: int(p.name.removeprefix("checkpoint-")), default=None)


def _read(path: Path) -> dict[str, Any]:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise UserError(
            f"The checkpoint {path} cannot be read ({type(error).__name__}): it is damaged or cut short; "
            "remove its folder to start again from the beginning, or use another --logdir."
        ) from None


def restore(checkpoint: Path, agent: Agent, replay: bool = True) -> int:
    """Load a checkpoint into an agent of the same configuration; returns how long metrics.jsonl was then."""
    state = _read(checkpoint / "agent.pt")
    stored = _read(checkpoint / "replay.pt") if replay else None
    try:
        agent.load_state_dict(state)
        if stored is not None:
            agent.replay.load_state_dict(stored)
        return state["metrics_bytes"]
    except (KeyError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        message = str(error).splitlines()[0]
        raise UserError(f"The checkpoint {checkpoint} does not fit its configuration: {message}") from None


def write_config(logdir: Path, config: Config) -> None:
    """config.json: the resolved settings, with the version and commit that ran them."""
    try:
        logdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--logdir {logdir} cannot be made ({error.strerror}): use another.") from None
    record = {"version": __version__, "commit": _commit(), "command": sys.argv, "config": config.to_dict()}
    (logdir / "config.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def read_config(logdir: Path) -> Config:
    """The settings of a run."""
    path = logdir / "config.json"
    try:
        return config_from_dict(json.loads(path.read_text(encoding="utf-8"))["config"])
    except FileNotFoundError:
        raise UserError(f"{logdir} is no run: it has no config.json.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def check_same(logdir: Path, config: Config) -> None:
    """Refuse to continue a run under other settings."""
    old, new = (_flat(c.to_dict()) for c in (read_config(logdir), config))
    different = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name) and name not in FREE)
    if different:
        shown = ", ".join(f"{name} = {old.get(name)!r} there, {new.get(name)!r} now" for name in different[:3])
        more = f" and {len(different) - 3} more" if len(different) > 3 else ""
        raise UserError(
            f"{logdir} belongs to another configuration ({shown}{more}): use another --logdir or the same settings."
        )


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _commit() -> str | None:
    """The commit of the source tree, if it is one."""
    try:
        where = Path(__file__).parent
        command = ["git", "-C", str(where), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
