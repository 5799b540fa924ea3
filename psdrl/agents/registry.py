"""Agents by name: class, settings, presets."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from psdrl.agents.bootstrap import presets as bootstrap_presets
from psdrl.agents.bootstrap.agent import BootstrapAgent
from psdrl.agents.bootstrap.settings import BootstrapConfig
from psdrl.agents.dreamer import presets as dreamer_presets
from psdrl.agents.dreamer.agent import DreamerAgent
from psdrl.agents.dreamer.settings import DreamerConfig
from psdrl.agents.interface import Agent
from psdrl.agents.psdrl import presets as psdrl_presets
from psdrl.agents.psdrl.ablations import EpsilonGreedyConfig, FreshValueAgent, FreshValueConfig
from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.agents.successor import presets as successor_presets
from psdrl.agents.successor.agent import SuccessorAgent
from psdrl.agents.successor.settings import SuccessorConfig
from psdrl.config import Config, merge
from psdrl.envs.vector import EnvSpec
from psdrl.errors import UserError, nearest
from psdrl.runtime.device import is_gpu, resolve_device


class Presets(NamedTuple):
    """Settings to start from."""

    by_name: dict[str, Callable[[Any], Any]]  # a preset's settings around those that choose it
    choose: Callable[[Config], tuple[str, str]]  # for `auto`: the preset's name, and why


class Entry(NamedTuple):
    """All of an agent that is chosen by its name."""

    agent: type[Agent]
    settings: type[Config]
    presets: Presets


_PSDRL = Presets(psdrl_presets.PRESETS, psdrl_presets.choose)
AGENTS = {
    "psdrl": Entry(PsdrlAgent, PsdrlConfig, _PSDRL),
    "egreedy-exploit": Entry(PsdrlAgent, EpsilonGreedyConfig, _PSDRL),
    "egreedy-explore": Entry(PsdrlAgent, EpsilonGreedyConfig, _PSDRL),
    "fresh-value": Entry(FreshValueAgent, FreshValueConfig, _PSDRL),
    "bootstrap": Entry(BootstrapAgent, BootstrapConfig, Presets(bootstrap_presets.PRESETS, psdrl_presets.choose)),
    "successor": Entry(SuccessorAgent, SuccessorConfig, Presets(successor_presets.PRESETS, psdrl_presets.choose)),
    "dreamer": Entry(DreamerAgent, DreamerConfig, Presets(dreamer_presets.PRESETS, psdrl_presets.choose)),
}
SELECTION = ("game", "env", "preset", "algo", "device")  # what a preset depends on


def entry(algo: str) -> Entry:
    """The agent of this name."""
    if algo not in AGENTS:
        hint = nearest(algo, AGENTS) or f": use one of {', '.join(AGENTS)}."
        raise UserError(f"Unknown agent {algo!r}{hint}")
    return AGENTS[algo]


def make_agent(config: Config, spec: EnvSpec, check: bool = False) -> Agent:
    """The agent that the settings name. `check`: first check its kernels, which on a GPU is always done."""
    kind: Any = entry(config.algo).agent
    device = resolve_device(config.device)
    failed = kind.failed_checks(config, spec, device) if check or is_gpu(device) else {}
    agent = kind(config, spec)
    agent.failed = failed
    return agent


def preset(selection: dict[str, Any]) -> tuple[Any, str]:
    """The preset's settings around a choice of environment, agent, preset and device; and why this preset."""
    chosen = entry(selection.get("algo", "psdrl"))
    config = chosen.settings(**selection)
    name, why = (config.preset, "asked for") if config.preset != "auto" else chosen.presets.choose(config)
    if name not in chosen.presets.by_name:
        hint = nearest(name, chosen.presets.by_name) or f": use one of {', '.join(chosen.presets.by_name)}."
        raise UserError(f"{config.algo} has no preset {name!r}{hint}")
    return replace(chosen.presets.by_name[name](config), preset=name), why


def configure(**settings: Any) -> Any:
    """A configuration from Python, e.g. `configure(env="deepsea-8", steps=2000, value={"units": 64})`: the agent's own
    class of settings."""
    choice = {name: settings.pop(name) for name in SELECTION if name in settings}
    merge(Config(), choice)  # refuses what is no name
    config = merge(preset(choice)[0], settings)
    config.check()
    return config


def config_from_dict(values: dict[str, Any]) -> Config:
    """Stored settings of any agent."""
    if not isinstance(values, dict):
        raise TypeError("settings are missing")
    return entry(values.get("algo", "psdrl")).settings.from_dict(values)
