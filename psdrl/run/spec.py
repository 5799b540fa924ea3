"""spec.json in a run's directory: what its agent knows of the environment, so that it can be loaded without one."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from psdrl.envs.vector import EnvSpec
from psdrl.errors import UserError


def write_spec(logdir: Path, spec: EnvSpec) -> None:
    """Beside config.json."""
    (logdir / "spec.json").write_text(json.dumps(dataclasses.asdict(spec), indent=2) + "\n", encoding="utf-8")


def read_spec(logdir: Path) -> EnvSpec | None:
    """None if the run has none: its environment is made by its name."""
    path = logdir / "spec.json"
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return EnvSpec(**(values | lists))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
