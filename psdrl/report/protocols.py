"""Protocols: what must be equal before runs are averaged or compared, and a sentence wherever it is not."""

import shlex
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

from psdrl.config import Config, flag
from psdrl.envs.deepsea import deepsea_size
from psdrl.report.outcomes import Outcome
from psdrl.report.variants import TASK, differences
from psdrl.run.records import flat, suite

DEFAULTS = flat(Config().to_dict())
PAPER = {"steps": 1_000_000, "preset": "paper", "measure": "evaluations every 10,000 steps, 1 episode each"}
TRAINING = "training episodes, no evaluations"


@dataclass(frozen=True)
class Protocol:
    """How a run was made and measured."""

    suite: str
    steps: int | None  # DeepSea has none: it ends when it is solved, and a larger budget would not change that
    preset: str
    measure: str
    task: tuple[tuple[str, Any], ...]  # options of the environment that are not the default
    finished: bool
    archive: bool

    def __str__(self) -> str:
        parts = [self.suite]
        parts += [f"{self.steps:,} steps"] if self.steps else []
        parts += [f"preset {self.preset}", self.measure]
        parts += [f"{name} {value}" for name, value in self.task]
        parts += ["not finished"] if not self.finished else []
        return "; ".join(parts + (["earlier settings"] if self.archive else []))

    @property
    def setting(self) -> "Protocol":
        """The protocol but for the length of runs: curves of one setting can be compared up to the shorter one."""
        return Protocol(self.suite, None, self.preset, self.measure, self.task, True, self.archive)

    def unlike_the_paper(self) -> list[str]:
        """How it differs from the paper's protocol."""
        found = []
        if self.steps != PAPER["steps"]:
            found.append(f"{self.steps:,} steps instead of 1,000,000" if self.steps else "no number of steps")
        found += [f"preset {self.preset}"] if self.preset != PAPER["preset"] else []
        found += [self.measure] if self.measure != PAPER["measure"] else []
        found += [f"{name} {value}" for name, value in self.task]
        return found + ([] if self.finished else ["runs not finished"])


def protocol(outcome: Outcome) -> Protocol:
    """The protocol of a run."""
    settings = outcome.settings if outcome.settings is not None else from_flags(outcome.command)
    kind = suite(outcome.env)
    return Protocol(
        suite=kind,
        steps=None if deepsea_size(outcome.env) else outcome.budget,
        preset=outcome.preset or "unknown",
        measure=_measure(settings) if outcome.evaluated else TRAINING,
        task=tuple(
            (name, settings[name]) for name in _options(kind) if settings.get(name, DEFAULTS[name]) != DEFAULTS[name]
        ),
        finished=outcome.finished,
        archive=outcome.archive,
    )


def _options(kind: str) -> list[str]:
    """Settings of the task itself; what an agent sees of it is the agent's."""
    return [name for name in TASK if name.startswith(f"{kind}.")] + ["num_envs"]


def _measure(settings: dict[str, Any]) -> str:
    every, each = (settings.get(name, DEFAULTS[name]) for name in ("eval_every", "eval_episodes"))
    return f"evaluations every {every:,} steps, {each} episode{'s' if each != 1 else ''} each"


def from_flags(command: str) -> dict[str, Any]:
    """Options of the task that a command names: all that is known of runs from before settings were kept."""
    words, found = shlex.split(command), {}
    for name in (*TASK, "num_envs"):
        if flag(name) in words:
            value = words[words.index(flag(name)) + 1 :][:1]
            default = DEFAULTS[name]
            found[name] = True if isinstance(default, bool) else type(default)(value[0])
    return found


class Group(NamedTuple):
    """Runs of one protocol: by environment, then by agent, in order of seeds."""

    protocol: Protocol
    envs: dict[str, dict[str, list[Outcome]]]

    @property
    def agents(self) -> list[str]:
        """All agents, in the order in which they are shown."""
        return ordered({agent for agents in self.envs.values() for agent in agents})

    @property
    def runs(self) -> list[Outcome]:
        """All runs."""
        return [run for agents in self.envs.values() for runs in agents.values() for run in runs]

    def of(self, agent: str) -> dict[str, list[Outcome]]:
        """An agent's runs by environment."""
        return {env: agents[agent] for env, agents in self.envs.items() if agent in agents}


def ordered(agents: set[str]) -> list[str]:
    """PSDRL first, then by name."""
    return sorted(agents, key=lambda agent: (agent != "psdrl", agent))


def by_size(env: str) -> tuple[int, str]:
    """Environments in the order of their sizes, or of their names."""
    return deepsea_size(env) or 0, env


def group(outcomes: list[Outcome]) -> list[Group]:
    """Groups of one protocol each: finished ones first, the longest first."""
    found: dict[Protocol, dict[str, dict[str, list[Outcome]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for outcome in sorted(outcomes, key=lambda o: (by_size(o.env), o.seed)):
        found[protocol(outcome)][outcome.env][outcome.agent].append(outcome)
    order = sorted(found, key=lambda p: (p.archive, not p.finished, p.suite, -(p.steps or 0), str(p)))
    return [
        Group(p, {env: {a: agents[a] for a in ordered(set(agents))} for env, agents in found[p].items()}) for p in order
    ]


def unique(outcomes: list[Outcome]) -> tuple[list[Outcome], list[str]]:
    """Of several runs with one protocol, agent, environment and seed the longest; and a sentence for each other one."""
    kept: dict[tuple[Protocol, str, str, int], Outcome] = {}
    said = []
    for outcome in sorted(outcomes, key=lambda o: -o.steps):
        key = (protocol(outcome), outcome.env, outcome.agent, outcome.seed)
        if key in kept:
            what = f"{outcome.env}, {outcome.agent}, seed {outcome.seed}"
            said.append(f"{outcome.source} is left out: {kept[key].source} is {what} too, and as long or longer.")
        else:
            kept[key] = outcome
    chosen = {outcome.id for outcome in kept.values()}
    return [outcome for outcome in outcomes if outcome.id in chosen], said


def notices(groups: list[Group]) -> list[str]:
    """What a reader must know before comparing: protocols that are kept apart, and settings that differ within one."""
    said = []
    shown = [g for g in groups if not g.protocol.archive]
    for kind in sorted({g.protocol.suite for g in shown}):
        mine = [g for g in shown if g.protocol.suite == kind]
        if len(mine) > 1:
            listed = "; ".join(f"({i}) {str(g.protocol).partition('; ')[2]}" for i, g in enumerate(mine, 1))
            said.append(f"{kind}: runs of {len(mine)} protocols are kept apart: {listed}.")
    open_runs = [run for g in shown if not g.protocol.finished for run in g.runs]
    if open_runs:
        states = ", ".join(
            f"{sum(run.state == state for run in open_runs)} {state}"
            for state in ("running", "stopped", "crashed")
            if any(run.state == state for run in open_runs)
        )
        said.append(f"{len(open_runs)} runs are not finished ({states}): they are averaged with no finished run.")
    for g in shown:
        said += _mixed_settings(g)
    archived = sum(len(g.runs) for g in groups if g.protocol.archive)
    if archived:
        said.append(
            f"{archived} runs with earlier settings are listed among the runs, and are part of no other number."
        )
    return said


def _mixed_settings(g: Group) -> list[str]:
    """Runs under one name whose recorded settings differ."""
    said = []
    for env, agents in g.envs.items():
        for agent, runs in agents.items():
            first = next((run for run in runs if run.settings is not None), None)
            if first is None or first.settings is None:
                continue
            names: set[str] = set()
            for run in runs:
                names |= set(differences(run.settings, first.settings)) if run.settings is not None else set()
            unknown = sum(run.settings is None for run in runs)
            if names:
                said.append(f"{env}, {agent}: seeds differ in {', '.join(sorted(names)[:5])}.")
            if unknown:
                said.append(f"{env}, {agent}: {unknown} of {len(runs)} runs did not record their settings.")
    return said
