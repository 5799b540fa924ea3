"""Updates per second of DreamerV2, plain beside fast: `python -m bench.dreamer --preset paper --repeat 2`.

Plain is `psdrl/agents/dreamer/oracle.py`, eager PyTorch as the paper's equations read; both make the gradient steps of
an update from the same networks, sequences and noise, in one process, in turn, and the best time counts. Nothing is
reported unless their losses agree. The last lines are the cost model's predictions for GPUs that nobody here has.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import tyro
from torch import Tensor

from psdrl.agents.dreamer import learning, oracle
from psdrl.agents.dreamer.networks import Networks
from psdrl.agents.dreamer.settings import DreamerConfig
from psdrl.agents.registry import configure
from psdrl.cost.forecast import device_for, forecast, workload
from psdrl.envs.vector import EnvSpec
from psdrl.runtime.execution import Execution
from psdrl.runtime.graphs import Step

PHASES = ("model", "behaviour")
TOLERANCE = 1e-3  # of the losses, relative: float32 sums of 800 pictures in another order


@dataclass(frozen=True)
class Options:
    """Time the updates of DreamerV2."""

    preset: Literal["paper", "cpu", "debug"] = "paper"
    """Sizes of the networks and batches."""
    actions: int = 6
    """Number of actions."""
    compile: bool = False
    """torch.compile the fast path."""
    repeat: int = 2
    """Measurements of each; the best counts."""
    json: bool = False
    """Print JSON instead of lines."""


def batch(config: DreamerConfig, spec: EnvSpec) -> tuple[Tensor, ...]:
    """Random sequences, each one episode, with their noise."""
    rng, shape = torch.Generator().manual_seed(0), (config.learning.length, config.learning.batch)
    frames = torch.randint(256, (*shape, *spec.shape), dtype=torch.uint8, generator=rng)
    actions = torch.randint(spec.num_actions, shape, generator=rng)
    rewards, nothing, first = torch.rand(shape, generator=rng), torch.zeros(shape), torch.zeros(shape)
    first[0] = 1.0
    return frames, actions, rewards, nothing, first, torch.rand(*shape, config.model.latents, generator=rng)


def steps(path: str, options: Options, config: DreamerConfig, spec: EnvSpec) -> tuple[Step, Step]:
    """The gradient steps of an agent of this path; all start from the same parameters."""
    torch.manual_seed(0)
    networks = Networks(config, spec)
    optimisers = learning.make_optimisers(networks, config)
    if path == "plain":
        return oracle.make_steps(networks, optimisers, config)
    execution = Execution(torch.device("cpu"), compile=options.compile)
    return learning.make_steps(networks, optimisers, config, execution)


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """How long it takes, and its result."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def measure(options: Options) -> dict[str, Any]:
    """Seconds by path and phase, and what the cost model predicts."""
    config = configure(algo="dreamer", game="Pong", preset=options.preset, device="cpu")
    spec = EnvSpec("Pong", "image", (1, 64, 64), "uint8", options.actions, "none")
    sequences, horizon = batch(config, spec), config.behaviour.horizon
    rows, rng = config.learning.batch * config.learning.length, torch.Generator().manual_seed(1)
    rest = torch.zeros(rows), torch.rand(horizon, rows, generator=rng)
    latent_noise = torch.rand(horizon, rows, config.model.latents, generator=rng)
    paths = {path: steps(path, options, config, spec) for path in ("plain", "fast")}
    times = {path: dict.fromkeys(PHASES, float("inf")) for path in paths}
    losses: dict[str, Tensor] = {}
    for turn in range(options.repeat):
        for path, (model, behaviour) in paths.items():
            took, (hidden, sample, parts) = seconds(lambda model=model: model(*sequences))
            again, (numbers,) = seconds(lambda b=behaviour, h=hidden, z=sample: b(h, z, *rest, latent_noise))
            for phase, one in zip(PHASES, (took, again), strict=True):
                times[path][phase] = min(times[path][phase], one)
            if turn == 0:
                losses[path] = torch.cat([parts[:4], numbers[:2]])
    worst = float(((losses["fast"] - losses["plain"]).abs() / losses["plain"].abs().clamp(min=1e-3)).max())
    if not worst < TOLERANCE:
        raise SystemExit(f"The losses of the two paths differ by {worst:.1e}: no speed is reported.")
    totals = {path: sum(times[path].values()) for path in paths}
    return {
        "preset": options.preset,
        "threads": torch.get_num_threads(),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "compile": options.compile,
        "seconds": times,
        "updates_per_second": {path: 1 / total for path, total in totals.items()},
        "plain_over_fast": totals["plain"] / totals["fast"],
        "largest_difference": worst,
        "predicted": predicted(config, spec),
    }


def predicted(config: DreamerConfig, spec: EnvSpec) -> dict[str, dict[str, float]]:
    """Updates per second and hours of the run by the data sheets, tf32 with CUDA graphs."""
    work, found = workload(config, spec), {}
    for name in ("a100", "h100"):
        device = device_for(name, work, "tf32", cuda_graphs=True)
        update = sum(phase.seconds(device) for phase in work.update(0).values())
        found[name] = {"updates_per_second": 1 / update, "hours": forecast(config, spec, device, work).hours}
    return found


def main() -> None:
    """Print lines or JSON."""
    options = tyro.cli(Options, prog="bench.dreamer")
    result = measure(options)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"preset {result['preset']}, {result['threads']} threads, {result['isa']}, |A| = {options.actions}")
    for path, times in result["seconds"].items():
        parts = ", ".join(f"{phase} {took:.3g} s" for phase, took in times.items())
        print(f"{path}: {parts}; {result['updates_per_second'][path]:.3g} updates per second")
    differ = f"losses differ by {result['largest_difference']:.1e} at most"
    print(f"plain / fast: {result['plain_over_fast']:.2f} ({differ})")
    for name, guess in result["predicted"].items():
        print(f"PREDICTED {name}: {guess['updates_per_second']:.3g} updates per second, {guess['hours']:.3g} h per run")


if __name__ == "__main__":
    main()
