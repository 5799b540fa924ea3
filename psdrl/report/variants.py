"""The name of an agent with other settings than its preset's."""

from typing import Any

from psdrl.agents import registry
from psdrl.errors import UserError
from psdrl.run.records import flat
from psdrl.run.store.settings import FREE

# Beside what a resumed run may change: the choice of the run, and the protocol, which `protocols` keeps apart.
NOT_THE_AGENT = {"game", "env", "preset", "algo", "seed", "num_envs", "env_groups", "env_backend", "env_process"}
NOT_THE_AGENT |= {"env_timeout", "env_restarts", "threads", "chunk_rows"} | FREE
TASK = (
    *("atari.noop_max", "atari.max_steps", "atari.repeat", "atari.sticky", "atari.full_actions"),
    *("minatar.sticky", "minatar.ramping", "minatar.max_steps"),
)


def variant(settings: dict[str, Any]) -> str:
    """`psdrl`, or `psdrl (posterior.rule mean)` if its settings are not those of its preset."""
    algo = str(settings.get("algo") or "psdrl")
    changed = differences(settings, usual(settings))
    return f"{algo} ({', '.join(f'{name} {_short(value)}' for name, value in changed.items())})" if changed else algo


def usual(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of the same preset here and now; none if this version has no such agent, preset or environment."""
    choice = {name: settings.get(name) for name in ("game", "env", "preset", "algo") if settings.get(name)}
    try:
        return flat(registry.preset(choice | {"device": "cpu"})[0].to_dict())
    except (UserError, TypeError, ValueError):
        return {}


def differences(settings: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """The agent's settings that both have and that are not equal."""
    return {
        name: settings[name]
        for name in sorted(settings.keys() & others.keys() - NOT_THE_AGENT - set(TASK))
        if _short(settings[name]) != _short(others[name])  # versions write one number as itself or as a list
    }


def _short(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
