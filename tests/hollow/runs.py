"""One run on the hollow devices: its command lines, what it counted, what is wrong with it."""

import json
import os
import re
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MODES = {
    "eager": ["--no-cuda-graphs"],
    "graphs": [],
    "compile": ["--no-cuda-graphs", "--compile"],
    "both": ["--compile"],
}
PROBLEMS = {
    "image": ["--env", "deepsea-10-image"],
    "vector": ["--env", "CartPole-v1"],
    "grid": ["--env", "minatar/breakout"],
}  # all with episodes of some ten steps under a constant action, so that updates find whole episodes
GRID = ["--grid", "--forward.features", "tanh"]  # PSDRL's network of cells
ENVIRONMENTS = {"1": [], "4": ["--num-envs", "4"], "4 in 2": ["--num-envs", "4", "--env-groups", "2"]}
STEPS = 550  # two updates of preset debug, which come every 250 steps
MORE_STEPS = 800  # a third one after resuming
LIMIT = 1500  # seconds after which a run is stuck


@dataclass(frozen=True)
class Place:
    """Where things are: the Python of the CUDA build, the built driver, caches and logs."""

    python: Path
    hollow: Path
    work: Path

    def environment(self, name: str, memory: str = "") -> dict[str, str]:
        """Of a process on the hollow devices; compiled kernels are shared by all runs."""
        lib = self.hollow / "lib"
        return os.environ | {
            "LD_LIBRARY_PATH": ":".join(filter(None, [str(lib), os.environ.get("LD_LIBRARY_PATH", "")])),
            "LD_PRELOAD": str(lib / "libhollow.so"),
            "TRITON_LIBCUDA_PATH": str(lib),
            "TRITON_CACHE_DIR": str(self.work / "cache" / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.work / "cache" / "inductor"),
            "HOLLOW_STATS": str(self.work / "counts" / name),
            "HOLLOW_REPORT": str(self.work / "counts" / f"{name}.torch.json"),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "400",  # the summary in one line each
        }


@dataclass
class Run:
    """A name, commands to run one after the other, and what is expected."""

    name: str
    commands: list[list[str]]  # arguments of python
    device: int
    graphs: bool
    settings: dict[str, str] = field(default_factory=dict)
    trains: bool = True
    sees: bool = False  # with the checks of values on
    twin: str | None = None  # the same run on the other device
    memory: bool = False  # peak memory must be within the forecast


@dataclass
class Outcome:
    """What a run did."""

    run: Run
    seconds: float = 0.0
    codes: list[int] = field(default_factory=list)
    text: str = ""
    devices: list[dict[str, int]] = field(default_factory=list)
    allocated: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def here(self) -> dict[str, int]:
        """Counts of the device that the run was told to use."""
        return self.devices[self.run.device]

    @property
    def updates(self) -> int:
        """Of the whole run, as its last line says."""
        found = re.findall(r"(\d+) updates", self.text)
        return int(found[-1]) if found else 0

    @property
    def forecast(self) -> float:
        """Bytes that the program forecast."""
        found = re.search(r"forecast\s.*?([\d.e+-]+) GB", self.text)
        return 1e9 * float(found[1]) if found else 0.0


def blind(module: str, *arguments: str) -> list[str]:
    """A module of psdrl without its checks of values."""
    return [str(HERE / "blind.py"), module, *arguments]


def training(place: Place, name: str, row: dict[str, str], twin: str | None = None) -> Run:
    """A training run with a row of the design, and what follows it."""
    logdir, device = str(place.work / "runs" / name), row["device"]
    arguments = [
        *PROBLEMS[row["problem"]], *MODES[row["mode"]], *ENVIRONMENTS[row["environments"]],
        "--preset", "debug", "--device", device, "--algo", row["agent"], "--precision", row["precision"],
        "--replay.device", row["replay"], "--eval-every", "0", "--logdir", logdir,
    ]  # fmt: skip
    if row["agent"] not in ("bootstrap", "successor", "dreamer"):
        arguments += ["--value.lookahead", row["lookahead"], *(GRID if row["problem"] == "grid" else [])]
    if row["profile"] != "no":
        arguments += ["--profile", row["profile"]]
    commands = [blind("psdrl.train", *arguments, "--steps", str(STEPS))]
    if row["then"] == "evaluate":
        commands.append(blind("psdrl.evaluate", logdir, "--episodes", "1", "--device", device))
    if row["then"] == "resume":
        commands.append(blind("psdrl.train", *arguments, "--steps", str(MORE_STEPS), "--resume", "must"))
    graphs = row["mode"] in ("graphs", "both")
    return Run(name, commands, int(device[-1]), graphs, row, twin=twin)


def perform(place: Place, run: Run) -> Outcome:
    """Run the commands, read the counts and judge."""
    outcome, start = Outcome(run), time.monotonic()
    log = place.work / "logs" / f"{run.name}.txt"
    for old in (place.work / "counts").glob(f"{run.name}.*"):
        old.unlink()
    environment = place.environment(run.name)
    with log.open("w", encoding="utf-8") as file:
        for command in run.commands:
            line = [str(place.python), *command]
            file.write(f"$ {' '.join(line)}\n")
            file.flush()
            try:
                done = subprocess.run(
                    line, env=environment, stdout=file, stderr=subprocess.STDOUT, timeout=LIMIT, check=False
                )
                outcome.codes.append(done.returncode)
            except subprocess.TimeoutExpired:
                outcome.problems.append(f"stuck: stopped after {LIMIT} s")
            if outcome.problems or outcome.codes[-1] != 0:
                break
    outcome.seconds = time.monotonic() - start
    outcome.text = log.read_text(encoding="utf-8")
    _count(place, outcome)
    outcome.problems += [*judge(outcome)]
    return outcome


def _count(place: Place, outcome: Outcome) -> None:
    """Add up the counts of all processes of the run; a peak is the greatest."""
    for path in sorted((place.work / "counts").glob(f"{outcome.run.name}.*.json")):
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if "allocated_bytes" in found:
            outcome.allocated = found["allocated_bytes"]
            continue
        outcome.devices = outcome.devices or [dict.fromkeys(device, 0) for device in found["devices"]]
        for sums, device in zip(outcome.devices, found["devices"], strict=True):
            for key, value in device.items():
                sums[key] = max(sums[key], value) if key == "peak_bytes" else sums[key] + value


def judge(outcome: Outcome) -> list[str]:
    """What is wrong; nothing if all is well."""
    run, problems = outcome.run, []
    if any(outcome.codes):
        last = [line for line in outcome.text.splitlines() if line.strip()][-1]
        return [f"exit code {outcome.codes[-1]}: {last[:200]}"]
    if "Traceback" in outcome.text:
        problems.append("an exception was printed")
    if not outcome.devices:
        return [*problems, "no counts were written"]
    here = outcome.here
    others = [device for i, device in enumerate(outcome.devices) if i != run.device]
    for key in ("failed_captures", "empty_captures", "empty_graph_launches"):
        problems += [f"{key.replace('_', ' ')}: {here[key]}"] if here[key] else []
    for key in ("forbidden_syncs", "forbidden_pageable_copies", "forbidden_other"):
        total = sum(device[key] for device in outcome.devices)
        problems += [f"{key.replace('_', ' ')} during capture: {total}"] if total else []
    for key in ("launches", "captures", "copies"):
        total = sum(device[key] for device in others)
        problems += [f"{key} on a device that was not asked for: {total}"] if total else []
    if run.graphs and not (here["nodes"] and here["graph_launches"]):
        problems.append(f"CUDA graphs are on: {here['nodes']} nodes captured, {here['graph_launches']} graph launches")
    if not run.graphs and here["captures"]:
        problems.append(f"CUDA graphs are off: {here['captures']} captures")
    if run.trains:
        problems += _judge_training(outcome)
    return problems


def _judge_training(outcome: Outcome) -> list[str]:
    problems = []
    if not outcome.updates and not outcome.run.sees:
        problems.append("no update was made")
    if "without a CUDA graph" in outcome.text:
        problems.append("a step runs without its CUDA graph")
    served = re.findall(r"^kernels\s+(.*?)\s*$", outcome.text, re.MULTILINE)
    failed = "fails its check" in outcome.text
    if outcome.run.sees:
        if not failed or "refused" not in (served or [""])[0]:
            problems.append("kernels that do nothing passed their checks")
    elif not served and not re.search(r"^posterior\s+rule\s", outcome.text, re.MULTILINE):
        pass  # an agent that has no kernels of ours, such as a baseline
    elif failed or not served or any("triton" not in line or "refused" in line for line in served):
        problems.append(f"Triton does not serve everywhere: {served}")
    elif any("posterior csrc" not in line for line in served):
        problems.append(f"the CUDA extension does not serve: {served}")
    if outcome.run.memory:
        peak, forecast = outcome.allocated[outcome.run.device], outcome.forecast
        if not 0 < peak <= 1.05 * forecast:  # the forecast is printed with two digits
            problems.append(f"{peak / 1e9:.2f} GB at the peak, {forecast / 1e9:.2f} GB forecast")
    return problems
