"""Seconds and bytes of a checkpoint: `python -m bench.checkpoint --transitions 100000 --new 1000`.

The replay buffer is filled with frames of random play, over and over again; the first checkpoint writes all of it,
the next ones what is new. Nothing is reported unless the restored buffer equals the saved one in every slot.
"""

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import psdrl
from psdrl.agents.interface import Agent
from psdrl.agents.registry import make_agent
from psdrl.envs import make_env
from psdrl.envs.vector import Step
from psdrl.run.checkpoint import Store, find, restore


@dataclass(frozen=True)
class Options:
    """Time checkpoints of a full replay buffer."""

    game: str = "Pong"
    """Atari game."""
    algo: Literal["psdrl", "bootstrap"] = "psdrl"
    """Whose buffer: whole episodes, or stacks of frames."""
    transitions: int = 100_000
    """Transitions in the buffer, and its capacity."""
    new: int = 1000
    """Transitions between two checkpoints."""
    played: int = 4000
    """Steps of random play that are repeated."""
    folder: Path | None = None
    """Where to write; default: a temporary directory."""


def random_play(config: Any, steps: int) -> list[tuple[NDArray, Step]]:
    """Actions and what they led to; the first action only starts."""
    env = make_env(config, num_envs=1)
    rng = np.random.default_rng(0)
    env.reset()
    played = []
    for _ in range(steps):
        actions = rng.integers(env.spec.num_actions, size=1)
        played.append((actions, env.step(actions)))
    env.close()
    return played


def fill(agent: Agent, played: list[tuple[NDArray, Step]], start: int, count: int) -> None:
    """Steps number `start` to `start + count` of the play, repeated; it is cut where it begins again."""
    for i in range(start, start + count):
        actions, step = played[i % len(played)]
        if i % len(played) == 0:
            agent.begin(0, step.observation)
        else:
            agent.step += int((~step.started).sum())
            agent.observe(0, actions, step._replace(truncated=step.truncated | (i % len(played) == len(played) - 1)))


def same(one: Any, other: Any) -> bool:
    """Equal counters and rows."""
    rings = range(len(one.spans()))
    return one.counters() == other.counters() and all(
        torch.equal(mine, theirs)
        for ring in rings
        for mine, theirs in zip(
            *(x.rows(ring, x.spans()[ring].first, x.spans()[ring].end).values() for x in (one, other)), strict=True
        )
    )


def main(options: Options) -> None:
    """Fill, save, save again, find, restore."""
    console = Console()
    replay = {"capacity": options.transitions}
    config = psdrl.configure(game=options.game, algo=options.algo, device="cpu", replay=replay)
    played = random_play(config, options.played)
    env = make_env(config, num_envs=1)
    env.close()
    agent = make_agent(config, env.spec)
    fill(agent, played, 0, options.transitions + options.played)
    start = options.transitions + options.played
    folder = options.folder or Path(tempfile.mkdtemp())
    store = Store(folder, warn=console.print)
    table = Table("checkpoint", "training waits", "written in", "bytes", title=f"{options.game}, {options.algo}")
    for name in ("first", *["next"] * 10):
        store.save(agent)
        store.wait()
        if store.saved is None:
            raise SystemExit("nothing was written")
        table.add_row(name, f"{store.stall:.3f} s", f"{store.saved.seconds:.3f} s", f"{store.saved.bytes / 1e6:.2f} MB")
        fill(agent, played, start, options.new)
        start += options.new
    store.save(agent)
    store.wait()
    other = make_agent(config, env.spec)
    began = time.perf_counter()
    path = find(folder).newest
    found = time.perf_counter()
    if path is None:
        raise SystemExit("no checkpoint")
    restore(path, other)
    restored = time.perf_counter()
    if not same(agent.replay, other.replay):
        raise SystemExit("the restored buffer differs: no times")
    console.print(table)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    rows = sum(span.end - span.first for span in agent.replay.spans())
    console.print(
        f"{rows} rows, {size / 1e6:.1f} MB on the disk with two checkpoints; checked in {found - began:.2f} s, "
        f"restored in {restored - found:.2f} s"
    )
    if options.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(tyro.cli(Options))
