"""`make cuda-check`: the CUDA build of torch, our kernels and our extension on two GPUs that compute nothing.

    python -m tests.hollow.check --venv DIRECTORY [--short] [--jobs 2] [--out docs/cuda-check.md]

Runs doctor and training over every pair of settings and asserts what can be known without numbers: see `runs.py`, and
README.md beside it for what cannot. Prints one table; exit code 1 if anything is wrong.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.hollow.design import pairwise
from tests.hollow.runs import ENVIRONMENTS, HERE, MODES, PROBLEMS, Outcome, Place, Run, blind, perform, training

OPERATIONS = """
import json, typing, torch, psdrl._C
from psdrl.agents.registry import AGENTS
from psdrl.config import Precision
schemas = {s.name.split("::")[1]: s.name for s in torch._C._jit_get_all_schemas() if s.name.startswith("psdrl::")}
on = {key: sorted(n for n, full in schemas.items() if torch._C._dispatch_has_kernel_for_dispatch_key(full, key))
      for key in ("CPU", "CUDA")}
print(json.dumps({"file": psdrl._C.__file__, "torch": torch.__version__, "cuda": torch.version.cuda, "operations": on,
                  "agents": [*AGENTS], "precisions": typing.get_args(Precision)}))
"""
POSTERIOR = ("gram_accumulate_", "posterior_factor", "posterior_mean", "posterior_sample")


class Broken(Exception):
    """Nothing can be run."""


def output(*command: object, **environment: str) -> str:
    """What a command prints; Broken if it fails."""
    done = subprocess.run(
        [*map(str, command)], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Broken(f"{' '.join(map(str, command))[:200]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def extension(place: Place) -> dict:
    """The extension as it is installed: loads, leaves no symbol undefined, registers the posterior for CUDA."""
    environment = place.environment("extension")
    found = json.loads(output(place.python, "-c", OPERATIONS, **environment).splitlines()[-1])
    if found["cuda"] is None:
        raise Broken(f"{place.python} has a CPU build of torch {found['torch']}: the CUDA build is needed.")
    libraries = Path(output(place.python, "-c", "import torch; print(torch.__path__[0])").strip()) / "lib"
    paths = ":".join([str(place.hollow / "lib"), str(libraries), environment["LD_LIBRARY_PATH"]])
    missing = [
        line.strip()
        for line in subprocess.run(
            ["ldd", "-r", found["file"]], env=os.environ | {"LD_LIBRARY_PATH": paths}, capture_output=True, text=True,
            check=False,
        ).stdout.splitlines()
        if line.startswith("undefined symbol") and not line.split()[2].startswith(("Py", "_Py"))  # the interpreter's
    ]  # fmt: skip
    if missing:
        raise Broken(f"{found['file']} leaves symbols undefined: {'; '.join(missing)}")
    lacking = [name for name in POSTERIOR if name not in found["operations"]["CUDA"]]
    if lacking:
        raise Broken(f"not registered for CUDA: {', '.join(lacking)} (found {found['operations']})")
    return found


def factors(found: dict) -> dict[str, list[str]]:
    """What a run can vary; agents and precisions as the program lists them."""
    return {
        "mode": [*MODES],
        "agent": [*found["agents"]],
        "precision": [*found["precisions"]],
        "problem": [*PROBLEMS],
        "environments": [*ENVIRONMENTS],
        "then": ["nothing", "evaluate", "resume"],
        "device": ["cuda:0", "cuda:1"],
        "replay": ["device", "host"],
        "profile": ["no", "0:1"],
        "lookahead": ["1", "3"],
    }


def seeing(place: Place) -> Run:
    """With the checks of values on: kernels that do nothing must fail, and the fallback must serve."""
    arguments = ["--env", "deepsea-10-image", "--preset", "debug", "--device", "cuda:0", "--eval-every", "0"]
    logdir = str(place.work / "runs" / "seeing")
    command = blind("--see", "psdrl.train", *arguments, "--steps", "100", "--logdir", logdir)  # ends before an update
    return Run("seeing", [command], 0, True, {"what": "value checks on, no update"}, sees=True)


def paper(place: Place) -> Run:
    """One update at the paper's sizes, with a small buffer both in the run and in its forecast."""
    arguments = ["--env", "deepsea-20-image", "--preset", "paper", "--device", "cuda:0", "--eval-every", "0"]
    sizes = ["--replay.capacity", "4000", "--steps", "320"]
    often = ["--policy.update-every", "300"]
    command = blind("psdrl.train", *arguments, *sizes, *often, "--logdir", str(place.work / "runs" / "paper"))
    return Run("paper", [command], 0, True, {"what": "the paper's sizes, one update"}, memory=True)


def doctor(name: str, device: int, *arguments: str) -> Run:
    """`psdrl doctor`, which runs eager and captured updates itself."""
    command = blind("psdrl.doctor", "--device", f"cuda:{device}", *arguments)
    return Run(name, [command], device, True, {"what": " ".join(("doctor", *arguments))}, trains=False)


def few(agent: str) -> list[dict[str, str]]:
    """Two rows that differ in everything but the agent."""
    names = ("mode", "precision", "problem", "environments", "then", "device", "replay", "profile", "lookahead")
    rows = (
        ("graphs", "tf32", "image", "4 in 2", "resume", "cuda:0", "device", "0:1", "3"),
        ("eager", "bf16", "vector", "1", "evaluate", "cuda:1", "host", "no", "1"),
    )
    return [{"agent": agent, **dict(zip(names, row, strict=True))} for row in rows]


def plan(place: Place, found: dict, short: bool) -> list[Run]:
    """All runs. Captured ones have a twin on the other device, which must capture and launch the same."""
    dear = {("mode", "compile"): 1.0, ("mode", "both"): 1.0}
    rows = few(found["agents"][0]) if short else pairwise(factors(found), dear)
    runs: list[Run] = []
    for i, row in enumerate(rows, 1):
        name = f"{i:02}"
        first_both = row["mode"] == "both" and all(run.settings["mode"] != "both" for run in runs)
        runs.append(training(place, name, row))
        if row["mode"] == "graphs" or first_both:  # another compiled twin would only compile the same again
            other = "cuda:0" if row["device"] == "cuda:1" else "cuda:1"
            runs.append(training(place, f"{name}b", row | {"device": other}, twin=name))
    quick = doctor("doctor-quick", 1, "--quick", "--seconds", "0")
    return (
        [*runs, quick] if short else [seeing(place), paper(place), quick, doctor("doctor", 0, "--seconds", "1"), *runs]
    )


def compare_twins(outcomes: list[Outcome]) -> None:
    """The same run on both devices: the same nodes, graphs and launches."""
    by_name = {outcome.run.name: outcome for outcome in outcomes}
    for outcome in outcomes:
        other = by_name.get(outcome.run.twin or "")
        if other is None or not (outcome.devices and other.devices):
            continue
        for key in ("nodes", "graphs", "graph_launches"):
            if outcome.here[key] != other.here[key]:
                outcome.problems.append(f"{key}: {outcome.here[key]}, but {other.here[key]} on the other device")


def table(outcomes: list[Outcome]) -> str:
    """Markdown: run, settings, what it did, verdict."""
    lines = ["| run | settings | updates | nodes | graph launches | kernel launches | GB | s | verdict |",
             "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |"]  # fmt: skip
    for outcome in outcomes:
        here = outcome.here if outcome.devices else {}
        cells = [f"{here.get(key, 0):,}" for key in ("nodes", "graph_launches", "launches")]
        peak = max(outcome.allocated, default=0) / 1e9
        named = ("environments", "then", "replay", "profile", "lookahead")
        settings = ", ".join(f"{k} {v}" if k in named else v for k, v in outcome.run.settings.items())
        verdict = "; ".join(outcome.problems).replace("|", "/").replace("\n", " ") or "ok"
        lines.append(f"| {outcome.run.name} | {settings} | {outcome.updates} | {' | '.join(cells)} | {peak:.2f} | "
                     f"{outcome.seconds:.0f} | {verdict} |")  # fmt: skip
    return "\n".join(lines)


def document(found: dict, outcomes: list[Outcome], seconds: float, commit: str) -> str:
    """What `--out` writes."""
    wrong = sum(bool(outcome.problems) for outcome in outcomes)
    cuda, paper_run = found["operations"]["CUDA"], [o for o in outcomes if o.run.memory]
    memory = "".join(
        f" At the paper's sizes with 4,000 transitions torch allocated {max(o.allocated, default=0) / 1e9:.2f} GB at "
        f"the peak; the forecast was {o.forecast / 1e9:.2f} GB."
        for o in paper_run
    )
    versions = f"Python {found['python']}, torch {found['torch']}"
    return f"""# The CUDA build without a GPU

Written by `make cuda-check` at {commit}, {versions}, in {seconds / 60:.0f} minutes:
**{len(outcomes)} runs, {wrong} with a problem.** The devices are hollow (`tests/hollow/README.md`): all host code of
torch, Triton, Inductor and of this project runs, kernels compute nothing. Nothing here is about values, races or
speed.

Each run must end with exit code 0, work on its own device only, capture no empty graph, make no forbidden call while
it captures (host synchronisation, pageable copy), and be served by Triton and the extension. Twins (`b`) are the same
run on the other device: they capture and launch the same.{memory}

The extension's operations for CUDA: {", ".join(f"`{name}`" for name in cuda)}; it leaves no symbol undefined.

{table(outcomes)}
"""


def perform_all(place: Place, runs: list[Run], jobs: int) -> list[Outcome]:
    """Each run as it comes; a line for each that ends."""

    def one(run: Run) -> Outcome:
        outcome = perform(place, run)
        print(f"{run.name:>12} {outcome.seconds:6.0f} s  {'; '.join(outcome.problems) or 'ok'}", flush=True)
        return outcome

    for name in ("counts", "logs"):
        (place.work / name).mkdir(parents=True, exist_ok=True)
    shutil.rmtree(place.work / "runs", ignore_errors=True)
    first = [one(runs[0])]  # alone: it fills the cache of kernels that the others share
    with ThreadPoolExecutor(jobs) as pool:
        return [*first, *pool.map(one, runs[1:])]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--venv", type=Path, required=True, help="virtual environment with the CUDA build and psdrl")
    parser.add_argument("--work", type=Path, help="driver, caches and logs (default: in the virtual environment)")
    parser.add_argument("--short", action="store_true", help="a handful of runs")
    parser.add_argument("--only", nargs="*", default=[], help="names of the runs to make")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--out", type=Path, help="also write the table as Markdown")
    return parser.parse_args()


def main() -> int:
    options, start = arguments(), time.monotonic()
    work = (options.work or options.venv / "cuda-check").resolve()
    place = Place(options.venv.absolute() / "bin" / "python", work / "hollow", work)
    try:
        if platform.system() != "Linux" or platform.machine() != "x86_64":
            raise Broken("the hollow driver needs Linux on x86-64")
        if not place.python.exists():
            raise Broken(f"{place.python} does not exist: make cuda-check makes it")
        output("sh", HERE / "build.sh", place.hollow, PYTHON=str(place.python))
        found = extension(place)
    except Broken as error:
        print(f"cuda-check cannot run: {error}", file=sys.stderr)
        return 1
    commit = output("git", "-C", HERE, "describe", "--always", "--dirty").strip()
    found["python"] = output(place.python, "-V").split()[-1]
    print(f"torch {found['torch']}; for CUDA: {', '.join(found['operations']['CUDA'])}", flush=True)
    runs = plan(place, found, options.short)
    if options.only:
        runs = [run for run in runs if run.name in options.only]
    outcomes = perform_all(place, runs, options.jobs)
    compare_twins(outcomes)
    print(f"\n{table(outcomes)}\n")
    if options.out:
        options.out.write_text(document(found, outcomes, time.monotonic() - start, commit), encoding="utf-8")
    wrong = sum(bool(outcome.problems) for outcome in outcomes)
    minutes = (time.monotonic() - start) / 60
    print(f"{len(outcomes)} runs in {minutes:.0f} min, {wrong} with a problem; logs in {work / 'logs'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
