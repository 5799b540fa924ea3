"""Runs of strangers: every flipped byte is noticed, and signed nonsense gets one sentence within bounded memory."""

import itertools
import json
import os
import pickle
import shutil
import tracemalloc
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import zstandard

from psdrl.errors import UserError
from psdrl.run import checkpoint
from psdrl.run.checkpoint import restore, save
from psdrl.run.store import manifest
from psdrl.run.store.files import Damaged, Stored
from psdrl.run.store.settings import read_config, write_config
from psdrl.run.store.tree import to_safetensors
from tests.helpers import small_config
from tests.storage import SmallAgent, whole_state


@pytest.fixture(scope="module", params=["episodes", "frames"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a small run, with one segment."""
    agent = SmallAgent(request.param)
    agent.play(40)
    return save(tmp_path_factory.mktemp(request.param), agent, {"position": 3})


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved.parent, tmp_path / "run")
    return tmp_path / "run" / saved.name


def fresh(path: Path) -> SmallAgent:
    """An agent of the kind that was saved there."""
    written = json.loads((path / "replay.json").read_text()).get("lengths") if (path / "replay.json").exists() else []
    return SmallAgent("frames" if written is None else "episodes")


def sign(path: Path, files: dict[str, bytes], segment: tuple[bytes, int] | None = None, changes: Any = ()) -> None:
    """Put other bytes into a checkpoint, and other values into its manifest, and sign it all as if they were ours."""
    record = json.loads(json.dumps({"format": manifest.FORMAT, **asdict(manifest.load(path))}))
    for name, data in files.items():
        (path / name).write_bytes(data)
        record["files"][name] = Stored.of(data)
    if segment:
        data, raw = segment
        (path.parent / "replay" / record["segments"][0]["name"]).write_bytes(data)
        record["segments"][0] |= {"stored": Stored.of(data), "raw": raw}
    (path / manifest.NAME).write_bytes(manifest._signed(record | dict(changes)))


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    agent = SmallAgent("frames", num_envs=1)
    agent.play(10)
    saved = save(tmp_path, agent)
    files = [*saved.iterdir(), *(saved.parent / "replay").iterdir()]
    assert len(files) == 6 + 1 + 1
    for path in files:
        data = path.read_bytes()
        for i in range(len(data)):
            path.write_bytes(data[:i] + bytes([data[i] ^ (1 << i % 8)]) + data[i + 1 :])
            assert checkpoint.find(saved.parent).newest is None, f"byte {i} of {path.name}"
        path.write_bytes(data)
    assert checkpoint.find(saved.parent).newest == saved


@pytest.mark.parametrize("how", ["cut", "longer", "empty", "missing", "a folder", "a pipe", "endless"])
def test_files_that_are_not_what_they_were(copied: Path, how: str) -> None:
    for name in (*manifest.FILES, manifest.NAME):
        path = copied / name
        data = path.read_bytes()
        path.unlink()
        if how in ("cut", "longer", "empty"):
            path.write_bytes({"cut": data[:-1], "longer": data + b"\0", "empty": b""}[how])
        elif how == "a folder":
            path.mkdir()
        elif how == "a pipe":
            os.mkfifo(path)
        elif how == "endless":
            path.symlink_to("/dev/zero")
        (_, reason), *_ = checkpoint.find(copied.parent).damaged
        assert name in reason
        with pytest.raises(UserError, match=r"cannot be used \("):
            checkpoint.newest(copied.parent)
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        path.write_bytes(data)


def test_swapped_files_are_noticed(copied: Path) -> None:
    names = [*manifest.FILES, manifest.NAME]
    for one, other in itertools.pairwise(names):
        first, second = (copied / one).read_bytes(), (copied / other).read_bytes()
        (copied / one).write_bytes(second)
        (copied / other).write_bytes(first)
        assert (first == second) == (checkpoint.find(copied.parent).newest is not None), (one, other)
        (copied / one).write_bytes(first)
        (copied / other).write_bytes(second)


def weights(**changes: torch.Tensor) -> bytes:
    tensors = {
        "/weights/channels": torch.zeros(2, 3, 4, 4),
        "/moments/0": torch.zeros(3),
        "/moments/7": torch.tensor(1),
    }
    return to_safetensors(tensors | {f"/{name.replace('__', '/')}": tensor for name, tensor in changes.items()})


BAD_WEIGHTS = {
    "NaN": (weights(weights__channels=torch.full((2, 3, 4, 4), float("nan"))), "weights/channels is not finite"),
    "infinite": (weights(moments__0=torch.tensor([1.0, -float("inf"), 1.0])), "moments/0 is not finite"),
    "another shape": (weights(weights__channels=torch.zeros(2, 3, 4, 5)), "a state holds"),  # its strides
    "integers": (weights(weights__channels=torch.zeros(2, 3, 4, 4, dtype=torch.int64)), "weights.channels"),
    "no tensors": (b"\x10\0\0\0\0\0\0\0" + b"x" * 16, "holds no tensors"),
    "none of them": (to_safetensors({}), "a state holds"),
}


@pytest.mark.parametrize("case", BAD_WEIGHTS)
def test_weights_that_cannot_be(copied: Path, case: str) -> None:
    data, says = BAD_WEIGHTS[case]
    sign(copied, {"agent.safetensors": data})
    assert checkpoint.find(copied.parent).newest == copied, "the signature is right"
    with pytest.raises(UserError, match=says):
        restore(copied, fresh(copied))


def test_a_shape_that_does_not_fit(copied: Path) -> None:
    tree = json.loads((copied / "agent.json").read_text())
    tree["weights"]["channels"] = {"$tensor": "/weights/channels"}
    data = weights(weights__channels=torch.zeros(2, 3, 4, 5))
    sign(copied, {"agent.safetensors": data, "agent.json": json.dumps(tree).encode()})
    with pytest.raises(UserError, match=r"weights.channels is of shape \(2, 3, 4, 5\), this agent's of \(2, 3, 4, 4\)"):
        restore(copied, fresh(copied))


@pytest.mark.parametrize("claimed", [1 << 28, 1000], ids=["claimed", "not claimed"])
def test_a_bomb_is_not_unpacked(copied: Path, claimed: int) -> None:
    """256 MB of zeros in 8 kB."""
    bomb = zstandard.ZstdCompressor(level=3).compress(bytes(1 << 28))
    assert len(bomb) < 1 << 16
    sign(copied, {}, (bomb, claimed))
    agent = fresh(copied)
    tracemalloc.start()
    with pytest.raises(UserError, match=r"bytes of rows where at most|does not unpack to 1000 bytes"):
        restore(copied, agent)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6, peak


def test_sizes_that_are_absurd_are_refused_before_reading(copied: Path) -> None:
    """A file of a terabyte, sparse, and a manifest that says so."""
    record = {"format": manifest.FORMAT, **asdict(manifest.load(copied))}
    for name in ("agent.safetensors", "agent.json", "run.safetensors", "replay.safetensors"):
        old = (copied / name).read_bytes()
        os.truncate(copied / name, 1 << 40)
        changed = record | {"files": record["files"] | {name: Stored(1 << 40, "0" * 64)}}
        (copied / manifest.NAME).write_bytes(manifest._signed(changed))
        tracemalloc.start()
        with pytest.raises(UserError, match="make sense"):
            restore(copied, fresh(copied))
        assert tracemalloc.get_traced_memory()[1] < 5e6
        tracemalloc.stop()
        (copied / name).write_bytes(old)


@pytest.mark.parametrize(
    "changes",
    [
        {"segments": []},
        {"segments": [{"name": "../../etc/passwd"}]},
        {"files": {}},
        {"files": {"/etc/passwd": [1, "0" * 64]}},
        {"step": -1},
        {"format": 99},
    ],
    ids=str,
)
def test_manifests_that_cannot_be(copied: Path, changes: dict[str, Any]) -> None:
    sign(copied, {}, changes=changes)
    with pytest.raises(UserError, match="cannot be used"):
        restore(copied, fresh(copied))


@pytest.mark.parametrize(
    ("ring", "first", "last"), [(99, 0, 5), (0, 10**9, 10**9 + 5), (0, 0, 10**12)], ids=["ring", "rows", "many rows"]
)
def test_rows_that_this_run_cannot_have(copied: Path, ring: int, first: int, last: int) -> None:
    segments = [asdict(segment) for segment in manifest.load(copied).segments]
    segments[0]["pieces"] = ((ring, first, last), *segments[0]["pieces"][1:])
    sign(copied, {}, changes={"segments": segments})
    with pytest.raises(UserError, match="cannot have"):
        restore(copied, fresh(copied))


def test_no_file_of_a_run_is_executed(copied: Path, tmp_path: Path) -> None:
    """A pickle that leaves a mark, in the place of each file, signed."""

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "mark"),)

    evil = pickle.dumps(Evil())
    for name in manifest.FILES:
        old = (copied / name).read_bytes()
        sign(copied, {name: evil})
        with pytest.raises(UserError):
            restore(copied, SmallAgent())
        sign(copied, {name: old})
    sign(copied, {}, (zstandard.compress(evil), len(evil)))
    with pytest.raises(UserError):
        restore(copied, fresh(copied))
    assert not (tmp_path / "mark").exists()
    pickle.loads(evil)
    assert (tmp_path / "mark").exists(), "the pickle would have worked"


def test_actions_of_another_environment(copied: Path) -> None:
    agent = fresh(copied)
    agent.spec = type(agent.spec)("small", "vector", (2, 3), "uint8", 2, "test")
    with pytest.raises(UserError, match="actions that the environment does not have"):
        restore(copied, agent)


def test_a_run_of_another_size_is_refused(copied: Path) -> None:
    """Fewer environments, a smaller buffer."""
    kind = "frames" if fresh(copied).replay.__class__.__name__ == "FrameReplay" else "episodes"
    for other in (SmallAgent(kind, num_envs=3), SmallAgent(kind, capacity=4)):
        with pytest.raises(UserError, match=r"checkpoint-\d+ "):
            restore(copied, other)


def test_playing_needs_no_replay_buffer(copied: Path) -> None:
    shutil.rmtree(copied.parent / "replay")
    (copied / "replay.json").unlink()
    agent = SmallAgent()
    assert restore(copied, agent, replay=False) == {}
    assert agent.step > 0
    assert checkpoint.latest(copied.parent) == copied
    with pytest.raises(Damaged):
        manifest.verify(copied, copied.parent / "replay")


def test_restored_state_is_its_own(saved: Path) -> None:
    """Two agents restored from one checkpoint do not share memory."""
    one, other = fresh(saved), fresh(saved)
    for agent in (one, other):
        assert restore(saved, agent) == {"position": 3}
    before = whole_state(other)
    one.play(50)
    assert whole_state(other) == before


BAD_CONFIGS: dict[str, Any] = {
    "a word for a number": {"steps": "many"},
    "a number for a word": {"env": 3},
    "true for a number": {"seed": True},
    "a list": {"device": ["cpu"]},
    "a group as a number": {"replay": 3},
    "an unknown agent": {"algo": "../../x"},
    "another choice": {"precision": "fp4"},
    "negative": {"num_envs": -1},
    "infinite": {"value": {"discount": "inf"}},
    "absurd": {"steps": 10**30},
    "unknown": {"bogus": 1},
    "nothing": {"env": None},
}


@pytest.mark.parametrize("case", BAD_CONFIGS)
def test_settings_that_cannot_be(case: str, tmp_path: Path) -> None:
    write_config(tmp_path, small_config())
    record = json.loads((tmp_path / "config.json").read_text())
    for name, value in BAD_CONFIGS[case].items():
        record["config"][name] = record["config"][name] | value if isinstance(value, dict) else value
    (tmp_path / "config.json").write_text(json.dumps(record))
    with pytest.raises(UserError):
        read_config(tmp_path)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, " " * (1 << 21), '{"config": {"algo": []}}', "\xff"], ids=lambda t: t[:9]
)
def test_config_files_that_cannot_be(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError):
        read_config(tmp_path)
