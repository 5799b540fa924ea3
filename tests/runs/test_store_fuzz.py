"""Mutated files of runs: one sentence or the state that was saved, never a traceback."""

import copy
import itertools
import json
import random
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import zstandard

import psdrl
from psdrl.agents.registry import make_agent
from psdrl.envs import make_env
from psdrl.errors import UserError
from psdrl.run import checkpoint
from psdrl.run.checkpoint import Store, read_config, restore, write_config
from psdrl.run.evaluation import load
from psdrl.run.loop import train
from psdrl.run.store import manifest, metrics
from psdrl.run.store.files import Stored
from tests.storage import SmallAgent, whole_state

NASTY: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        1,
        2**31,
        2**63,
        2**200,
        1e308,
        -0.5,
        "",
        "x",
        "../../x",
        "1e999",
        [],
        {},
        [[]],
        [1, 2],
        {"a": 1},
    ),
    *({"$tensor": "/x"}, {"$array": "/weights/channels"}, {"$float": "7ff8000000000000"}, {"$tuple": []}, "x" * 3000),
)
COUNTS = [150, pytest.param(5000, marks=pytest.mark.slow)]  # of each kind of buffer


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Bytes flipped, cut, repeated, swapped, replaced, inserted."""
    a, b = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    kind = rng.randrange(7)
    if kind == 0 and data:
        i = rng.randrange(len(data))
        return data[:i] + bytes([data[i] ^ (1 << rng.randrange(8))]) + data[i + 1 :]
    noise = rng.randbytes(rng.randrange(1, 40))
    return (
        data[:a],
        data[:a] + data[b:],
        data[:b] + data[a:],
        data[b:] + data[:a],
        data[:a] + noise + data[a:],
        data[:a] + noise + data[a + len(noise) :],
        noise,
    )[kind]


def edited(tree: Any, rng: random.Random) -> Any:
    """A JSON value with one node replaced, removed or repeated."""
    if isinstance(tree, dict) and tree and rng.random() < 0.9:
        key = rng.choice(list(tree))
        if rng.random() < 0.1:
            return {k: v for k, v in tree.items() if k != key}
        return {**tree, key: edited(tree[key], rng)}
    if isinstance(tree, list) and tree and rng.random() < 0.9:
        i = rng.randrange(len(tree))
        if rng.random() < 0.2:
            return [*tree[:i], *tree[i + 1 :]] if rng.random() < 0.5 else [*tree, tree[i]]
        return [*tree[:i], edited(tree[i], rng), *tree[i + 1 :]]
    return rng.choice(NASTY)


class Small:
    """Two checkpoints of a small agent."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        agent, store = SmallAgent(kind), Store(folder)
        self.states = []
        for number in range(2):
            agent.play(60)
            store.save(agent, {"number": number, "list": [1, 2.5, None]})
            store.wait()
            self.states.append(whole_state(agent))
        assert store.saved
        self.newest = store.saved.path
        self.files = sorted(path for path in folder.rglob("*") if path.is_file())

    def outcome(self) -> str:
        """Find, restore and go on: what became of it."""
        agent = SmallAgent(self.kind, seed=3)
        try:
            path = checkpoint.newest(self.folder).newest
            if path is None:
                return "none"
            restore(path, agent)
        except UserError as error:
            return "refused" if "\n" not in str(error) else "more than a sentence"
        if (state := whole_state(agent)) in self.states:
            return f"state {self.states.index(state)}"
        if self.kind == "frames" and agent.replay.transitions:
            agent.replay.sample(8, agent.rng)
        elif self.kind == "episodes" and agent.replay.episodes:
            agent.replay.sample(8, 3, agent.rng)
        return "another"


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", ["episodes", "frames"])
def test_mutated_checkpoints(kind: str, count: int, tmp_path: Path) -> None:
    """Damage: what is restored is one of the two states that were saved, or nothing."""
    rng, small = random.Random(count), Small(kind, tmp_path)
    seen: Counter[str] = Counter()
    for _ in range(count):
        path, other = rng.sample(small.files, 2)
        before, swapped = path.read_bytes(), other.read_bytes()
        if rng.random() < 0.1:
            path.write_bytes(swapped)
            other.write_bytes(before)
        else:
            path.write_bytes(mutated(before, rng))
        seen[small.outcome()] += 1
        path.write_bytes(before)
        other.write_bytes(swapped)
    assert small.outcome() == "state 1"
    assert set(seen) <= {"state 0", "state 1", "refused"}, seen
    assert seen["state 0"] > count / 5, "the one before serves"


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", ["episodes", "frames"])
def test_signed_mutations(kind: str, count: int, tmp_path: Path) -> None:
    """A stranger's: every checksum is right. It is refused, or restored without an error, and can be sampled."""
    rng, small = random.Random(count), Small(kind, tmp_path)
    path = small.newest
    good = manifest.load(path)
    seen: Counter[str] = Counter()
    for _ in range(count):
        record = json.loads(json.dumps({"format": manifest.FORMAT, **asdict(good)}))
        file, before = path / manifest.NAME, b""
        name = rng.choice([*manifest.FILES, "manifest", "segment", "rows"])
        if name == "manifest":
            record = edited(record, rng)
        elif name in ("segment", "rows"):
            entry = rng.choice(record["segments"])
            file = path.parent / "replay" / entry["name"]
            data = before = file.read_bytes()
            if name == "rows":
                raw = mutated(zstandard.ZstdDecompressor().decompress(data), rng)
                data, entry["raw"] = zstandard.compress(raw), len(raw)
            else:
                data = mutated(data, rng)
            file.write_bytes(data)
            entry["stored"] = Stored.of(data)
        else:
            file = path / name
            data = before = file.read_bytes()
            data = json.dumps(edited(json.loads(data), rng)).encode() if name.endswith("json") else mutated(data, rng)
            file.write_bytes(data)
            record["files"][name] = Stored.of(data)
        (path / manifest.NAME).write_bytes(manifest._signed(record) if isinstance(record, dict) else b"")
        seen[small.outcome()] += 1
        file.write_bytes(before)
        (path / manifest.NAME).write_bytes(manifest._signed({"format": manifest.FORMAT, **asdict(good)}))
    assert small.outcome() == "state 1"
    assert min(seen["refused"], seen["another"]) > count / 50, seen
    assert not seen["more than a sentence"]


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_metrics(count: int, tmp_path: Path) -> None:
    """Read or refused; trimmed, no longer than before and whole lines."""
    path, rng = tmp_path / "metrics.jsonl", random.Random(count)
    lines = [{"step": i, "train/return": i / 3, "loss/value": float("nan") if i == 5 else 1e-9} for i in range(20)]
    good = "".join(json.dumps(line) + "\n" for line in lines).encode()
    path.write_bytes(good)
    assert [line["step"] for line in metrics.read(path)] == list(range(20))
    refused = 0
    for _ in range(count):
        data = mutated(good, rng)
        path.write_bytes(data)
        try:
            assert all("step" in line for line in metrics.read(path))
        except UserError:
            refused += 1
        keep = rng.choice([0, len(data) // 2, len(data), len(data) + 1000, -5, 2**40])
        metrics.trim(path, keep)
        kept = path.read_bytes()
        assert data.startswith(kept)
        assert len(kept) <= max(0, keep)
        assert not kept or kept.endswith(b"\n")
    assert refused > count / 10


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_settings(count: int, tmp_path: Path) -> None:
    rng = random.Random(count)
    path, stored = tmp_path / "config.json", []
    for algo in ("psdrl", "bootstrap", "successor", "dreamer"):
        write_config(tmp_path, psdrl.configure(env="deepsea-4", device="cpu", algo=algo))
        read_config(tmp_path)
        stored.append(path.read_bytes())
    seen: Counter[bool] = Counter()
    for data in itertools.islice(itertools.cycle(stored), count):
        path.write_bytes(
            mutated(data, rng) if rng.random() < 0.5 else json.dumps(edited(json.loads(data), rng)).encode()
        )
        try:
            read_config(tmp_path)
            seen[True] += 1
        except UserError:
            seen[False] += 1
    assert min(seen.values()) > count / 20, seen


@pytest.mark.parametrize("algo", ["psdrl", "bootstrap", "successor", "dreamer"])
def test_mutated_states_of_real_agents(algo: str, tmp_path: Path) -> None:
    """Signed edits of what the agents of the registry store."""
    config = psdrl.configure(
        env="deepsea-4", device="cpu", algo=algo, preset="auto" if algo == "bootstrap" else "debug", steps=300
    )
    env = make_env(config)
    agent = make_agent(config, env.spec)
    train(agent, env)
    env.close()
    path = checkpoint.save(tmp_path, agent)
    rng = random.Random(7)
    good, kept = manifest.load(path), (path / "agent.json").read_bytes()
    seen: Counter[str] = Counter()
    other = make_agent(config, env.spec)
    for _ in range(300):
        data = json.dumps(edited(json.loads(kept), rng)).encode()
        record = {"format": manifest.FORMAT, **asdict(good)}
        record["files"] = {**record["files"], "agent.json": Stored.of(data)}
        (path / "agent.json").write_bytes(data)
        (path / manifest.NAME).write_bytes(manifest._signed(record))
        try:
            restore(path, other)
            seen["restored"] += 1
        except UserError:
            seen["refused"] += 1
    assert seen["refused"] > 150, seen


@pytest.mark.parametrize("algo", ["psdrl", "bootstrap", "successor", "dreamer"])
def test_moments_of_other_shapes(algo: str) -> None:
    """PyTorch would take them, and fail in the first step."""
    preset = "auto" if algo == "bootstrap" else "debug"
    config = psdrl.configure(env="deepsea-4", device="cpu", algo=algo, preset=preset, steps=300)
    env = make_env(config)
    agent = make_agent(config, env.spec)
    train(agent, env)
    env.close()
    state = copy.deepcopy(agent.state_dict())
    agent.load_state_dict(state)
    names = {"psdrl": "forward", "dreamer": "actor"}
    optimiser = state["optimisers"][names[algo]] if algo in names else state["optimiser"]
    index, entry = next((i, e) for i, e in optimiser["state"].items() if e["exp_avg"].ndim == 2)
    entry["exp_avg"] = entry["exp_avg"].T.contiguous()[:-1]
    with pytest.raises(ValueError, match=f"exp_avg of parameter {index}"):
        agent.load_state_dict(state)


@pytest.mark.parametrize(
    ("algo", "changes"),
    [
        ("psdrl", {"replay": {"capacity": 10**13}}),
        ("psdrl", {"replay": {"capacity": 2**61}}),
        ("psdrl", {"forward": {"units": 10**7}}),
        ("bootstrap", {"replay": {"capacity": 10**16}}),
        ("dreamer", {"model": {"recurrent": 10**6}}),
    ],
    ids=["terabytes", "beyond any type", "networks", "bootstrap", "dreamer"],
)
def test_settings_of_absurd_size(algo: str, changes: dict[str, Any], tmp_path: Path) -> None:
    config = psdrl.configure(
        env="deepsea-4", device="cpu", algo=algo, preset="auto" if algo == "bootstrap" else "debug"
    )
    env = make_env(config)
    agent = make_agent(config, env.spec)
    env.close()
    checkpoint.save(tmp_path, agent)
    write_config(tmp_path, config)
    load(tmp_path, "cpu")
    record = json.loads((tmp_path / "config.json").read_text())
    for group, values in changes.items():
        record["config"][group] |= values
    (tmp_path / "config.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match="The agent of"):
        load(tmp_path, "cpu")
