"""The reference of settings and presets, made from the dataclasses and their docstrings.

Meanings are those of `psdrl train --help-all`, defaults those of the class, departures those of `psdrl presets`.
"""

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from psdrl import catalogue
from psdrl.agents import registry
from psdrl.config import Config, flag
from psdrl.flags.help import texts

SETTINGS = """# Settings

Every setting is a flag of `psdrl train` and a keyword of `psdrl.configure`, where a group is a dictionary:
`--value.discount 0.97` is `configure(value={"discount": 0.97})`. A switch is turned off by `--no-NAME`, in a group by
`--GROUP.no-NAME`. Defaults are the paper's; [presets](presets.md) start from others. [paper] stands for the paper's
hyperparameter table or text, [released] for a fact of the authors' code that the paper leaves out, [ours] for a choice
of this implementation.
"""
PRESETS = """# Presets

What each preset changes of the paper's settings, as `psdrl presets NAME` prints it. `--preset auto` chooses by
environment and device and says so at the start; any flag beside it overrides the preset's value.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the two pages."""
    files.append(File.generated(config, "reference/settings.md", content=settings_page()))
    files.append(File.generated(config, "reference/presets.md", content=presets_page()))
    return files


def agents() -> Iterator[tuple[str, registry.Entry]]:
    """Agents with settings of their own: an ablation has those of the agent that it varies."""
    seen: tuple[type, ...] = ()
    for algo, entry in registry.AGENTS.items():
        if not issubclass(entry.settings, seen):
            seen = (*seen, entry.settings)
            yield algo, entry


def settings_page() -> str:
    """Every setting once: those of every run, then each agent's own."""
    parts = [SETTINGS, "## Every run\n", *groups(Config, ())]
    shared = tuple(field.name for field in dataclasses.fields(Config) if field.name != "preset")
    for algo, entry in agents():
        parts += [f"## `--algo {algo}`\n", *groups(entry.settings, shared)]
    return "\n".join(parts)


def groups(settings: type, without: tuple[str, ...]) -> Iterator[str]:
    """A table of the single settings, then one of each group."""
    values: Any = settings()
    names = [field.name for field in dataclasses.fields(values) if field.name not in without]
    nested = [name for name in names if dataclasses.is_dataclass(getattr(values, name))]
    yield table(settings, values, [name for name in names if name not in nested])
    for name in nested:
        value = getattr(values, name)
        heading = " ".join((inspect.getdoc(type(value)) or "").split())
        yield f"### `{flag(name)}.*`\n\n{heading}\n"
        yield table(type(value), value, [f.name for f in dataclasses.fields(value)], f"{name}.")


def table(settings: type, values: Any, names: list[str], prefix: str = "") -> str:
    """Flag, default and meaning."""
    rows = [
        f"| `{flag(prefix + name)}` | {shown(getattr(values, name))} | {cell(texts(settings)[name])} |"
        for name in names
    ]
    return "\n".join(["| flag | default | meaning |", "| --- | --- | --- |", *rows, ""])


def presets_page() -> str:
    """What every preset of every agent changes."""
    parts = [PRESETS]
    for algo, entry in agents():
        parts.append(f"## `--algo {algo}`\n")
        for name, make in entry.presets.by_name.items():
            reason = " ".join((inspect.getdoc(make) or "").split())
            parts.append(f"### `{name}` {{: #{algo}-{name} }}\n\n{reason}\n")
            parts.append(changed(algo, name))
    return "\n".join(parts)


def changed(algo: str, preset: str) -> str:
    """The preset's values that are not the paper's, for DeepSea those of N = 10."""
    asked = catalogue.Presets(algo=algo, env="deepsea-10" if preset == "deepsea" else None)
    rows = [
        f"| `{flag(name)}` | {shown(paper)} | {shown(value)} |"
        for name, paper, value in catalogue.departures(preset, asked)
    ]
    if not rows:
        return "The paper's settings.\n"
    return "\n".join([f"| flag | `paper` | `{preset}` |", "| --- | --- | --- |", *rows, ""])


def shown(value: Any) -> str:
    """A value as it would be typed."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    text = " ".join(map(str, value)) if isinstance(value, tuple) else f"{value:,}" if isinstance(value, int) else value
    return f"`{text}`"


def cell(text: str) -> str:
    """Text for one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
