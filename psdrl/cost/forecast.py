"""Cost model: `python -m psdrl.cost --preset paper --game Pong --device a100` predicts hours and memory of a run.

Takes the work that an agent describes (`Agent.workload`) and divides by what a device can do. `here` measures this
machine; the figures of devices nobody measured are predictions from their data sheets.
"""

import os
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from psdrl.agents.registry import entry, preset
from psdrl.config import Config, Precision
from psdrl.cost.assumptions import ASSUMED, GPUS, known_gpu
from psdrl.cost.devices import data_sheet, measure_here
from psdrl.envs import make_env
from psdrl.envs.vector import EnvSpec
from psdrl.errors import UserError
from psdrl.kernels import triton_support
from psdrl.runtime.work import Device, Loop, Measures, Workload

__all__ = ["Forecast", "Question", "data_sheet", "device_for", "duration", "forecast", "known_gpu", "run", "workload"]
ENVIRONMENT = {"image": 1e-3, "vector": 4e-5}  # seconds per step of one environment: Pong, DeepSea (bench/RESULTS.md)
PROCESS = 6e8  # bytes of Python, torch and its libraries once all kernels have run; `python -m bench.memory`


class Forecast(NamedTuple):
    """Predicted seconds of a whole run by phase, and bytes."""

    seconds: dict[str, float]
    bytes: dict[str, float]

    @property
    def hours(self) -> float:
        """The whole run."""
        return sum(self.seconds.values()) / 3600


def workload(config: Config, spec: EnvSpec) -> Workload:
    """The work of the agent that the settings name."""
    triton_support.missing()  # PyTorch's counting imports Triton and breaks on a broken one; asking first hides it
    found = entry(config.algo).agent.workload(config, spec)
    if found is None:
        raise UserError(f"There is no cost model of {config.algo}: nothing is known of its work.")
    return found


def interaction(config: Config, spec: EnvSpec, device: Device, act: Loop) -> tuple[float, float]:
    """Seconds of acting, and seconds of waiting for environments, while each environment takes one step.

    Atari steps its environments in threads: at once if there is a core for each, which is assumed of a GPU's host.
    With several groups a group steps while the agent acts for the others.
    """
    groups, action = config.env_groups, act.seconds(device) + device.latency
    if spec.kind == "vector":
        return groups * action, ENVIRONMENT["vector"] * config.num_envs
    cores = os.cpu_count() or 1 if device.measured else config.num_envs
    size = config.num_envs // groups
    step = ENVIRONMENT["image"] * -(-size // min(cores, size))
    return groups * action, max(0.0, action + step - groups * action)


def forecast(config: Config, spec: EnvSpec, device: Device, work: Workload, episode: int = 2000) -> Forecast:
    """The whole run; evaluation episodes are taken to last `episode` steps."""
    seconds: dict[str, float] = {}
    # Work grows nearly in proportion to the buffer: a few points give every update.
    fills = np.minimum(work.updates(), work.capacity)
    points = np.linspace(0, fills.max(initial=1), 17)
    works = [work.update(int(point)) for point in points]
    for name in works[0]:
        seconds[name] = float(np.interp(fills, points, [one[name].seconds(device) for one in works]).sum())
    acting, waiting = interaction(config, spec, device, work.act(config.num_envs // config.env_groups))
    rounds = config.steps / config.num_envs
    seconds |= {"acting": acting * rounds, "environment": waiting * rounds}
    if config.eval_every:
        one = sum(interaction(replace(config, num_envs=1, env_groups=1), spec, device, work.play()))
        seconds["evaluation"] = one * config.steps / config.eval_every * config.eval_episodes * episode
    memory = work.memory()
    if device.measured:  # on this host's CPU the process itself counts
        memory["process"] = PROCESS
    return Forecast(seconds, memory)


def duration(seconds: float) -> str:
    """Seconds as a person says them: 40 s, 12 min, 1.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def device_for(name: str, work: Workload, precision: Precision = "tf32", cuda_graphs: bool = False) -> Device:
    """`here`, measured with the run's own work; or a data sheet."""
    if name == "here":
        return measure_here(work.trials())
    if name not in GPUS:
        raise UserError(f"No figures for device {name!r}: use here, {' or '.join(GPUS)}.")
    return data_sheet(name, precision, cuda_graphs)


@dataclass(frozen=True)
class Question:
    """Predict the cost of a run."""

    game: str | None = None
    """Atari game."""
    env: str | None = None
    """Any other environment, as for psdrl.train."""
    preset: str = "auto"
    """Preset, as for psdrl.train."""
    algo: str = "psdrl"
    """The agent, as for psdrl.train."""
    device: Literal["here", "a100", "a100-80gb", "h100"] = "here"
    """here: measured; a100 (40 GB), a100-80gb, h100: predicted from data sheets."""
    precision: Precision | None = None
    """Precision of the networks on a GPU; the preset's if not given. `here` computes in fp32."""
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
    measures: bool = False
    """Print what each measure for GPUs is predicted to gain, one after another, compiled and with CUDA graphs."""


def run(question: Question) -> None:
    """`psdrl cost`."""
    if question.device == "here" and (question.table or question.measures):
        flag = "--table" if question.table else "--measures"
        raise UserError(f"{flag} is about GPUs: add --device a100 or --device h100.")
    config, _ = preset({name: getattr(question, name) for name in ("game", "env", "preset", "algo")})
    config = replace(
        config, steps=question.steps or config.steps, compile=question.compile, num_envs=question.num_envs,
        env_groups=question.env_groups, device="cpu" if question.device == "here" else "cuda",
    )  # fmt: skip
    config.check()
    env = make_env(config, num_envs=1)
    env.close()
    spec = replace(env.spec, num_actions=question.actions or env.spec.num_actions)
    if question.table:
        Console(width=200).print(hours_table(config, spec, question.device), highlight=False, markup=False)
        return
    if question.measures:
        Console(width=200).print(measures_table(config, spec, question.device), highlight=False, markup=False)
        return
    work, precision = workload(config, spec), question.precision or config.precision
    device = device_for(question.device, work, precision, question.cuda_graphs)
    report(Console(), config, spec, device, work, precision if question.device != "here" else "fp32")


def hours_table(config: Config, spec: EnvSpec, name: str) -> str:
    """Predicted hours of the run on this GPU, evaluation included, as a Markdown table and what it rests on."""

    def hours(precision: Precision, actions: int, compiled: bool, graphs: bool, reached: float = 0.0) -> Forecast:
        run, env = replace(config, compile=compiled), replace(spec, num_actions=actions)
        return forecast(run, env, data_sheet(name, precision, graphs, reached), workload(run, env))

    measures = {"eager": (False, False), "compile": (True, False), "CUDA graphs": (False, True), "both": (True, True)}
    lines = [
        f"| precision | actions | {' | '.join(measures)} |",
        "| --- | ---: |" + " ---: |" * len(measures),
    ]
    precisions: tuple[Precision, ...] = ("fp32", "tf32", "mixed", "bf16")
    for actions in (6, 18):
        for precision in precisions:
            cells = (f"{hours(precision, actions, *measure).hours:.2f}" for measure in measures.values())
            lines.append(f"| {precision} | {actions} | {' | '.join(cells)} |")
    best = hours("mixed", 6, True, True)
    phases = sorted(best.seconds.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{phase} {seconds / 60:.1f}" for phase, seconds in phases)
    low, high = (hours("mixed", 6, True, True, reached).hours for reached in (0.7, 0.35))
    fractions = ", ".join(f"{name} {ASSUMED[f'products {name}'].value:.0%}" for name in ("fp32", "tf32", "bf16"))
    lines += [
        "",
        f"Predicted, not measured: hours of {config.steps:,} steps of {config.env_name}, preset {config.preset}, on "
        f"{name}, {config.num_envs} environment(s) in {config.env_groups} group(s), evaluation included. "
        f"Assumed of the data sheet's peak: {fractions}.",
        f"mixed, 6 actions, both: {low:.2f} h at 70% of peak, {high:.2f} h at 35%. Minutes by phase: {shares}.",
    ]
    return "\n".join(lines)


def measures_table(config: Config, spec: EnvSpec, name: str) -> str:
    """Predicted minutes of the run on this GPU as the measures are taken one after another, compiled and with CUDA
    graphs; a Markdown table."""
    config = replace(config, compile=True)
    phases = ("autoencoder", "encoding", "forward", "posterior", "value")
    lines = [
        f"| measure | minutes | gain | {' | '.join(phases)} |",
        "| --- |" + " ---: |" * (2 + len(phases)),
    ]
    taken, before = Measures(*(False,) * len(Measures._fields)), 0.0
    for what in ("", *Measures._fields, "mixed"):
        taken = taken._replace(**{what: True}) if what in Measures._fields else taken
        precision: Precision = "mixed" if what == "mixed" else "tf32"
        work = workload(config, spec)
        work.measures = taken
        seconds = forecast(config, spec, data_sheet(name, precision, True, measures=taken), work).seconds
        minutes = sum(seconds.values()) / 60
        cells = [f"{seconds.get(phase, 0.0) / 60:.1f}" for phase in phases]
        gain = f"{before - minutes:.1f}" if what else ""
        lines.append(f"| {MEASURES[what]} | {minutes:.1f} | {gain} | {' | '.join(cells)} |")
        before = minutes
    return "\n".join(lines)


MEASURES = {
    "": "before, in tf32",
    "counted": "(counted better, no measure: the scan is captured, cuDNN's own kernels, gradients that nobody needs)",
    "library": "cuBLAS and a 4-warp tile among the ways to form a product",
    "parts": "inner dimensions in parts for 125 to 500 rows",
    "one_pass": "weight gradient and Adam in one kernel",
    "blocks": "blocks of pixels as channels, cuDNN measures its algorithms",
    "chunks": "32,768 rows at once",
    "mixed": "`--precision mixed`",
}


def report(
    console: Console, config: Config, spec: EnvSpec, device: Device, work: Workload, precision: Precision
) -> None:
    """Print the forecast as a table."""
    f = forecast(config, spec, device, work)
    products = "tf32" if precision == "mixed" else precision
    assumed = f"PREDICTION from the data sheet, {ASSUMED[f'products {products}'].value:.0%} of peak assumed"
    word = "measured rates" if device.measured else assumed
    what = f"{config.algo} on {config.env_name}, preset {config.preset}"
    table = Table(title=f"{what}, {precision} on {device.name} ({word})")
    for column in ("phase", "seconds per update, full buffer", "hours per run", "TFLOP per update", "launches"):
        table.add_column(column, justify="left" if column == "phase" else "right")
    phases = work.update(work.capacity)
    for name, seconds in f.seconds.items():
        if name in phases:
            w = phases[name]
            cells = (f"{w.seconds(device):.3g}", f"{w.total / 1e12:.3g}", f"{w.launches:.0f}")
        else:
            cells = ("", "", "")
        table.add_row(name, cells[0], f"{seconds / 3600:.3g}", cells[1], cells[2])
    total = sum(w.total for w in phases.values())
    per_update = sum(w.seconds(device) for w in phases.values())
    table.add_row("total", f"{per_update:.3g}", f"{f.hours:.3g}", f"{total / 1e12:.3g}", "")
    console.print(table)
    parts = ", ".join(f"{name} {size / 1e9:.2g}" for name, size in f.bytes.items())
    console.print(f"memory: {sum(f.bytes.values()) / 1e9:.2g} GB ({parts})", highlight=False, soft_wrap=True)
