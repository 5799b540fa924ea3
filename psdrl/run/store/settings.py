"""config.json: the settings of a run. It can be moved with its run: the directory where it lies is the run's."""

import dataclasses
import json
import subprocess
import sys
import types
import typing
from dataclasses import replace
from pathlib import Path
from typing import Any

from psdrl.agents.registry import config_from_dict
from psdrl.config import Config
from psdrl.errors import UserError
from psdrl.run.store.files import Damaged, Disk, read
from psdrl.version import __version__

# A resumed run may differ in these; everything else must be as it was.
FREE = {
    *("steps", "logdir", "log", "resume", "device", "compile", "cuda_graphs", "profile"),
    *("eval_every", "eval_episodes", "checkpoint_every", "checkpoint_minutes", "checkpoint_keep"),
    "replay.device",  # where the frames lie changes no number
}
LIMIT = 1 << 20  # bytes of config.json


def write_config(logdir: Path, config: Config, disk: Disk | None = None) -> None:
    """config.json: the resolved settings, with the version and commit that ran them; the old one stays until then."""
    record = {"version": __version__, "commit": _commit(), "command": sys.argv, "config": config.to_dict()}
    data = (json.dumps(record, indent=2) + "\n").encode()
    try:
        logdir.mkdir(parents=True, exist_ok=True)
        (disk or Disk()).replace(logdir / "config.json", data)
    except OSError as error:
        raise UserError(f"--logdir {logdir} cannot be written ({error.strerror}): use another.") from None


def read_config(logdir: Path) -> Config:
    """The settings of a run, which lies in `logdir` now, wherever it was made."""
    path = logdir / "config.json"
    if not path.exists():
        raise UserError(f"{logdir} is no run: it has no config.json.")
    try:
        config = config_from_dict(json.loads(read(path, LIMIT))["config"])
        _check_types(config)
        config.check()
    except UserError:
        raise
    except Damaged as error:
        raise UserError(f"{path} cannot be read: {error}.") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise UserError(f"{path} cannot be read: {str(error)[:200]}") from None
    return replace(config, logdir=logdir)


def settings_of(logdir: Path) -> Config:
    """The settings to resume a run with when none are given: its own."""
    return replace(read_config(logdir), resume="must")


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


def _check_types(config: Any, prefix: str = "") -> None:
    """Raise TypeError for a setting of another type than it is declared to have."""
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            _check_types(value, f"{prefix}{field.name}.")
        elif not _is_a(value, hints[field.name]):
            raise TypeError(f"{prefix}{field.name} is {str(value)[:60]!r}")


def _is_a(value: Any, hint: Any) -> bool:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_is_a(value, choice) for choice in inner)
    if origin is typing.Literal:
        return any(type(value) is type(choice) and value == choice for choice in inner)
    if origin is tuple:
        kinds = (inner[0],) * len(value) if isinstance(value, tuple) and inner[-1] is ... else inner
        return isinstance(value, tuple) and len(value) == len(kinds) and all(map(_is_a, value, kinds))
    if hint is float:
        return type(value) in (int, float)
    if hint is int:
        return type(value) is int and abs(value) < 2**62
    return isinstance(value, hint)


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
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
