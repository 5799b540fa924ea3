"""Replay of frame stacks, against an oracle that keeps whole stacks in plain lists."""

import resource
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from psdrl.replay.frames import FrameReplay, Transitions


class Stored(NamedTuple):
    """A transition with both stacks written out."""

    stack: NDArray
    action: int
    reward: float
    following: NDArray
    terminated: bool
    mask: NDArray[np.bool_]


class PlainReplay:
    """The oracle: a list of transitions per environment; frames before an episode's first are zero."""

    def __init__(self, num_envs: int, stack: int) -> None:
        self.stack = stack
        self.stored: list[list[Stored]] = [[] for _ in range(num_envs)]
        self._stacks: list[list[NDArray]] = [[] for _ in range(num_envs)]

    def start(self, env: int, observation: NDArray) -> None:
        self._stacks[env] = [np.zeros_like(observation)] * (self.stack - 1) + [observation]

    def add(
        self, env: int, action: int, reward: float, observation: NDArray, terminated: bool, mask: NDArray[np.bool_]
    ) -> None:
        old = self._stacks[env]
        self._stacks[env] = [*old[1:], observation]
        stored = Stored(np.stack(old), action, reward, np.stack(self._stacks[env]), terminated, mask)
        self.stored[env].append(stored)


def play(
    replays: list[FrameReplay | PlainReplay],
    rng: np.random.Generator,
    steps: int,
    lengths: tuple[int, int] = (1, 9),
    shape: tuple[int, ...] = (2,),
    dtype: str = "float32",
    num_envs: int = 1,
    heads: int = 9,
) -> None:
    """The same random episodes into all replays, the environments in turn; each frame and reward is unique."""
    left = [0] * num_envs
    numbers = iter(range(1, 10**6))

    def frame() -> NDArray:
        if dtype == "uint8":
            return rng.integers(0, 256, shape).astype(np.uint8)
        return np.full(shape, next(numbers), dtype)

    for step in range(steps):
        env = step % num_envs
        if not left[env]:
            left[env] = int(rng.integers(*lengths))
            first = frame()
            for replay in replays:
                replay.start(env, first)
        left[env] -= 1
        terminated = not left[env] and bool(rng.integers(2))  # else the episode is truncated
        outcome = (int(rng.integers(5)), float(step), frame(), terminated, rng.random(heads) < 0.5)
        for replay in replays:
            replay.add(env, *outcome)


def everything(replay: FrameReplay) -> Transitions:
    """All live transitions, oldest first, environment by environment."""
    slots = []
    for env in range(replay.num_envs):
        places = np.arange(replay.written[env] - replay.live[env], replay.written[env])
        found = env * replay.ring + places % replay.ring
        slots.append(found[replay.followed[found]])
    return replay._read(np.concatenate(slots))


def check_equal(batch: Transitions, wanted: list[Stored]) -> None:
    assert len(batch.actions) == len(wanted)
    for i, stored in enumerate(wanted):
        where = f"transition {i}, reward {stored.reward}"
        np.testing.assert_array_equal(batch.frames[i, :-1].numpy(), stored.stack, err_msg=f"{where}: stack")
        np.testing.assert_array_equal(batch.frames[i, 1:].numpy(), stored.following, err_msg=f"{where}: next stack")
        assert (int(batch.actions[i]), float(batch.rewards[i])) == (stored.action, stored.reward), where
        assert float(batch.terminated[i]) == float(stored.terminated), where
        np.testing.assert_array_equal(batch.masks[i].numpy(), stored.mask, err_msg=f"{where}: mask")


@pytest.mark.parametrize("stack", [1, 2, 4])
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("heads", [1, 8, 9])
def test_equals_the_plain_lists(stack: int, num_envs: int, heads: int) -> None:
    """After every few steps, many times round the ring: each live transition, with both stacks, oldest first."""
    replay = FrameReplay(60, num_envs, (2,), "float32", stack, heads)
    oracle = PlainReplay(num_envs, stack)
    rng = np.random.default_rng(stack + 10 * num_envs)
    for _ in range(40):
        play([replay, oracle], rng, 17, num_envs=num_envs, heads=heads)
        wanted = [stored for env, kept in enumerate(oracle.stored) for stored in kept[-int(replay.count[env]) :]]
        assert replay.transitions == len(wanted)
        check_equal(everything(replay), wanted)
    assert min(replay.written) > 4 * replay.ring


def test_images_in_bytes() -> None:
    replay, oracle = FrameReplay(30, 2, (1, 5, 6), "uint8", 4, 9), PlainReplay(2, 4)
    play([replay, oracle], np.random.default_rng(0), 400, shape=(1, 5, 6), dtype="uint8", num_envs=2)
    batch = everything(replay)
    assert (batch.frames.dtype, batch.frames.shape[1:]) == (torch.uint8, (5, 1, 5, 6))
    check_equal(batch, [stored for env in (0, 1) for stored in oracle.stored[env][-int(replay.count[env]) :]])


def test_stacks_at_an_episodes_start_are_padded_with_zeros() -> None:
    """By hand: the second episode's first stacks show nothing of the first episode."""
    replay = FrameReplay(10, 1, (1,), "float32", 4)
    for first, length in ((10, 2), (20, 4)):
        replay.start(0, np.array([first]))
        for t in range(length):
            replay.add(0, 0, 0.0, np.array([first + t + 1]), t == length - 1)
    stacks = everything(replay).frames[..., 0].int().tolist()
    assert stacks == [
        [0, 0, 0, 10, 11],
        [0, 0, 10, 11, 12],
        [0, 0, 0, 20, 21],
        [0, 0, 20, 21, 22],
        [0, 20, 21, 22, 23],
        [20, 21, 22, 23, 24],
    ]


def test_truncation_is_no_termination_and_shows_the_final_frame() -> None:
    replay = FrameReplay(10, 1, (1,), "float32", 2)
    replay.start(0, np.array([1.0]))
    replay.add(0, 0, 0.0, np.array([2.0]), terminated=False)  # truncated here
    replay.start(0, np.array([3.0]))
    replay.add(0, 0, 0.0, np.array([4.0]), terminated=True)
    batch = everything(replay)
    assert batch.terminated.tolist() == [0, 1]
    assert batch.frames[:, -1, 0].tolist() == [2, 4]


@pytest.mark.parametrize("capacity", [1, 5, 200, 1000])
def test_capacity_is_met_and_never_passed(capacity: int) -> None:
    replay = FrameReplay(capacity, 1, (1,), "float32", 4, 9)
    play([replay], np.random.default_rng(0), 3 * capacity, (10**6, 10**6 + 1), (1,))  # one endless episode
    assert replay.transitions == capacity
    assert everything(replay).rewards.tolist() == list(range(2 * capacity, 3 * capacity))
    play([replay], np.random.default_rng(0), 3 * capacity, (1, 2), (1,))  # a final frame per transition
    assert capacity / 2 <= replay.transitions <= capacity


def test_sampling_is_uniform_over_transitions() -> None:
    """Over three environments of different fill, final frames left out: chi-squared at 4 standard deviations."""
    replay, rng = FrameReplay(90, 3, (1,), "float32", 2), np.random.default_rng(1)
    for env, steps in enumerate((100, 12, 5)):
        for t in range(steps):
            if t % 4 == 0:
                replay.start(env, np.zeros(1))
            replay.add(env, 0, 1000.0 * env + t, np.zeros(1), t % 4 == 3)
    draws = 40_000
    counts = Counter(replay.sample(draws, rng).rewards.tolist())
    wanted = everything(replay).rewards.tolist()
    assert sorted(counts) == sorted(wanted)
    n = len(wanted)
    chi = sum((counts[reward] - draws / n) ** 2 / (draws / n) for reward in wanted)
    assert abs(chi - (n - 1)) < 4 * np.sqrt(2 * (n - 1))


def test_masks_take_a_bit_each_and_default_to_all() -> None:
    replay = FrameReplay(10, 1, (1,), "float32", heads=9)
    assert replay.masks.shape[1] == 2
    replay.start(0, np.zeros(1))
    replay.add(0, 0, 0.0, np.zeros(1), False)
    assert everything(replay).masks.tolist() == [[1.0] * 9]


def resident_bytes() -> int:
    """Memory that this process takes up now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux says there what a process takes up")
def test_a_million_frames_of_84_x_84_in_less_than_7_1_gb() -> None:
    """And nothing of it is taken before it is written: this machine need not have it."""
    before = resident_bytes()
    replay = FrameReplay(1_000_000, 1, (1, 84, 84), "uint8", 4, 9)
    assert 1_000_000 * 84 * 84 < replay.frames.nbytes <= 7.1e9
    small = [getattr(replay, name) for name in ("actions", "rewards", "terminated", "masks", "followed", "before")]
    assert sum(array.nbytes for array in small) < 20e6
    replay.start(0, np.full((1, 84, 84), 7, np.uint8))
    replay.add(0, 1, 1.0, np.full((1, 84, 84), 8, np.uint8), True)
    assert replay.sample(2, np.random.default_rng(0)).frames.amax((2, 3, 4)).tolist() == [[0, 0, 0, 7, 8]] * 2
    assert resident_bytes() - before < 500e6


@pytest.mark.parametrize("steps", [7, 300], ids=["ring not full", "ring full"])
def test_a_restored_buffer_goes_on_as_if_nothing_had_happened(steps: int) -> None:
    """Within running episodes: the same samples, and the same buffer after the same further steps."""
    buffers = [FrameReplay(50, 2, (2,), "float32", 4, 9) for _ in range(2)]
    play([buffers[0]], np.random.default_rng(0), steps, num_envs=2)
    buffers[1].load_state_dict(buffers[0].state_dict())
    assert buffers[1].transitions == buffers[0].transitions

    def add_more() -> None:
        for buffer in buffers:
            for t in range(60):
                buffer.add(1, t % 3, 0.5, np.full(2, -t), t == 59)

    for _ in range(2):
        samples = [buffer.sample(64, np.random.default_rng(3)) for buffer in buffers]
        for one, other in zip(*samples, strict=True):
            assert torch.equal(one, other)
        for one, other in zip(*(everything(buffer) for buffer in buffers), strict=True):
            assert torch.equal(one, other)
        add_more()


def test_another_number_of_environments_is_refused() -> None:
    replay = FrameReplay(50, 2, (2,), "float32", heads=9)
    play([replay], np.random.default_rng(0), 10, num_envs=2)
    with pytest.raises(ValueError, match="2 environments, this run 1"):
        FrameReplay(50, 1, (2,), "float32", heads=9).load_state_dict(replay.state_dict())
