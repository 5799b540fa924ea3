"""What a run's process holds beside its forecast: `python -m bench.memory --transitions 44000`.

The buffer has its full size and holds random episodes; then come two updates. The kernel's high-water mark of each is
compared with `psdrl.cost`; more than 20 % apart is a failure.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from psdrl.agents.psdrl.synthetic import atari_spec, filled_agent
from psdrl.agents.registry import configure
from psdrl.cost.forecast import PROCESS

EPISODE, TOLERANCE = 1000, 0.2


@dataclass(frozen=True)
class Options:
    """Measure the memory of updates on a CPU."""

    preset: str = "cpu"
    """Sizes of the networks and batches."""
    transitions: int = 44_000
    """Random transitions in the buffer."""
    actions: int = 6
    """Number of actions."""


def peak() -> float:
    """Largest resident bytes since the last `forget`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def forget() -> None:
    """Start a new high-water mark."""
    Path("/proc/self/clear_refs").write_text("5")


def main() -> int:
    """Print both; 1 if they differ by more than the tolerance."""
    options = tyro.cli(Options, prog="bench.memory")
    config = configure(game="Pong", preset=options.preset, device="cpu")
    spec = atari_spec(options.actions)
    agent = filled_agent(config, spec, [EPISODE] * (options.transitions // EPISODE))
    parts = agent.workload(config, spec).memory() | {"process": PROCESS}
    expected = sum(parts.values())
    held = 0.0
    for _ in range(2):
        forget()
        agent.update()
        held = max(held, peak())
    print("forecast:", ", ".join(f"{name} {size / 1e6:.0f}" for name, size in parts.items()), "MB")
    print(f"forecast {expected / 1e6:.0f} MB, held {held / 1e6:.0f} MB ({held / expected - 1:+.0%})")
    return int(abs(held / expected - 1) > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
