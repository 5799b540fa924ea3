"""What `bench.bootstrap` and `bench.successor` share: an agent with something to learn from, a plain eager version of
its gradient step beside its own, in turn, and what the cost model predicts for a GPU."""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from psdrl.agents.registry import configure, make_agent
from psdrl.cost.devices import data_sheet
from psdrl.cost.forecast import forecast, workload
from psdrl.envs.vector import EnvSpec

STEPS = 4  # gradient steps per measurement
TRANSITIONS = 500
GradientStep = Callable[..., Tensor]  # of a batch's tensors -> its losses (n,)


def options(description: str | None) -> argparse.Namespace:
    """The flags of both."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=("paper", "cpu"), default="paper")
    parser.add_argument("--actions", type=int, default=18)
    parser.add_argument("--repeat", type=int, default=5)
    return parser.parse_args()


def filled_agent(algo: str, preset: str, actions: int) -> Any:
    """An agent with random frames in its buffer."""
    size = 84 if preset == "paper" else 64
    config: Any = configure(
        algo=algo, game="Pong", preset=preset, device="cpu", precision="fp32", replay={"capacity": TRANSITIONS}
    )
    agent: Any = make_agent(config, _spec(size, actions))
    rng = np.random.default_rng(0)
    agent.replay.start(0, rng.integers(0, 256, (1, size, size)))
    for _ in range(TRANSITIONS):
        frame, mask = rng.integers(0, 256, (1, size, size)), agent.mask()
        kept = () if mask is None else (mask,)
        reward, end = float(rng.integers(-1, 2)), bool(rng.random() < 0.01)
        agent.replay.add(0, int(rng.integers(actions)), reward, frame, end, *kept)
    return agent


def _spec(size: int, actions: int) -> EnvSpec:
    return EnvSpec("Pong", "image", (1, size, size), "uint8", actions, "none")


def compare(
    chosen: argparse.Namespace, agent: Any, ours: GradientStep, plain: GradientStep, data: Sequence[tuple[Tensor, ...]]
) -> None:
    """Print the rates of both on the same batches, from the same weights, and their ratio; nothing if they differ."""
    for batch in data:
        one, other = ours(*batch), plain(*batch)
        if not torch.allclose(one, other, rtol=1e-3, atol=1e-5):
            sys.exit(f"The versions differ: losses {one.tolist()} and {other.tolist()}; no speed is reported.")
    pairs = [(_seconds(plain, data), _seconds(ours, data)) for _ in range(chosen.repeat)]
    ratios = [a / b for a, b in pairs]
    rates = [STEPS / min(column) for column in zip(*pairs, strict=True)]
    isa = torch.backends.cpu.get_cpu_capability()
    print(
        f"{chosen.preset}, {chosen.actions} actions, batch {agent.config.learning.batch}, {torch.get_num_threads()} "
        f"thread(s), {isa}: plain {rates[0]:.2f} gradient steps per second, ours {rates[1]:.2f}; ratio "
        f"{statistics.median(ratios):.2f} (pairs {', '.join(f'{ratio:.2f}' for ratio in ratios)})"
    )


def _seconds(step: GradientStep, data: Sequence[tuple[Tensor, ...]]) -> float:
    start = time.perf_counter()
    for batch in data:
        step(*batch)
    return time.perf_counter() - start


def predict(algo: str, actions: int) -> None:
    """Print what the cost model says of the paper's sizes on an A100."""
    config: Any = configure(algo=algo, game="Pong", preset="paper", device="cpu")
    spec = _spec(84, actions)
    work = workload(config, spec)
    for graphs in (False, True):
        device = data_sheet("a100", "tf32", graphs)
        step = work.update(work.capacity)["learning"].seconds(device)
        hours = forecast(config, spec, device, work).hours
        print(
            f"PREDICTION for an A100, tf32, {'CUDA graphs' if graphs else 'eager'}: {1 / step:.0f} gradient steps per "
            f"second, {hours:.2f} h for 1,000,000 steps with evaluation"
        )
