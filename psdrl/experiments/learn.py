"""Does it learn? `python -m psdrl.experiments.learn deepsea-10 --seeds 0 1 2 3 4 --variants default released`.

Each case (environment, variant, seed) is one training run and one small file results/ENV/VARIANT-seedK.json; a case
whose file exists is skipped. Without environments: the ladder of `make learn`."""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from psdrl.agents.psdrl.agent import Agent
from psdrl.agents.psdrl.presets import deepsea_size
from psdrl.agents.psdrl.validation import check
from psdrl.cli import parse_train
from psdrl.envs import make_env
from psdrl.envs.atari import GAMES
from psdrl.run.log import Log
from psdrl.run.loop import train

RESULTS = Path("results")
SOLVED, WINDOW = 40, 50  # DeepSea is solved when the treasure was reached in 40 of 50 consecutive episodes

# What MinAtar's other games have and Breakout has not, and the reverse.
PLACES = shlex.split(
    "--minatar.stack 3 --latent.standardise --forward.local --forward.skip --forward.units 32 --forward.recurrent 1 "
    "--forward.gain 1 --forward.learning-rate 0.005 --forward.iterations 30 "
    "--termination.local --termination.predicted --termination.units 16 --termination.learning-rate 0.003 "
    "--termination.weight 10 --value.target-rate 0.6 --value.networks 1 --value.random-share 0.1 "
    "--posterior.prior-latent 0.01 --posterior.prior-reward 0.1"
)
WHOLE_STATE = shlex.split(
    "--minatar.stack 1 --latent.no-standardise --forward.no-local --forward.no-skip --forward.units 256 "
    "--forward.recurrent 32 --forward.gain 2 --forward.learning-rate 0.001 --forward.iterations 40 "
    "--termination.no-local --termination.no-predicted --termination.units 64 --termination.learning-rate 0.001 "
    "--termination.weight 1 --value.target-rate 0.1 --value.networks 2 --value.random-share 0.2 "
    "--posterior.prior-latent 1 --posterior.prior-reward 10"
)

VARIANTS: dict[str, list[str]] = {
    "default": [],
    "egreedy-exploit": ["--algo", "egreedy-exploit"],
    "egreedy-explore": ["--algo", "egreedy-explore"],
    "fresh-value": ["--algo", "fresh-value"],
    "mean": ["--posterior.rule", "mean", "--policy.epsilon", "0.05"],
    "released": ["--posterior.rule", "released"],
    "no-clamp": ["--latent.no-clamp"],
    "fixed-noise": ["--posterior.no-noise-from-data"],
    "reward-weight-1": ["--forward.reward-weight", "1"],
    "no-standardise": ["--latent.no-standardise"],
    "no-mean-frame": ["--autoencoder.no-mean-frame"],
    "length-20": ["--replay.length", "20"],
    "capacity-20k": ["--replay.capacity", "20000"],
    "ends-rare": ["--replay.ends", "rare"],
    "forward-16": ["--forward.iterations", "16"],
    "start-zero": ["--value.start", "zero"],
    "target-copy": ["--value.target-rate", "1"],
    "one-network": ["--value.networks", "1"],
    "no-skip": ["--forward.no-skip"],
    "places": PLACES,
    "whole-state": WHOLE_STATE,
    "single-frames": ["--minatar.stack", "1"],
    "ends-of-states": ["--termination.no-predicted"],
    "ends-weight-1": ["--termination.weight", "1"],
    "two-networks": ["--value.networks", "2"],
    "no-random-share": ["--value.random-share", "0"],
    "random": [  # no update ever
        *("--policy.epsilon", "1", "--policy.update-every", "1000000", "--policy.update-every-early", "1000000"),
    ],
    "sticky": ["--minatar.sticky", "0.1", "--minatar.ramping"],  # MinAtar's published protocol
    "half-episodes": ["--policy.update-every-early", "5"],  # DeepSea-10: every draw is dropped half way down
    "mid-episode": ["--policy.update-every-early", "15"],  # every other one, half way down
    "two-episodes": ["--policy.update-every-early", "20"],  # each draw is followed twice
    "noise-1": ["--posterior.noise-latent", "1", "--posterior.noise-reward", "1"],
}


@dataclass(frozen=True)
class Case:
    """One run: `python -m psdrl.train --env ENV --seed SEED` and the variant's flags."""

    env: str
    variant: str
    seed: int
    extra: tuple[str, ...] = ()  # flags beyond the variant's

    @property
    def path(self) -> Path:
        return RESULTS / self.env.replace("/", "-") / f"{self.variant}-seed{self.seed}.json"

    @property
    def arguments(self) -> list[str]:
        return [
            "--game" if self.env in GAMES else "--env",
            self.env,
            "--seed",
            str(self.seed),
            *VARIANTS.get(self.variant, []),
            *self.extra,
        ]


class Trace(Log):
    """Keeps returns, when they came, and a few numbers of each update."""

    def __init__(self, env: str) -> None:
        self.treasure = deepsea_size(env) is not None
        self.returns: list[float] = []
        self.steps: list[int] = []
        self.seconds: list[float] = []
        self.updates: list[dict[str, float]] = []
        self.begun = time.perf_counter()

    def scalars(self, step: int, values: dict[str, float]) -> None:
        if "train/return" in values:
            self.returns.append(round(values["train/return"], 4))
            self.steps.append(step)
            self.seconds.append(round(time.perf_counter() - self.begun, 1))
        elif "time/value" in values:
            kept = {k: float(f"{v:.4g}") for k, v in values.items() if k.startswith(("posterior/", "loss/", "time/"))}
            self.updates.append({"step": step} | kept)

    def solved(self) -> int | None:
        """Episode that ends the first window in which DeepSea counts as solved."""
        hits = [score > 0.5 for score in self.returns]
        ends = range(SOLVED, len(hits) + 1)
        return next((end for end in ends if sum(hits[max(0, end - WINDOW) : end]) >= SOLVED), None)

    def done(self) -> bool:
        return self.treasure and bool(self.returns) and self.returns[-1] > 0.5 and self.solved() is not None


def run(case: Case) -> dict[str, Any]:
    """Train in this process, without evaluations and checkpoints, which change nothing that is learned."""
    flags = ["--eval-every", "0", "--checkpoint-every", "0", "--device", "cpu"]
    config, _ = parse_train(case.arguments + flags)
    check(config)
    env = make_env(config)
    agent, trace = Agent(config, env.spec), Trace(case.env)
    train(agent, env, trace, trace.done)
    env.close()
    every = max(1, len(trace.updates) // 40)
    return {
        "env": case.env,
        "variant": case.variant,
        "seed": case.seed,
        "command": f"python -m psdrl.train {shlex.join(case.arguments)}",
        "preset": config.preset,
        "machine": f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} thread",
        "torch": torch.__version__,
        "solved": trace.solved() if trace.treasure else None,
        "last20": round(sum(trace.returns[-20:]) / max(1, len(trace.returns[-20:])), 4),
        "steps": agent.step,
        "minutes": round((time.perf_counter() - trace.begun) / 60, 2),
        "cpu_minutes": round(time.process_time() / 60, 2),  # what counts if other processes share the machine
        "returns": trace.returns,
        "ends": trace.steps,
        "seconds": trace.seconds,
        "updates": trace.updates[::every],
    }


def write(case: Case) -> None:
    """Run and store one case."""
    result = run(case)
    case.path.parent.mkdir(parents=True, exist_ok=True)
    case.path.write_text(json.dumps(result).replace('}, {"step"', '},\n{"step"') + "\n")


def start(case: Case) -> None:
    """Run one case in a process of its own, on one thread."""
    begun = time.perf_counter()
    flags = ["--one", case.env, case.variant, str(case.seed), "--results", str(RESULTS), "--extra", *case.extra]
    child = subprocess.run(
        [sys.executable, "-m", "psdrl.experiments.learn", *flags],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    minutes = (time.perf_counter() - begun) / 60
    if child.returncode:
        print(f"{case.path}: failed after {minutes:.1f} min\n{child.stderr[-2000:]}", flush=True)
        return
    result = json.loads(case.path.read_text())
    solved = f"solved after {result['solved']}, " if result["solved"] else ""
    print(
        f"{case.path}: {solved}last 20 episodes {result['last20']:.2f} of {len(result['returns'])}, "
        f"{result['steps']} steps, {result['minutes']:.1f} min, {result['cpu_minutes']:.1f} of them on the CPU",
        flush=True,
    )


LADDER = (
    [Case("deepsea-20", "default", 0), Case("Freeway", "default", 0, ("--steps", "30000"))]
    + [Case("minatar/freeway", "default", 0), Case("minatar/space_invaders", "default", 0)]
    + [
        Case(env, "default", seed)
        for env in ("deepsea-10", "deepsea-14", "deepsea-10-image", "CartPole-v1", "minatar/breakout")
        for seed in range(2)
    ]
    + [Case("deepsea-10", control, 0, ("--steps", "3000")) for control in ("released", "egreedy-exploit", "noise-1")]
)


def main() -> None:
    """Parse flags and run what is missing."""
    global RESULTS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="*")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--variants", nargs="*", default=["default"])
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time, one thread each")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--one", nargs=3, metavar=("ENV", "VARIANT", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--extra", nargs=argparse.REMAINDER, default=[], help="further flags of psdrl.train; last")
    options = parser.parse_args()
    RESULTS = options.results
    extra = tuple(options.extra)
    if options.one:
        torch.set_num_threads(1)
        write(Case(options.one[0], options.one[1], int(options.one[2]), extra))
        return
    cases = [Case(e, v, s, extra) for e in options.envs for v in options.variants for s in options.seeds]
    missing = [case for case in (cases if options.envs else LADDER) if not case.path.exists()]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(start, missing))


if __name__ == "__main__":
    main()
