"""Both replay buffers against plain lists, at any sequence of events, saved and restored anywhere in between."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from psdrl.replay.episodes import Replay
from psdrl.replay.frames import FrameReplay
from psdrl.run.store.files import Disk
from psdrl.run.store.manifest import Manifest, Piece
from psdrl.run.store.segments import Segment, encode, merged, needed, new_pieces, restore_rows
from tests.storage import frozen


class Event(NamedTuple):
    """An environment goes on: it ends, starts again, or just steps; now and then the buffer is saved."""

    env: int
    end: str  # "", "terminated", "truncated", "start" (gives up a running episode)
    save: bool


events = st.builds(
    Event,
    st.integers(0, 2),
    st.sampled_from(["", "", "", "", "terminated", "truncated", "start"]),
    st.sampled_from([False] * 9 + [True]),
)
ACTIONS = 4


class Saves:
    """What `Store` does with rows, on plain files; every second save merges all segments."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.segments = folder, list[Segment]()
        self.marks: list[int] | None = None
        self.number = 0

    def save(self, replay: Any) -> dict[str, Any]:
        spans = replay.spans()
        pieces = new_pieces(spans, self.marks or [0] * len(spans))
        self.segments = needed(self.segments, spans)
        if pieces:
            self._write([(Piece(*piece), replay.rows(*piece)) for piece in pieces])
        if self.number % 2 and self.segments:
            from psdrl.run.store.segments import decode

            parts = [part for segment in self.segments for part in decode(self.folder, segment, segment.raw)]
            self.segments = []
            together = merged(parts, spans)
            if together:
                self._write(together)
        self.marks = [span.settled for span in spans]
        return replay.counters()

    def _write(self, parts: list[Any]) -> None:
        self.number += 1
        packed, raw = encode(parts)
        name = f"segment-{self.number}.zst"
        stored = Disk().create(self.folder / name, packed)
        self.segments.append(Segment(name, stored, raw, 0, tuple(piece for piece, _ in parts)))

    def restore(self, replay: Any, counters: dict[str, Any]) -> None:
        replay.load_counters(counters)
        restore_rows(self.folder, Manifest(0, {}, tuple(self.segments)), replay, ACTIONS)


class Played:
    """The events, with observations and rewards that are all different, into a buffer and into lists."""

    def __init__(self, num_envs: int) -> None:
        self.number = 0
        self.running: list[list[tuple[float, int, float]] | None] = [None] * num_envs  # observation, action, reward
        self.ended: list[tuple[list[tuple[float, int, float]], bool]] = []  # and whether they terminated

    def observation(self) -> np.ndarray:
        self.number += 1
        return np.array([self.number, -self.number], np.float32)

    def play(self, replay: Any, event: Event) -> None:
        env = event.env % len(self.running)
        running = self.running[env]
        observation = self.observation()
        if running is None or event.end == "start":
            replay.start(env, observation)
            self.running[env] = [(float(self.number), 0, 0.0)]
            return
        action, reward = self.number % ACTIONS, self.number / 8
        running[-1] = (running[-1][0], action, reward)
        running.append((float(self.number), 0, 0.0))
        ends = event.end in ("terminated", "truncated")
        if isinstance(replay, Replay):
            replay.add(env, action, reward, observation, event.end == "terminated", event.end == "truncated")
        else:
            replay.add(env, action, reward, observation, event.end == "terminated", np.arange(5) % 2 == self.number % 2)
        if ends:
            self.ended.append((running, event.end == "terminated"))
            self.running[env] = None


def check_against_lists(replay: Replay, played: Played) -> None:
    """The newest episodes that fit, whole, in order; of one that is longer than the buffer its end."""
    kept = [
        (rows[-replay.capacity - 1 :], end) for rows, end in played.ended[len(played.ended) - len(replay.episodes) :]
    ]
    assert [e.length for e in replay.episodes] == [len(rows) - 1 for rows, _ in kept]
    assert replay.transitions == sum(e.length for e in replay.episodes) <= replay.capacity
    for episode, (rows, end) in zip(replay.episodes, kept, strict=True):
        slots = (episode.start + torch.arange(episode.length + 1)) % replay.num_slots
        assert replay.observations[slots, 0].tolist() == [row[0] for row in rows]
        assert replay.actions[slots[:-1]].tolist() == [row[1] for row in rows[:-1]]
        assert replay.rewards[slots[:-1]].tolist() == [row[2] for row in rows[:-1]]
        assert replay.terminated[slots[:-1]].tolist() == [0.0] * (episode.length - 1) + [float(end)]
    dropped = played.ended[: len(played.ended) - len(kept)]
    if dropped and kept:  # the youngest that left would not have fitted
        sizes = [len(rows) - 1 for rows, _ in kept]
        size = min(len(dropped[-1][0]) - 1, replay.capacity)
        assert sum(sizes) + size > replay.capacity or sum(sizes) + len(sizes) + size + 1 > replay.num_slots


@given(st.integers(1, 30), st.integers(1, 3), st.lists(events, max_size=200))
@settings(max_examples=150, deadline=None)
def test_whole_episodes(tmp_path_factory: Any, capacity: int, num_envs: int, moves: list[Event]) -> None:
    replay = Replay(capacity, num_envs, (2,), "float32")
    played, saves = Played(num_envs), Saves(tmp_path_factory.mktemp("rows"))
    for event in [*moves, Event(0, "terminated", True)]:
        played.play(replay, event)
        check_against_lists(replay, played)
        if event.save:
            counters = saves.save(replay)
            other = Replay(capacity, num_envs, (2,), "float32")
            saves.restore(other, counters)
            assert frozen(other.state_dict()) == frozen(replay.state_dict())
            assert list(other.episodes) == list(replay.episodes), "the same slots"
            replay = other  # goes on from what was restored


def frames_wanted(history: list[list[Any]], replay: FrameReplay, env: int) -> list[Any]:
    """The transitions of an environment, oldest first, as (stack and next frame, action, reward, terminated)."""
    found = []
    for episode, end in history[env]:
        values = [0.0] * (replay.stack - 1) + [row[0] for row in episode]
        for i, (_, action, reward) in enumerate(episode[:-1]):
            last = end and i == len(episode) - 2
            found.append((values[i : i + replay.stack + 1], action, reward, float(last)))
    return found[len(found) - int(replay.count[env]) :]


@given(st.integers(1, 40), st.integers(1, 3), st.integers(1, 4), st.lists(events, max_size=200))
@settings(max_examples=150, deadline=None)
def test_frame_stacks(tmp_path_factory: Any, capacity: int, num_envs: int, stack: int, moves: list[Event]) -> None:
    def fresh() -> FrameReplay:
        return FrameReplay(capacity, num_envs, (2,), "float32", stack, 5)

    replay, played, saves = fresh(), Played(num_envs), Saves(tmp_path_factory.mktemp("rows"))
    history: list[list[Any]] = [[] for _ in range(num_envs)]  # episodes with whether they terminated, running ones last
    for event in [*moves, Event(0, "", True)]:
        env = event.env % num_envs
        before = played.running[env]
        played.play(replay, event)
        now = played.running[env]
        if now is not None and now is not before:
            history[env].append((now, False))
        elif now is None and history[env]:
            history[env][-1] = (history[env][-1][0], event.end == "terminated")
        if event.save:
            counters = saves.save(replay)
            other = fresh()
            saves.restore(other, counters)
            assert frozen(other.state_dict()) == frozen(replay.state_dict())
            for name in ("written", "live", "count"):
                assert getattr(other, name).tolist() == getattr(replay, name).tolist()
            replay = other
    for env in range(num_envs):
        places = np.arange(replay.written[env] - replay.live[env], replay.written[env])
        slots = env * replay.ring + places % replay.ring
        slots = slots[replay.followed[slots]]
        batch = replay._read(slots)
        wanted = frames_wanted(history, replay, env)
        found = zip(batch.frames[..., 0].tolist(), batch.actions.tolist(), batch.rewards.tolist(), strict=True)
        assert [*found] == [(frames, action, reward) for frames, action, reward, _ in wanted]
        assert batch.terminated.tolist() == [end for *_, end in wanted]
        full = sum(len(episode) - 1 for episode, _ in history[env])
        assert replay.count[env] <= replay.share
        if full <= replay.share and sum(len(episode) for episode, _ in history[env]) <= replay.ring - stack:
            assert replay.count[env] == full, "nothing leaves before it must"
