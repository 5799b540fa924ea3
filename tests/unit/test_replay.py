"""Replay buffer: whole episodes, first in, first out, each observation stored once; the sequences drawn from it."""

from collections import Counter

import numpy as np
import pytest
import torch

import psdrl.replay.episodes
from psdrl.agents.psdrl.synthetic import add_episode
from psdrl.replay.episodes import Replay, on_device, parts
from tests.helpers import filled_replay, small_agent, stored_episodes


def tagged_episode(replay: Replay, tag: int, length: int, end: str = "terminated", env: int = 0) -> None:
    """Observation [tag, t], action t % 3, reward 1000 tag + t."""
    replay.start(env, np.array([tag, 0], np.float32))
    for t in range(length):
        last = t == length - 1
        observation = np.array([tag, t + 1], np.float32)
        terminated, truncated = last and end != "truncated", last and end != "terminated"
        replay.add(env, t % 3, 1000.0 * tag + t, observation, terminated, truncated)


def tagged_replay(lengths: list[int], capacity: int, end: str = "terminated") -> Replay:
    replay = Replay(capacity, 1, (2,), "float32")
    for tag, length in enumerate(lengths):
        tagged_episode(replay, tag, length, end)
    return replay


def tags(replay: Replay) -> list[int]:
    return [int(replay.observations[start, 0]) for start, _ in replay.episodes]


def check_contents(replay: Replay, lengths: list[int]) -> None:
    """Every stored episode is whole and unspoilt."""
    for tag, episode in zip(tags(replay), stored_episodes(replay), strict=True):
        length = lengths[tag]
        wanted = np.array([(tag, t) for t in range(length + 1)], np.float32)
        np.testing.assert_array_equal(episode["observations"], wanted, err_msg=f"episode {tag}")
        np.testing.assert_array_equal(episode["actions"], np.arange(length) % 3)
        np.testing.assert_array_equal(episode["rewards"], 1000.0 * tag + np.arange(length))
        np.testing.assert_array_equal(episode["terminated"], [0.0] * (length - 1) + [1.0])


def test_first_in_first_out_by_whole_episodes() -> None:
    replay = tagged_replay([40, 30, 30], capacity=100)
    assert (tags(replay), replay.transitions) == ([0, 1, 2], 100)
    tagged_episode(replay, 3, 1)
    assert (tags(replay), replay.transitions) == ([1, 2, 3], 61), "one step too many drops the whole oldest episode"
    tagged_episode(replay, 4, 99)
    assert (tags(replay), replay.transitions) == ([3, 4], 100)


def test_wrap_around_keeps_every_episode_whole() -> None:
    lengths = [int(n) for n in np.random.default_rng(0).integers(1, 30, 300)]
    replay = Replay(64, 1, (2,), "float32")
    wrapped = 0
    for tag, length in enumerate(lengths):
        tagged_episode(replay, tag, length)
        kept = tags(replay)
        assert kept == list(range(kept[0], tag + 1)), "the newest episodes, in order"
        assert replay.transitions == sum(lengths[i] for i in kept) <= 64
        wrapped += any(start + n >= replay.num_slots for start, n in replay.episodes)
        check_contents(replay, lengths)
    assert wrapped > 20
    assert replay.num_slots == 64 + 8


def test_capacity_is_a_hard_bound() -> None:
    """Also with the shortest episodes, which need two slots per transition: nothing grows, nothing is overwritten."""
    replay = tagged_replay([1] * 200, capacity=16)
    assert replay.transitions == len(replay.episodes) <= 16
    assert 2 * len(replay.episodes) <= replay.num_slots == len(replay.observations) == 18
    assert tags(replay) == list(range(200 - len(replay.episodes), 200))
    check_contents(replay, [1] * 200)


@pytest.mark.parametrize("capacity", [1, 2, 10])
def test_longer_than_capacity_keeps_its_end(capacity: int) -> None:
    replay = tagged_replay([3, 12], capacity)
    assert [length for _, length in replay.episodes] == [capacity]
    (episode,) = stored_episodes(replay)
    np.testing.assert_array_equal(episode["observations"][:, 1], np.arange(12 - capacity, 13))
    np.testing.assert_array_equal(episode["rewards"], 1000 + np.arange(12 - capacity, 12))
    np.testing.assert_array_equal(episode["terminated"], [0.0] * (capacity - 1) + [1.0])


def test_each_frame_is_stored_once_in_its_own_type() -> None:
    replay = Replay(100, 1, (1, 64, 64), "uint8")
    rng = np.random.default_rng(0)
    for length in (7, 1, 20):
        add_episode(replay, rng, length)
    assert replay.observations.dtype == torch.uint8
    assert replay.observations.nelement() == 112 * 64 * 64
    slots = replay.stored_slots()
    assert len(slots) == len(set(slots.tolist())) == 7 + 1 + 20 + 3, "n + 1 frames per episode of n transitions"
    frames = {frame.numpy().tobytes() for frame in replay.frames(slots)}
    assert len(frames) == len(slots)


def test_next_state_is_the_next_slot() -> None:
    replay = tagged_replay([8, 9], capacity=40)
    batch = replay.sample(50, 4, np.random.default_rng(0))
    now, following = replay.frames(batch.slots[:, :-1]), replay.frames(batch.slots[:, 1:])
    assert torch.equal(following[..., 0], now[..., 0])
    assert torch.equal(following[..., 1], now[..., 1] + 1)
    assert torch.equal(batch.rewards, 1000 * now[..., 0] + now[..., 1])
    assert torch.equal(batch.actions, (now[..., 1] % 3).long())


@pytest.mark.parametrize(("end", "delta"), [("terminated", 1.0), ("truncated", 0.0), ("both", 1.0)])
def test_truncation_is_not_termination(end: str, delta: float) -> None:
    replay = tagged_replay([5], capacity=40, end=end)
    assert len(replay.episodes) == 1, "any end stores the episode"
    np.testing.assert_array_equal(stored_episodes(replay)[0]["terminated"], [0, 0, 0, 0, delta])


def test_termination_flags_do_not_outlive_their_episode() -> None:
    """Truncated episodes in slots that terminated ones had used."""
    replay = tagged_replay([30] * 5, capacity=90)
    for tag in range(5, 8):
        tagged_episode(replay, tag, 30, "truncated")
    assert tags(replay) == [5, 6, 7]
    assert all(episode["terminated"].sum() == 0 for episode in stored_episodes(replay))


def test_running_episodes_are_not_sampled() -> None:
    replay = Replay(100, 2, (2,), "float32")
    replay.start(0, np.array([7, 0], np.float32))
    replay.add(0, 0, 0.0, np.array([7, 1], np.float32), False, False)
    assert not replay.episodes
    assert replay.transitions == 0
    tagged_episode(replay, 1, 4, env=1)
    replay.add(0, 1, 5.0, np.array([7, 2], np.float32), False, True)
    assert [length for _, length in replay.episodes] == [4, 2], "in the order in which they end"
    np.testing.assert_array_equal(stored_episodes(replay)[1]["observations"], [[7, 0], [7, 1], [7, 2]])


def test_starting_anew_forgets_the_unfinished_episode() -> None:
    replay = Replay(100, 1, (2,), "float32")
    replay.start(0, np.array([7, 0], np.float32))
    replay.add(0, 0, 0.0, np.array([7, 1], np.float32), False, False)
    tagged_episode(replay, 3, 2)
    assert tags(replay) == [3]
    assert replay.transitions == 2


def test_sequence_distribution() -> None:
    """Episodes uniform among those of at least L = 4 steps, starts uniform within: chi-square at 99.9%."""
    replay = tagged_replay([3, 4, 6, 13], capacity=100)
    draws = 20_000
    batch = replay.sample(draws, 4, np.random.default_rng(1))
    first = replay.frames(batch.slots[:, 0]).int().tolist()
    counts = Counter((tag, start) for tag, start in first)
    cells = [(1, 0)] + [(2, s) for s in range(3)] + [(3, s) for s in range(10)]
    assert set(counts) == set(cells), "the episode of 3 steps is too short, all other starts occur"
    starts = {1: 1, 2: 3, 3: 10}
    expected = {(tag, s): draws / 3 / starts[tag] for tag, s in cells}
    statistic = sum((counts[c] - expected[c]) ** 2 / expected[c] for c in cells)
    assert statistic < 34.53, f"chi-square with 13 degrees of freedom: {statistic:.1f}"  # 99.9% quantile


def test_even_ends() -> None:
    """L = 4 in an episode of 13 steps: 16 places to start, of which 4 each are moved to its start and its end; the last
    step is drawn as often as one in the middle. Chi-square at 99.9%."""
    replay = tagged_replay([3, 13], capacity=100)
    draws = 20_000
    batch = replay.sample(draws, 4, np.random.default_rng(1), even_ends=True)
    first = replay.frames(batch.slots[:, 0])[:, 1].int().tolist()
    counts = Counter(first)
    expected = dict.fromkeys(range(10), draws / 16) | {0: draws / 4, 9: draws / 4}
    assert set(counts) == set(expected)
    statistic = sum((counts[s] - expected[s]) ** 2 / expected[s] for s in expected)
    assert statistic < 27.88, f"chi-square with 9 degrees of freedom: {statistic:.1f}"  # 99.9% quantile
    covered = Counter(step for s in first for step in range(s, s + 4))
    assert covered[12] == pytest.approx(covered[6], rel=0.1)


def test_sequences_never_cross_an_episode() -> None:
    replay = filled_replay([9, 4, 8, 1, 6, 5, 3] * 4, capacity=30)
    whole = {(e.start + i) % replay.num_slots: n for n, e in enumerate(replay.episodes) for i in range(e.length + 1)}
    for length, even in ((1, False), (2, False), (4, False), (1, True), (4, True)):
        batch = replay.sample(2000, length, np.random.default_rng(length), even)
        assert batch.slots.shape == (2000, length + 1)
        owners = np.vectorize(lambda slot: whole.get(slot, -1))(batch.slots.numpy())
        assert (owners >= 0).all(), "an unused slot"
        assert (owners == owners[:, :1]).all(), f"L = {length} crosses an episode's end"
        steps = (batch.slots[:, 1:] - batch.slots[:, :-1]) % replay.num_slots
        assert (steps == 1).all()


@pytest.mark.parametrize(
    ("lengths", "asked", "used"),
    [([5, 3, 9], 9, 9), ([5, 3, 9], 10, 3), ([5, 3, 9], 4, 4), ([1], 250, 1), ([7, 7], 8, 7)],
    ids=["one fits", "none fits", "some fit", "one step", "equal"],
)
def test_length_shrinks_to_the_shortest_episode(lengths: list[int], asked: int, used: int) -> None:
    replay = filled_replay(lengths)
    assert replay.sequence_length(asked) == used
    batch = replay.sample(6, asked, np.random.default_rng(0))
    assert batch.slots.shape == (6, used + 1)
    assert batch.actions.shape == batch.rewards.shape == batch.terminated.shape == (6, used)


def test_sampling_is_a_function_of_the_generator() -> None:
    replay = filled_replay([20, 30])
    first, second, third = (replay.sample(8, 5, np.random.default_rng(seed)).slots for seed in (0, 0, 1))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


@pytest.mark.parametrize("lengths", [[4, 1, 6], [9, 4, 8, 1, 6, 5, 3]], ids=["plain", "wrapped"])
def test_state_dict_round_trip(lengths: list[int]) -> None:
    replay = tagged_replay(lengths, capacity=16)
    other = Replay(16, 1, (2,), "float32")
    tagged_episode(other, 99, 5)
    other.start(0, np.zeros(2, np.float32))
    other.load_state_dict(replay.state_dict())
    assert tags(other) == tags(replay)
    assert other.transitions == replay.transitions
    check_contents(other, lengths)
    for one in (replay, other):  # both go on alike
        for tag in range(len(lengths), len(lengths) + 6):
            tagged_episode(one, tag, 4)
    assert tags(other) == tags(replay)
    check_contents(other, lengths + [4] * 6)


def test_empty_buffer_round_trip() -> None:
    other = tagged_replay([3], capacity=16)
    other.load_state_dict(Replay(16, 1, (2,), "float32").state_dict())
    assert not other.episodes
    assert other.transitions == 0


@pytest.mark.parametrize(
    ("where", "device", "free", "wanted"),
    [
        ("auto", "cuda:1", 4001, True),
        ("auto", "cuda:1", 4000, False),
        ("device", "cuda", 0, True),
        ("host", "cuda", 10**9, False),
        ("auto", "cpu", 0, True),
        ("device", "cpu", 0, True),
        ("host", "cpu", 0, True),
    ],
)
def test_where_the_frames_lie(where, device, free, wanted, monkeypatch: pytest.MonkeyPatch) -> None:
    """auto: on the device if they take less than a quarter of its free memory; a CPU's memory is the host's."""
    monkeypatch.setattr(psdrl.replay.episodes, "free_memory", lambda asked: {torch.device(device): free}[asked])
    assert on_device(where, 1000, torch.device(device)) == wanted


def test_the_size_of_the_frames_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def noted(*question) -> bool:
        asked.append(question)
        return True

    monkeypatch.setattr(psdrl.replay.episodes, "on_device", noted)
    Replay(80, 1, (1, 64, 64), "uint8", "cpu", "host")
    Replay(80, 1, (5,), "float32")
    small_agent(replay={"device": "device", "capacity": 16})
    cpu = torch.device("cpu")
    assert asked == [("host", 90 * 4096, cpu), ("auto", 90 * 5 * 4, cpu), ("device", 18 * 3 * 4, cpu)]


@pytest.fixture
def host_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames are staged and copied as for a GPU; here both memories are the host's and nothing is pinned."""
    monkeypatch.setattr(psdrl.replay.episodes, "on_device", lambda *_: False)


@pytest.mark.usefixtures("host_frames")
def test_frames_in_host_memory_are_the_same() -> None:
    lengths = [9, 4, 8, 1, 6, 5, 3]
    replay = tagged_replay(lengths, capacity=16)
    assert not replay.on_device
    check_contents(replay, lengths)
    for slots in (torch.tensor(3), torch.tensor([1, 17, 1]), replay.sample(5, 2, np.random.default_rng(0)).slots):
        frames = replay.frames(slots)
        assert torch.equal(frames, replay.observations[slots]), slots.shape
        frames.fill_(-1.0)  # a copy, not the buffer
    check_contents(replay, lengths)
    other = Replay(16, 1, (2,), "float32")
    other.load_state_dict(replay.state_dict())
    assert tags(other) == tags(replay)
    check_contents(other, lengths)


def test_frames_in_host_memory_change_no_update(request: pytest.FixtureRequest) -> None:
    def updated() -> torch.Tensor:
        agent = small_agent(replay={"batch": 4, "length": 5})
        add_episode(agent.replay, np.random.default_rng(0), 12)
        agent.update()
        return torch.cat([p.detach().flatten() for p in agent.models.parameters()])

    on_device = updated()
    request.getfixturevalue("host_frames")
    assert torch.equal(updated(), on_device)


def test_staging_is_fresh_for_every_read(host_frames: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that has not happened yet must not see the next read."""
    staged: list[torch.Tensor] = []
    plain = psdrl.replay.episodes.pinned_empty

    def noted(*arguments) -> torch.Tensor:
        staged.append(plain(*arguments))
        return staged[-1]

    replay = tagged_replay([5], capacity=16)
    monkeypatch.setattr(psdrl.replay.episodes, "pinned_empty", noted)
    for slot in (0, 1):
        replay.frames(torch.tensor([slot]))
    assert [tensor.tolist() for tensor in staged] == [[[0, 0]], [[0, 1]]]


def test_transition_slots_leave_out_the_last_observation_of_each_episode():
    replay = filled_replay([3, 1, 5, 4], capacity=10)  # the oldest episodes are gone, the ring has wrapped
    expected = [(start + i) % replay.num_slots for start, length in replay.episodes for i in range(length)]
    assert replay.transition_slots().tolist() == expected


def test_stored_rows_are_a_slice_until_the_ring_turns() -> None:
    replay = filled_replay([4, 3], capacity=8)
    rows = replay.stored_rows()
    assert isinstance(rows, slice)
    assert list(range(rows.start, rows.stop)) == replay.stored_slots().tolist()
    for part, slots in zip(parts(rows, 4), replay.stored_slots().split(4), strict=True):
        assert torch.equal(replay.frames(part), replay.frames(slots))
    rng = np.random.default_rng(0)
    while isinstance(replay.stored_rows(), slice):
        add_episode(replay, rng, 3)
    assert torch.equal(torch.cat(list(parts(replay.stored_rows(), 4))), replay.stored_slots())
