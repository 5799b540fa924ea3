"""Seconds per unit of each phase: `python -m bench.phases --preset paper --actions 6 --transitions 5000`.

Units: autoencoder_step (a gradient step with inner batch L), forward_step (forward and termination model, per time
step of a window), posterior (whole, encoding included), value_step (a gradient step with its share of lookahead and
targets), act (one action, one environment). Every path runs in the same process, in turn; the best time counts.
"""

import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.utils._pytree
import tyro
from rich.console import Console
from rich.table import Table

from bench import published
from bench.workload import make_agent, shortened
from psdrl.agents.psdrl import learning, oracle, planning, statistics
from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.cost.devices import best, measure_here
from psdrl.kernels.linear_tanh.aten import linear

Unit = Literal["autoencoder_step", "forward_step", "posterior", "value_step", "act"]
ACTS = 10  # measurements of an action for one of the other units: it takes milliseconds
UNITS: tuple[Unit, ...] = ("autoencoder_step", "forward_step", "posterior", "value_step", "act")


@dataclass(frozen=True)
class Options:
    """Time the phases of an update."""

    preset: Literal["paper", "cpu", "debug"] = "paper"
    """Sizes of the networks and batches."""
    actions: int = 6
    """Number of actions."""
    transitions: int = 5000
    """Transitions in the buffer."""
    only: Unit | None = None
    """Time one unit only."""
    compile: bool = False
    """torch.compile the networks of the fast path."""
    paths: tuple[Literal["published", "plain", "fast"], ...] = ("published", "plain", "fast")
    """What to time; see bench/published.py."""
    repeat: int = 3
    """Measurements of each; the best counts."""
    json: bool = False
    """Print JSON instead of a table."""


def unit(name: Unit, agent: PsdrlAgent, path: str) -> tuple[Callable[[], object], float]:
    """A call that runs some units of this phase, and how many."""
    models, optimisers, replay, config = agent.models, agent.optimisers, agent.replay, agent.config
    code = learning if path == "fast" else oracle
    rng = np.random.default_rng(0)

    def sampler(batch: int, length: int) -> learning.Sampler:
        return lambda: replay.sample(batch, length, rng)

    size, length = config.replay.batch, config.replay.length
    if name == "autoencoder_step":
        steps = 2 if size * length > 10_000 else size
        short = shortened(config, batch=steps)
        return lambda: code.train_autoencoder(models, optimisers, replay, sampler(steps, length), short), steps
    if name == "posterior":
        if path == "published":
            return lambda: published.posterior_mean(models, replay, config), 1

        def fit() -> None:
            if path == "fast":
                table = learning.encode_buffer(models, replay, agent.execution)
                data = statistics.buffer_statistics(models, replay, table, agent.execution)
            else:
                data = oracle.buffer_statistics(models, replay, oracle.EncodeOnUse(models, replay))
            agent.posterior.fit(data)
            agent.draw()

        return fit, 1
    if name == "act":
        observation = replay.frames(torch.tensor([0])).numpy()
        return lambda: agent.actor.act(observation, 0.0), 1
    table = _latents(agent, path)
    steps = 8 if size * length > 10_000 else length
    short = shortened(config, length=steps)
    if name == "forward_step":
        return lambda: code.train_forward(models, optimisers, table, sampler(size, steps), short), steps
    train = planning.train_value if path == "fast" else oracle.train_value
    return lambda: train(models, optimisers, replay, table, sampler(size, steps), agent.model, short), steps


def _latents(agent: PsdrlAgent, path: str) -> Any:
    if path == "fast":
        return learning.encode_buffer(agent.models, agent.replay, agent.execution)
    return oracle.EncodeOnUse(agent.models, agent.replay)


def gflop(name: Unit, agent: PsdrlAgent, transitions: int) -> float:
    """Arithmetic of one unit on the fast path, in GFLOP."""
    w, r = agent.workload(agent.config, agent.spec), agent.config.replay
    k, act = w.features, 2e-9 * (w.ahead + agent.spec.num_actions * (w.termination + w.value))
    return {
        "autoencoder_step": 6e-9 * r.length * w.autoencoder.macs,
        "forward_step": 6e-9 * r.batch * (w.forward + w.termination),
        "posterior": 2e-9 * transitions * (w.encoder.macs + w.gru + w.feature_network + k * (k / 2 + w.outputs)),
        "value_step": r.batch * (act + 6e-9 * w.value),
        "act": 2e-9 * w.encoder.macs + act,
    }[name]


def gemm_peak(width: int, rows: int) -> float:
    """Floating-point operations per second of rows x width x width products in float32 by this CPU's faster library."""
    x, w = torch.randn(rows, width), torch.randn(width, width)
    return 2 * rows * width * width / min(best(lambda: x @ w.T), best(lambda: linear(x, w)))


def read_bandwidth() -> float:
    """Bytes per second of reading memory, by a sum over 256 MB."""
    x = torch.ones(2**26)
    return x.nbytes / best(lambda: x.sum())


def weights_read(agent: PsdrlAgent) -> int:
    """Bytes of the weights that one action reads on the fast path: encoder, folded model, termination and value."""
    models = agent.models
    folded = torch.utils._pytree.tree_leaves(models.forward_model.fold(agent.model))
    networks = (models.autoencoder.encoder, models.termination, *models.value.acting(models.target).networks()[:1])
    return sum(x.nbytes for x in folded) + sum(p.nbytes for network in networks for p in network.parameters())


def measure(options: Options) -> dict:
    """Seconds per unit and path, the GEMM peak of this run, and the fraction of it that the fast path reaches."""
    agents = {
        path: make_agent(
            options.preset,
            options.actions,
            options.transitions,
            "fast" if path == "fast" else "plain",
            compile=options.compile and path == "fast",
        )
        for path in options.paths
    }
    if "published" in agents:
        published.as_published(agents["published"])
    some = next(iter(agents.values()))
    device = measure_here(some.workload(some.config, some.spec).trials())
    peak = gemm_peak(some.config.forward.units, min(some.config.replay.batch * 4 * options.actions, 4096))
    units = {}
    for name in [options.only] if options.only else UNITS:
        calls = {path: unit(name, agent, path) for path, agent in agents.items()}
        seconds: dict[str, float] = {}
        for call, _ in calls.values():
            call()  # warm up
        bandwidth = 0.0
        for _ in range(options.repeat * (ACTS if name == "act" else 1)):
            if name == "act":  # in turn, too: it varies as much as what it is compared with
                bandwidth = max(bandwidth, read_bandwidth())
            for path, (call, count) in calls.items():
                with published.stacked() if path == "published" else nullcontext():
                    start = time.perf_counter()
                    call()
                    took = (time.perf_counter() - start) / count
                seconds[path] = min(took, seconds.get(path, took))
        work = gflop(name, some, options.transitions)
        units[name] = {"seconds": seconds, "gflop": work}
        if "fast" in seconds:
            rate = work * 1e9 / seconds["fast"]
            units[name] |= {"gflop_per_second": rate / 1e9, "fraction_of_gemm_peak": rate / peak}
        if "fast" in seconds and name == "act":
            read = weights_read(agents["fast"])
            fraction = read / seconds["fast"] / bandwidth
            units[name] |= {"megabytes_read": read / 1e6, "fraction_of_read_bandwidth": fraction}
    return {
        "preset": options.preset,
        "actions": options.actions,
        "transitions": options.transitions,
        "threads": torch.get_num_threads(),
        "compile": options.compile,
        "gemm_gflop_per_second": peak / 1e9,
        "copy_gb_per_second": device.bandwidth / 1e9,
        "units": units,
    }


def main() -> None:
    """Print a table or JSON."""
    options = tyro.cli(Options, prog="bench.phases")
    result = measure(options)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    console = Console()
    console.print(
        f"preset {result['preset']}, |A| = {result['actions']}, {result['transitions']} transitions, "
        f"{result['threads']} threads, GEMM peak {result['gemm_gflop_per_second']:.0f} GFLOP/s, "
        f"copy {result['copy_gb_per_second']:.1f} GB/s",
        highlight=False,
        soft_wrap=True,
    )
    table = Table("unit", *(f"{path} s" for path in options.paths), "GFLOP/s", "of GEMM peak")
    for path in options.paths[:-1]:
        table.add_column(f"{path} / fast", justify="right")
    for name, entry in result["units"].items():
        seconds = entry["seconds"]
        cells = [f"{seconds[path]:.4g}" for path in options.paths]
        cells += [f"{entry.get('gflop_per_second', 0):.1f}", f"{entry.get('fraction_of_gemm_peak', 0):.0%}"]
        cells += [f"{seconds[path] / seconds[options.paths[-1]]:.2f}x" for path in options.paths[:-1]]
        table.add_row(name, *cells)
    console.print(table)
    if "megabytes_read" in (act := result["units"].get("act", {})):
        console.print(
            f"An action reads {act['megabytes_read']:.0f} MB of weights, at {act['fraction_of_read_bandwidth']:.0%} of "
            "the bandwidth of a sum over 256 MB.",
            highlight=False,
        )


if __name__ == "__main__":
    main()
