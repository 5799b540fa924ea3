"""Saving while a run goes on: only what is new, in the background, pruned and merged, one at a time."""

import copy
import threading
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch

from psdrl.replay.episodes import Replay
from psdrl.run import checkpoint
from psdrl.run.checkpoint import Store, find, restore
from psdrl.run.store import manifest, segments
from psdrl.run.store.files import Disk
from psdrl.run.store.segments import MERGED
from tests.storage import SmallAgent, whole_state

KINDS = pytest.mark.parametrize("kind", ["episodes", "frames"])


def segment_names(path: Path) -> set[str]:
    return {segment.name for segment in manifest.load(path).segments}


def names(logdir: Path) -> list[str]:
    return [path.name for path in reversed(checkpoint.checkpoints(logdir))]


@KINDS
def test_a_save_writes_what_is_new(kind: str, tmp_path: Path) -> None:
    """Frames of noise do not shrink: the bytes of a save are those of the new rows and the small state."""
    agent, store = SmallAgent(kind, 100_000), Store(tmp_path)
    written = []
    for steps in (20_000, 200, 0, 200):
        agent.play(steps)
        store.save(agent)
        store.wait()
        assert store.saved
        written.append(store.saved.bytes)
        fresh = SmallAgent(kind, 100_000, seed=1)
        restore(store.saved.path, fresh)
        assert whole_state(fresh) == whole_state(agent)
    rows = 20_000 * 6
    assert written[0] > rows
    assert max(written[1:]) < rows / 5


@KINDS
def test_a_long_run_of_saves(kind: str, tmp_path: Path) -> None:
    """Many times round the ring: every checkpoint is exact, the last two are kept, files stay few and bounded."""
    agent, store = SmallAgent(kind, 60), Store(tmp_path, keep=2)
    for i in range(150):
        agent.play(int(agent.rng.integers(1, 25)))
        store.save(agent, {"number": i})
        store.wait()
        assert store.saved
        if i % 10 == 9:
            fresh = SmallAgent(kind, 60, seed=1)
            assert restore(store.saved.path, fresh) == {"number": i}
            assert whole_state(fresh) == whole_state(agent)
        files = list((tmp_path / "replay").iterdir())
        assert len(files) <= 4 * MERGED
        assert sum(path.stat().st_size for path in files) < 40_000
        assert len(names(tmp_path)) == min(i + 1, 2)


def test_merging_keeps_segments_few(tmp_path: Path) -> None:
    """Nothing leaves this buffer; 8 segments become one, and 8 of these one again."""
    agent, store = SmallAgent("frames", 10_000, num_envs=1), Store(tmp_path)
    counts = []
    for _ in range(MERGED * MERGED):
        agent.play(4)
        store.save(agent)
        store.wait()
        assert store.saved
        counts.append(len(segment_names(store.saved.path)))
    assert counts[: MERGED + 1] == [1, 2, 3, 4, 5, 6, 7, 1, 2]
    assert counts[-2:] == [2 * (MERGED - 1), 1]
    (last,) = manifest.load(store.saved.path).segments  # type: ignore[union-attr]
    assert len(last.pieces) == 1, "rows that follow each other are one piece"
    fresh = SmallAgent("frames", 10_000, num_envs=1)
    restore(store.saved.path, fresh)  # type: ignore[union-attr]
    assert whole_state(fresh) == whole_state(agent)


def test_large_segments_are_cut_and_not_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "CHUNK", 400)
    agent, store = SmallAgent("frames", 10_000), Store(tmp_path)
    for _ in range(4):
        agent.play(100)
        store.save(agent)
        store.wait()
    assert store.saved
    found = manifest.load(store.saved.path).segments
    assert len(found) > 2 * MERGED
    rows = [sum(last - first for _, first, last in segment.pieces) for segment in found]
    assert max(rows) * segments.row_bytes(agent.replay, 0) <= 400
    fresh = SmallAgent("frames", 10_000)
    restore(store.saved.path, fresh)
    assert whole_state(fresh) == whole_state(agent)


def test_more_than_fits_in_the_background_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A huge buffer that was never saved is not copied whole: its chunks are read while they are written."""
    monkeypatch.setattr("psdrl.run.store.saver.BACKGROUND", 1000)
    monkeypatch.setattr(segments, "CHUNK", 500)
    agent, store = SmallAgent("frames", 10_000), Store(tmp_path)
    agent.play(300)
    store.save(agent)
    assert find(tmp_path).newest, "saved when the call returns"
    agent.play(20)
    fresh = SmallAgent("frames", 10_000)
    assert store.saved
    restore(store.saved.path, fresh)
    assert fresh.step < agent.step


@KINDS
def test_a_resumed_run_shares_segments_but_not_those_of_an_abandoned_future(kind: str, tmp_path: Path) -> None:
    agent, store = SmallAgent(kind, 300), Store(tmp_path, keep=3)
    agent.play(80)
    store.save(agent)
    store.wait()
    assert store.saved
    first = store.saved.path
    then = copy.deepcopy(agent)
    agent.play(80)
    store.save(agent)
    store.wait()
    future = store.saved.path
    data = (future / "agent.json").read_bytes()
    (future / "agent.json").write_bytes(b" " + data[1:])

    found = find(tmp_path)
    assert found.newest == first
    assert [(path, reason.split()[0]) for path, reason in found.damaged] == [(future, "agent.json")]
    resumed = SmallAgent(kind, 300, seed=9)
    restore(first, resumed)
    assert whole_state(resumed) == whole_state(then)
    again = Store(tmp_path, keep=3)
    again.resume(first, resumed.replay)
    assert not future.exists(), "set aside: it is not found again, even if it could be read now"
    resumed.rng = np.random.default_rng(77)  # another future
    resumed.play(40)
    again.save(resumed)
    again.wait()
    assert again.saved
    assert segment_names(first) < segment_names(again.saved.path), "what the first one has is not written again"
    assert names(tmp_path) == [first.name, again.saved.path.name]
    assert {p.name for p in (tmp_path / "replay").iterdir()} == segment_names(again.saved.path)
    fresh = SmallAgent(kind, 300)
    restore(again.saved.path, fresh)
    assert whole_state(fresh) == whole_state(resumed)


def test_a_damaged_segment_is_written_again(tmp_path: Path) -> None:
    """Found when segments are merged: that save fails, the next one holds all rows anew."""
    said: list[str] = []
    agent, store = SmallAgent("frames", 10_000), Store(tmp_path, warn=said.append)
    for _ in range(MERGED - 1):
        agent.play(10)
        store.save(agent)
    store.wait()
    (tmp_path / "replay" / "segment-3.zst").write_bytes(b"x")
    for _ in range(2):
        agent.play(10)
        store.save(agent)
        store.wait()
    assert len(said) == 1
    assert "segment-3.zst has changed" in said[0]
    assert store.saved
    assert find(tmp_path).newest == store.saved.path
    fresh = SmallAgent("frames", 10_000)
    restore(store.saved.path, fresh)
    assert whole_state(fresh) == whole_state(agent)


def test_names_are_unique_and_the_last_ones_are_kept(tmp_path: Path) -> None:
    agent, store = SmallAgent(), Store(tmp_path, keep=3)
    agent.play(20)
    step = agent.step
    for _ in range(12):
        store.save(agent)
    store.wait()
    assert names(tmp_path) == [f"checkpoint-{step}-{i}" for i in (9, 10, 11)]
    assert find(tmp_path).newest == tmp_path / f"checkpoint-{step}-11"
    (tmp_path / "checkpoint-x").mkdir()
    (tmp_path / "checkpoint-99-").mkdir()
    assert len(names(tmp_path)) == 3


def test_another_agent_in_the_same_directory_starts_anew(tmp_path: Path) -> None:
    store = Store(tmp_path)
    one, other = SmallAgent(), SmallAgent(seed=3)
    one.play(60)
    other.play(20)
    for agent in (one, other):
        store.save(agent)
        store.wait()
    assert find(tmp_path).newest == tmp_path / f"checkpoint-{other.step}", "the last one saved, not the larger step"
    fresh = SmallAgent()
    restore(tmp_path / f"checkpoint-{other.step}", fresh)
    assert whole_state(fresh) == whole_state(other)


class SlowDisk(Disk):
    """Does nothing until it may: the first operation of a run's first save is a mkdir."""

    def __init__(self) -> None:
        self.may, self.began = threading.Event(), threading.Event()
        self.writers: set[str] = set()

    def mkdir(self, path: Path) -> None:
        self.began.set()
        assert self.may.wait(60)
        super().mkdir(path)

    def write(self, file: BinaryIO, data: memoryview) -> int:
        self.writers.add(threading.current_thread().name)
        return super().write(file, data)


@KINDS
def test_training_goes_on_while_a_checkpoint_is_written(kind: str, tmp_path: Path) -> None:
    """What is saved is the state at the call, whatever changes before it is on the disk."""
    disk = SlowDisk()
    agent, store = SmallAgent(kind), Store(tmp_path, disk=disk)
    agent.play(50)
    extra: dict[str, Any] = {"array": np.arange(3), "list": [1]}
    before = whole_state(agent)
    store.save(agent, extra)
    assert disk.began.wait(60)
    agent.play(500)  # several times round the ring
    extra["array"][:] = 0
    extra["list"].append(2)
    assert find(tmp_path) == (None, [])
    disk.may.set()
    store.wait()
    assert disk.writers == {"checkpoint"}
    assert store.saved
    fresh = SmallAgent(kind)
    found = restore(store.saved.path, fresh)
    assert whole_state(fresh) == before
    assert (found["array"].tolist(), found["list"]) == ([0, 1, 2], [1])


def test_one_save_at_a_time(tmp_path: Path) -> None:
    disk = SlowDisk()
    agent, store = SmallAgent(), Store(tmp_path, disk=disk)
    agent.play(50)
    store.save(agent)
    assert disk.began.wait(60)
    second = threading.Thread(target=store.save, args=(agent,))
    second.start()
    second.join(0.2)
    assert second.is_alive(), "waits for the first"
    assert sum(thread.name == "checkpoint" for thread in threading.enumerate()) == 1
    disk.may.set()
    second.join()
    store.wait()
    assert len(names(tmp_path)) == 2


def test_weights_that_are_not_finite_do_not_replace_a_checkpoint(tmp_path: Path) -> None:
    said: list[str] = []
    agent, store = SmallAgent(), Store(tmp_path, keep=1, warn=said.append)
    agent.play(20)
    store.save(agent)
    agent.play(20)
    agent.weights["channels"][0, 0, 0, 0] = float("nan")
    store.save(agent)
    store.wait()
    assert len(said) == 1
    assert "weights/channels is not finite" in said[0]
    assert len(names(tmp_path)) == 1


def test_an_unwritable_directory_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said: list[str] = []
    store = Store(tmp_path / "file" / "run", warn=said.append)
    store.save(SmallAgent())
    store.wait()
    assert len(said) == 1
    assert "training goes on" in said[0]


def test_a_running_episode_is_not_written_again_and_again(tmp_path: Path) -> None:
    """An endless episode: each save writes its new steps; its buffer keeps no more than it can store."""
    agent, store = SmallAgent(num_envs=1), Store(tmp_path)
    replay: Replay = agent.replay
    replay.start(0, np.zeros((2, 3), np.uint8))
    rng = np.random.default_rng(0)
    for _ in range(20):
        for _ in range(10):
            replay.add(0, 1, 0.5, rng.integers(0, 256, (2, 3)).astype(np.uint8), False, False)
        store.save(agent)
    store.wait()
    assert store.saved
    newest = manifest.load(store.saved.path).segments[-1]
    assert len(replay._open[0].observations) == replay.capacity + 1
    assert [last - first for _, first, last in newest.pieces] == [11], "ten new ones, and the last, which had no action"
    fresh = SmallAgent(num_envs=1)
    restore(store.saved.path, fresh)
    assert whole_state(fresh) == whole_state(agent)
    assert torch.equal(
        fresh.replay.rows(1, *replay.spans()[1][::2])["observations"][-1],
        torch.from_numpy(replay._open[0].observations[-1]),
    )
