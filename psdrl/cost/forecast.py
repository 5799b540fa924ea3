"""Cost model: `python -m psdrl.cost --preset paper --game Pong --device a100` predicts hours and memory of a run.

Takes the work of each phase of the fast path (`psdrl.cost.work`) and divides by what a device can do. `here` measures
this machine; the figures of devices nobody measured are predictions from their data sheets.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeGuard

import numpy as np
from rich.console import Console
from rich.table import Table

from psdrl.agents.psdrl.settings import Preset, PsdrlConfig
from psdrl.agents.registry import preset
from psdrl.config import Config, Precision
from psdrl.cost.devices import GPUS, REACHED, Device, data_sheet, measure_here
from psdrl.cost.work import act_work, memory, update_work
from psdrl.envs import make_env
from psdrl.envs.vector import EnvSpec
from psdrl.errors import UserError

ENVIRONMENT = {"image": 1e-3, "vector": 4e-5}  # seconds per step of one environment: Pong, DeepSea (bench/RESULTS.md)


def update_steps(config: PsdrlConfig) -> Iterator[int]:
    """Steps at which updates happen."""
    step = config.update_period(0)
    while step < config.steps:
        yield step
        period = config.update_period(step)
        step = (step // period + 1) * period


class Forecast(NamedTuple):
    """Predicted seconds of a whole run by phase, and bytes."""

    seconds: dict[str, float]
    bytes: dict[str, float]

    @property
    def hours(self) -> float:
        """The whole run."""
        return sum(self.seconds.values()) / 3600


def known(config: Config) -> TypeGuard[PsdrlConfig]:
    """Whether there is a model of this agent's work."""
    return isinstance(config, PsdrlConfig)


def interaction(config: PsdrlConfig, spec: EnvSpec, device: Device) -> tuple[float, float]:
    """Seconds of acting, and seconds of waiting for environments, while each environment takes one step.

    Atari steps its environments in threads: at once if there is a core for each, which is assumed of a GPU's host.
    With several groups a group steps while the agent acts for the others.
    """
    groups = config.env_groups
    act = act_work(config, spec).seconds(device) + device.latency
    if spec.kind == "vector":
        return groups * act, ENVIRONMENT["vector"] * config.num_envs
    cores = os.cpu_count() or 1 if device.measured else config.num_envs
    size = config.num_envs // groups
    step = ENVIRONMENT["image"] * -(-size // min(cores, size))
    return groups * act, max(0.0, act + step - groups * act)


def forecast(config: PsdrlConfig, spec: EnvSpec, device: Device, episode: int = 2000) -> Forecast:
    """The whole run; evaluation episodes are taken to last `episode` steps."""
    seconds: dict[str, float] = {}
    # Work grows nearly in proportion to the buffer: a few points give every update.
    capacity = config.replay.capacity
    fills = np.minimum([*update_steps(config)], capacity)
    points = np.linspace(0, fills.max(initial=1), 17)
    works = [update_work(config, spec, int(point)) for point in points]
    for name in works[0]:
        seconds[name] = float(np.interp(fills, points, [work[name].seconds(device) for work in works]).sum())
    acting, waiting = interaction(config, spec, device)
    rounds = config.steps / config.num_envs
    seconds |= {"acting": acting * rounds, "environment": waiting * rounds}
    if config.eval_every:
        one = sum(interaction(replace(config, num_envs=1, env_groups=1), spec, device))
        seconds["evaluation"] = one * config.steps / config.eval_every * config.eval_episodes * episode
    return Forecast(seconds, memory(config, spec))


def duration(seconds: float) -> str:
    """Seconds as a person says them: 40 s, 12 min, 1.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def device_for(
    name: str, config: PsdrlConfig, spec: EnvSpec, precision: Precision = "tf32", cuda_graphs: bool = False
) -> Device:
    """`here`, measured at the run's own width; or a data sheet."""
    if name == "here":
        return measure_here(config, spec)
    if name not in GPUS:
        raise UserError(f"No figures for device {name!r}: use here, a100 or h100.")
    return data_sheet(name, precision, cuda_graphs)


@dataclass(frozen=True)
class Question:
    """Predict the cost of a run."""

    game: str | None = None
    """Atari game."""
    env: str | None = None
    """Any other environment, as for psdrl.train."""
    preset: Preset = "auto"
    """Preset, as for psdrl.train."""
    device: Literal["here", "a100", "h100"] = "here"
    """here: measured; a100, h100: predicted from data sheets."""
    precision: Precision = "tf32"
    """Precision of the networks on a GPU; `here` computes in fp32."""
    compile: bool = False
    """With torch.compile, as for psdrl.train: fewer elementwise kernels."""
    cuda_graphs: bool = True
    """On a GPU, CUDA graphs for gradient steps, planning and acting: of each of their launches a tenth remains."""
    num_envs: int = 1
    """Parallel environments, as for psdrl.train."""
    env_groups: int = 1
    """Groups in which they are stepped, as for psdrl.train."""
    actions: int = 0
    """Number of actions; 0: those of the environment."""
    steps: int = 0
    """Environment steps; 0: those of the preset."""
    table: bool = False
    """Print predicted hours of all precisions, with and without torch.compile and CUDA graphs, for 6 and 18 actions."""


def run(question: Question) -> None:
    """`psdrl cost`."""
    if question.device == "here" and question.table:
        raise UserError("--table is about GPUs: add --device a100 or --device h100.")
    config, _ = preset({"game": question.game, "env": question.env, "preset": question.preset})
    config = replace(
        config, steps=question.steps or config.steps, compile=question.compile, num_envs=question.num_envs,
        env_groups=question.env_groups,
    )  # fmt: skip
    config.check()
    env = make_env(config, num_envs=1)
    env.close()
    spec = replace(env.spec, num_actions=question.actions or env.spec.num_actions)
    if question.table:
        Console(width=200).print(hours_table(config, spec, question.device), highlight=False, markup=False)
        return
    device = device_for(question.device, config, spec, question.precision, question.cuda_graphs)
    report(Console(), config, spec, device, question.precision if question.device != "here" else "fp32")


def hours_table(config: PsdrlConfig, spec: EnvSpec, name: str) -> str:
    """Predicted hours of the run on this GPU, evaluation included, as a Markdown table and what it rests on."""

    def hours(precision: Precision, actions: int, compiled: bool, graphs: bool, reached: float = 0.0) -> Forecast:
        device = data_sheet(name, precision, graphs, reached)
        return forecast(replace(config, compile=compiled), replace(spec, num_actions=actions), device)

    measures = {"eager": (False, False), "compile": (True, False), "CUDA graphs": (False, True), "both": (True, True)}
    lines = [
        f"| precision | actions | {' | '.join(measures)} |",
        "| --- | ---: |" + " ---: |" * len(measures),
    ]
    precisions: tuple[Precision, ...] = ("fp32", "tf32", "bf16")
    for actions in (6, 18):
        for precision in precisions:
            cells = (f"{hours(precision, actions, *measure).hours:.2f}" for measure in measures.values())
            lines.append(f"| {precision} | {actions} | {' | '.join(cells)} |")
    best = hours("tf32", 6, True, True)
    phases = sorted(best.seconds.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{phase} {seconds / 60:.1f}" for phase, seconds in phases)
    low, high = (hours("tf32", 6, True, True, reached).hours for reached in (0.7, 0.35))
    lines += [
        "",
        f"Predicted, not measured: hours of {config.steps:,} steps of {config.env_name}, preset {config.preset}, on "
        f"{name}, {config.num_envs} environment(s) in {config.env_groups} group(s), evaluation included. "
        f"Assumed of the data sheet's peak: {', '.join(f'{name} {part:.0%}' for name, part in REACHED.items())}.",
        f"tf32, 6 actions, both: {low:.2f} h at 70% of peak, {high:.2f} h at 35%. Minutes by phase: {shares}.",
    ]
    return "\n".join(lines)


def report(console: Console, config: PsdrlConfig, spec: EnvSpec, device: Device, precision: Precision) -> None:
    """Print the forecast as a table."""
    f = forecast(config, spec, device)
    assumed = f"PREDICTION from the data sheet, {REACHED[precision]:.0%} of peak assumed"
    word = "measured rates" if device.measured else assumed
    table = Table(title=f"{config.env_name}, preset {config.preset}, {precision} on {device.name} ({word})")
    for column in ("phase", "seconds per update, full buffer", "hours per run", "TFLOP per update", "launches"):
        table.add_column(column, justify="left" if column == "phase" else "right")
    work = update_work(config, spec, config.replay.capacity)
    for name, seconds in f.seconds.items():
        if name in work:
            w = work[name]
            cells = (f"{w.seconds(device):.3g}", f"{w.total / 1e12:.3g}", f"{w.launches:.0f}")
        else:
            cells = ("", "", "")
        table.add_row(name, cells[0], f"{seconds / 3600:.3g}", cells[1], cells[2])
    total = sum(w.total for w in work.values())
    per_update = sum(w.seconds(device) for w in work.values())
    table.add_row("total", f"{per_update:.3g}", f"{f.hours:.3g}", f"{total / 1e12:.3g}", "")
    console.print(table)
    parts = ", ".join(f"{name} {size / 1e9:.2g}" for name, size in f.bytes.items())
    console.print(f"memory: {sum(f.bytes.values()) / 1e9:.2g} GB ({parts})", highlight=False, soft_wrap=True)
