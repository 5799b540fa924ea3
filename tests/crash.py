"""Kills training processes at random moments, resumes them, and compares with the run that nobody disturbed.

`python -m tests.crash --kills 50` (make crash) prints a table and fails unless every bit is the same: metrics.jsonl
without its times, and all that the last checkpoint holds of the agent. Two of three kills come at a random time, every
third within a save: the process kills itself before or after one of the store's operations on the disk.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SMALL = "--device cpu --checkpoint-minutes 0.02"
RUNS = {  # name -> flags; each has updates, episodes' ends, evaluations and checkpoints at odd steps
    "PSDRL, deepsea-8, 1 environment": f"--env deepsea-8 {SMALL} --steps 1200 --eval-every 300 --checkpoint-every 97",
    "PSDRL, CartPole-v1, 4 environments in 2 groups": f"--env CartPole-v1 {SMALL} --steps 900 --eval-every 250 "
    "--num-envs 4 --env-groups 2 --checkpoint-every 61 --forward.iterations 20 --value.iterations 20",
    "bootstrap, deepsea-8, 2 environments": f"--algo bootstrap --env deepsea-8 {SMALL} --steps 2500 --eval-every 600 "
    "--num-envs 2 --checkpoint-every 173",
    "successor, deepsea-8, 2 environments": f"--algo successor --env deepsea-8 {SMALL} --steps 2000 --eval-every 600 "
    "--num-envs 2 --checkpoint-every 173 --network.features 32",
    "fresh-value, deepsea-8, 1 environment": f"--algo fresh-value --env deepsea-8 {SMALL} --steps 600 --eval-every 200 "
    "--checkpoint-every 71",
    "egreedy-exploit, deepsea-8, 3 environments": f"--algo egreedy-exploit --env deepsea-8 {SMALL} --steps 900 "
    "--num-envs 3 --eval-every 400 --checkpoint-every 101",
    "PSDRL, MinAtar breakout, 2 environments": f"--env minatar/breakout {SMALL} --steps 1500 --eval-every 700 "
    "--num-envs 2 --checkpoint-every 131 --forward.iterations 5 --value.iterations 5",
    "PSDRL, Pong (cpu preset, EnvPool), 4 in 2 groups": f"--game Pong --preset cpu {SMALL} --steps 2200 "
    "--num-envs 4 --env-groups 2 --atari.max-steps 150 --eval-every 900 --checkpoint-every 211 "
    "--autoencoder.iterations 1 --forward.iterations 3 --value.iterations 3 --replay.length 30 --replay.batch 4",
    "bootstrap, Pong (EnvPool), 2 environments": f"--algo bootstrap --game Pong {SMALL} --steps 900 --num-envs 2 "
    "--env-groups 2 --eval-every 0 --atari.max-steps 150 --checkpoint-every 83 --exploration.random-steps 200 "
    "--replay.capacity 2000 --network.heads 3",
    "dreamer, CartPole-v1, 4 environments in 2 groups": f"--algo dreamer --env CartPole-v1 {SMALL} --steps 700 "
    "--num-envs 4 --env-groups 2 --eval-every 250 --checkpoint-every 61 --exploration.random-steps 150",
    "dreamer, Pong (EnvPool), 2 environments": f"--algo dreamer --game Pong {SMALL} --steps 700 --num-envs 2 "
    "--eval-every 0 --atari.max-steps 150 --checkpoint-every 83 --exploration.random-steps 400 "
    "--replay.capacity 2000 --learning.length 12 --learning.batch 4",
}
SHORT = (
    "PSDRL, deepsea-8, 1 environment",
    "PSDRL, CartPole-v1, 4 environments in 2 groups",
    "bootstrap, deepsea-8, 2 environments",
)
# Kills its process at the n-th operation by which the store changes the disk: "before" or after it has happened.
SUICIDE = """
import os, signal, sys
from psdrl.run.store.files import Disk
left = [int(os.environ["CRASH_AT"])]
def deadly(name):
    operation = getattr(Disk, name)
    def operate(*arguments):
        left[0] -= 1
        if left[0] == 0 and os.environ["CRASH_WHEN"] == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = operation(*arguments)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return operate
for name in ("open", "write", "fsync", "fsync_directory", "mkdir", "rename", "unlink", "rmdir"):
    setattr(Disk, name, deadly(name))
from psdrl import cli
sys.argv[0] = "psdrl.train"
cli.main_train()
"""


@dataclass
class Outcome:
    """What became of a run."""

    name: str
    kills: int = 0
    within_saves: int = 0
    resumed: int = 0  # kills after which a checkpoint served, instead of the beginning
    lines: int = 0
    different: list[str] = field(default_factory=list)


def environment() -> dict[str, str]:
    """One thread, and this source tree."""
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def start(flags: str, logdir: Path, suicide: tuple[int, str] | None = None) -> subprocess.Popen[bytes]:
    """A training process."""
    program = ["-c", SUICIDE] if suicide else ["-m", "psdrl.train"]
    extra = {"CRASH_AT": str(suicide[0]), "CRASH_WHEN": suicide[1]} if suicide else {}
    with open(logdir.with_suffix(".out"), "ab") as out:
        command = [sys.executable, *program, *flags.split(), "--logdir", str(logdir)]
        return subprocess.Popen(command, stdout=out, stderr=out, env=environment() | extra, start_new_session=True)


def finished(process: subprocess.Popen[bytes], logdir: Path) -> bool:
    """Whether the process has done all its steps; raises if it failed otherwise than by a kill."""
    code = process.wait()
    if code not in (0, -signal.SIGKILL):
        raise RuntimeError(f"exit code {code}:\n{logdir.with_suffix('.out').read_text(errors='replace')[-3000:]}")
    return code == 0


def killed_at_random(flags: str, logdir: Path, rng: random.Random, longest: float) -> bool:
    """Run and kill it at a time after its first metrics of this life; whether it was still running."""
    process = start(flags, logdir)
    before = _size(logdir)
    while process.poll() is None and _size(logdir) == before:
        time.sleep(0.005)
    try:
        process.wait(rng.uniform(0, longest))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    return not finished(process, logdir)


def _size(logdir: Path) -> int:
    path = logdir / "metrics.jsonl"
    return path.stat().st_size if path.exists() else 0


def metrics(logdir: Path) -> list[dict[str, Any]]:
    """What a run logged, without times."""
    lines = [json.loads(line) for line in (logdir / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines]


def contents(logdir: Path) -> dict[str, str]:
    """The last checkpoint, in memory: checksums of the agent's and the replay buffer's numbers, by name."""
    import torch
    from torch.utils import _pytree as pytree

    from psdrl.run.evaluation import restored

    agent, _, extra = restored(logdir, "cpu", replay=True)
    state = {"agent": agent.state_dict(), "replay": agent.replay.state_dict(), "loop": extra["loop"]}
    found = {}
    for path, leaf in pytree.tree_flatten_with_path(state)[0]:
        data = leaf.contiguous().numpy().tobytes() if isinstance(leaf, torch.Tensor) else leaf
        data = data.tobytes() if hasattr(data, "tobytes") else repr(data).encode() if type(data) is not bytes else data
        found[pytree.keystr(path)] = hashlib.sha256(data).hexdigest()
    return found


def compare(wanted: Path, got: Path) -> list[str]:
    """What differs between two runs."""
    different = []
    for i, (one, two) in enumerate(zip(metrics(wanted), metrics(got), strict=False)):
        if one != two:
            different.append(f"line {i + 1} of metrics.jsonl: {one} without kills, {two} with")
            break
    if len(metrics(wanted)) != len(metrics(got)):
        different.append(f"{len(metrics(wanted))} lines without kills, {len(metrics(got))} with")
    one, two = contents(wanted), contents(got)
    return different + [name for name in sorted(one.keys() | two.keys()) if one.get(name) != two.get(name)]


def crash(name: str, kills: int, seed: int, folder: Path) -> Outcome:
    """Run it undisturbed; then again with so many kills, and once more whenever it ends too early for them."""
    flags, rng, outcome = RUNS[name], random.Random(f"{name} {seed}"), Outcome(name)
    slug = "".join(c if c.isalnum() else "-" for c in name)
    calm = folder / f"{slug}-calm"
    began = time.monotonic()
    assert finished(start(flags, calm), calm)
    longest = 0.5 * (time.monotonic() - began)
    outcome.lines = len(metrics(calm))
    life = 0
    while outcome.kills < kills:
        life += 1
        logdir, done = folder / f"{slug}-{life}", False
        while not done and outcome.kills < kills:
            if outcome.kills % 3 == 2:
                suicide = rng.randint(20, 160), rng.choice(("before", "after"))
                done = finished(start(flags, logdir, suicide), logdir)
                outcome.within_saves += not done
            else:
                done = not killed_at_random(flags, logdir, rng, longest)
            outcome.kills += not done
            outcome.resumed += not done and any(logdir.glob("checkpoint-*"))
        if not done:
            assert finished(start(flags, logdir), logdir)
        outcome.different += compare(calm, logdir)
    return outcome


def table(outcomes: list[Outcome]) -> str:
    """What was done, and what differs."""
    rows = ["| run | kills | within a save | resumed from a checkpoint | lines of metrics | differences |"]
    rows.append("| --- | --- | --- | --- | --- | --- |")
    rows += [
        f"| {o.name} | {o.kills} | {o.within_saves} | {o.resumed} | {o.lines} | {len(o.different)} |" for o in outcomes
    ]
    return "\n".join(rows)


def main() -> int:
    """The long version; exit code 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="over all runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="runs whose name contains this")
    arguments = parser.parse_args()
    names = [name for name in RUNS if arguments.only in name]
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        for i, name in enumerate(names):
            share = arguments.kills // len(names) + (i < arguments.kills % len(names))
            outcomes.append(crash(name, share, arguments.seed, Path(folder)))
            print(table(outcomes[-1:]).splitlines()[-1], *outcomes[-1].different[:10], sep="\n  ", flush=True)
    print(table(outcomes))
    return int(any(outcome.different for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
