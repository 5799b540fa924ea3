"""Which tile runs: measured once, kept on disk, off in deterministic mode. Times are scripted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from psdrl.kernels import tune

A, B, C = tune.Tile(16, 16, 16, 1, 1), tune.Tile(32, 32, 32, 2, 2), tune.Tile(64, 64, 64, 4, 4)


class Clock:
    """Gives each tile its scripted time; None: the tile does not fit the device."""

    def __init__(self, times: dict[tune.Tile, float | None]) -> None:
        self.times, self.asked = times, 0
        self.tile: tune.Tile | None = None

    def launch(self, tile: tune.Tile) -> None:
        self.tile = tile
        if self.times[tile] is None:
            raise RuntimeError("out of resource: shared memory")

    def __call__(self, run: Callable[[], Any]) -> float:
        self.asked += 1
        run()
        assert self.tile is not None
        return self.times[self.tile] or 0.0


def choose(path: Path, clock: Clock, version: str = "1", key: str = "linear 8x8x8") -> tune.Tile:
    return tune.Tuner(path, version, clock).choose(key, [A, B, C], clock.launch)


def test_fastest_tile_is_kept_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "tiles.json"
    assert choose(path, Clock({A: 3.0, B: 1.0, C: 2.0})) == B
    later = Clock({A: 0.0, B: 1.0, C: 2.0})
    assert choose(path, later) == B
    assert later.asked == 0
    assert choose(path, later, key="linear 16x8x8") == A  # another shape is measured
    assert choose(path, Clock({A: 3.0, B: 3.0, C: 2.0}), version="2") == C  # another Triton or kernel too
    assert [entry.name for entry in path.parent.iterdir()] == ["tiles.json"]


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
