"""Sampling a batch: vectorised, against one sequence after another."""

import numpy as np
import pytest
import torch

from bench.workload import make_agent
from psdrl.replay.episodes import Batch


def sample_one_by_one(replay, batch, length, rng):
    """The plain counterpart: the same distribution and, by the same order of draws, the same sequences."""
    long_enough = [episode for episode in replay.episodes if episode.length >= length]
    chosen = [long_enough[i] for i in rng.integers(len(long_enough), size=batch)]
    offsets = rng.integers([episode.length - length + 1 for episode in chosen])
    rows = []
    for episode, offset in zip(chosen, offsets, strict=True):
        slots = [(episode.start + int(offset) + t) % replay.num_slots for t in range(length + 1)]
        now = slots[:-1]
        rows.append(
            (
                torch.tensor(slots),
                torch.stack([replay.actions[i] for i in now]),
                torch.stack([replay.rewards[i] for i in now]),
                torch.stack([replay.terminated[i] for i in now]),
            )
        )
    return Batch(*(torch.stack(column) for column in zip(*rows, strict=True)))


@pytest.mark.parametrize("path", ["plain", "fast"])
def test_sample(benchmark, path):
    replay = make_agent("debug", 6, 5000).replay
    plain = sample_one_by_one(replay, 125, 250, np.random.default_rng(0))
    for expected, tensor in zip(plain, replay.sample(125, 250, np.random.default_rng(0)), strict=True):
        assert torch.equal(expected, tensor)
    benchmark.group = "replay: 125 sequences of 250 steps"
    rng = np.random.default_rng(0)
    if path == "plain":
        benchmark.pedantic(lambda: sample_one_by_one(replay, 125, 250, rng), rounds=3)
    else:
        benchmark(lambda: replay.sample(125, 250, rng))
