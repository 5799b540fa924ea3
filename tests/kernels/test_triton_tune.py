"""Which tile runs: measured once, kept on disk, off in deterministic mode. Times are scripted."""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from psdrl.kernels import tune

A, B, C = tune.Tile(16, 16, 16, 1, 1), tune.Tile(32, 32, 32, 2, 2), tune.Tile(64, 64, 64, 4, 4)


class Clock:
    """Gives each way its scripted time; None: it does not fit the device."""

    def __init__(self, times: Mapping[tune.Way, float | None]) -> None:
        self.times, self.asked = times, 0
        self.tile: tune.Way | None = None

    def launch(self, tile: tune.Way) -> None:
        self.tile = tile
        if self.times[tile] is None:
            raise RuntimeError("out of resource: shared memory")

    def __call__(self, run: Callable[[], Any]) -> float:
        self.asked += 1
        run()
        assert self.tile is not None
        return self.times[self.tile] or 0.0


def choose(path: Path, clock: Clock, version: str = "1", key: str = "linear 8x8x8") -> tune.Way:
    return tune.Tuner(path, version, clock).choose(key, [*clock.times], clock.launch)


def test_fastest_tile_is_kept_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "tiles.json"
    assert choose(path, Clock({A: 3.0, B: 1.0, C: 2.0})) == B
    later = Clock({A: 0.0, B: 1.0, C: 2.0})
    assert choose(path, later) == B
    assert later.asked == 0
    assert choose(path, later, key="linear 16x8x8") == A  # another shape is measured
    assert choose(path, Clock({A: 3.0, B: 3.0, C: 2.0}), version="2") == C  # another Triton or kernel too
    assert [entry.name for entry in path.parent.iterdir()] == ["tiles.json"]


def test_cublas_is_a_way_like_any_tile(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The fastest wins, is kept and named; where it cannot run the others remain."""
    path, parts = tmp_path / "tiles.json", B._replace(split=3)
    with caplog.at_level(logging.INFO, "psdrl.kernels"):
        assert choose(path, Clock({A: 3.0, tune.LIBRARY: 1.0, parts: 2.0})) == tune.LIBRARY
    assert "linear 8x8x8: cublas 1 ms; 32x32x32 (2 warps) in 3 parts 2 ms; 16x16x16 (1 warps) 3 ms" in caplog.text
    assert choose(path, later := Clock({A: 0.0, tune.LIBRARY: 1.0, parts: 2.0})) == tune.LIBRARY
    assert later.asked == 0
    assert choose(path, Clock({A: 3.0, tune.LIBRARY: None, parts: 2.0}), key="other") == parts


def test_a_pinned_way_runs_where_it_is_a_candidate() -> None:
    ran: list[tune.Way] = []
    x, split = torch.empty(125, 8), tune.splits("ieee", 125)[0]

    def run() -> tune.Way:
        tune.run("linear", x, "ieee", (125, 8, 8), ran.append, lambda: ran.append(tune.LIBRARY), parts=True)
        return ran[-1]

    for way in (tune.LIBRARY, split, A):
        with tune.pinned(way):
            assert run() == way
    assert run() == tune.tiles(80, "ieee", 125)[0]
    assert [bool(tune.splits("tf32", rows)) for rows in (6, 33, 512, 513)] == [False, True, True, False]


def test_tiles_that_do_not_fit_are_passed_over(tmp_path: Path) -> None:
    assert choose(tmp_path / "a.json", Clock({A: None, B: 2.0, C: 1.0})) == C
    assert choose(tmp_path / "b.json", Clock({A: None, B: None, C: None})) == A


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": "1"}', '{"version": "1", "tiles": {"k": 3}}'])
def test_damaged_file_is_measured_again(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tiles.json"
    path.write_text(content)
    assert choose(path, Clock({A: 3.0, B: 1.0, C: 2.0})) == B
    assert json.loads(path.read_text())["tiles"]["linear 8x8x8"] == list(B)


def test_unwritable_cache_costs_only_the_measurement(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert choose(tmp_path / "file" / "tiles.json", Clock({A: 3.0, B: 1.0, C: 2.0})) == B


def test_a_tile_that_is_no_candidate_any_more_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "tiles.json"
    old = tune.Tile(1, 2, 3, 4, 5)
    path.write_text(json.dumps({"version": "1", "tiles": {"linear 8x8x8": old}}))
    assert choose(path, Clock({A: 3.0, B: 1.0, C: 2.0})) == B


def test_nothing_is_measured_in_deterministic_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.delenv("PSDRL_AUTOTUNE", raising=False)
    assert tune.enabled()
    torch.use_deterministic_algorithms(True)
    try:
        assert not tune.enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    monkeypatch.setenv("PSDRL_AUTOTUNE", "0")
    assert not tune.enabled()


def test_every_architecture_has_tiles() -> None:
    for arch in (80, 86, 89, 90, 100, 103, 120):
        for precision in tune.PRECISIONS:
            for rows in (1, 32, 33, 100_000):
                assert len(tune.tiles(arch, precision, rows)) >= 3
    assert [tune.family(arch) for arch in (80, 89, 90, 100, 120)] == ["ampere"] * 2 + ["hopper", "blackwell", "ampere"]


def test_common_unit() -> None:
    assert [tune.common_unit(n) for n in (756, 2292, 1537, 1536)] == [4, 4, 1, 16]
    assert tune.common_unit(2292, 4560, 0) == 4


def test_precision_follows_torch() -> None:
    assert tune.precision(torch.bfloat16) == "bf16"
    assert tune.precision(torch.float32) == "ieee"
    torch.set_float32_matmul_precision("high")
    try:
        assert tune.precision(torch.float32) == "tf32"
    finally:
        torch.set_float32_matmul_precision("highest")
