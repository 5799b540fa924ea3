"""`make cuda-check`: its covering design and verdicts; where a CUDA build of torch is installed, a short run of it."""

import os
import subprocess
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

from tests.hollow.design import pairwise
from tests.hollow.runs import Outcome, Run, judge

ROOT = Path(__file__).parents[2]
VENV = Path(os.environ.get("PSDRL_CUDA_VENV") or ROOT / ".cuda-venv")
QUIET = {
    "launches": 0, "captures": 0, "failed_captures": 0, "empty_captures": 0, "nodes": 0, "graphs": 0,
    "graph_launches": 0, "empty_graph_launches": 0, "forbidden_syncs": 0, "forbidden_pageable_copies": 0,
    "forbidden_other": 0, "copies": 0,
}  # fmt: skip
BUSY = QUIET | {"launches": 90, "captures": 8, "nodes": 300, "graphs": 8, "graph_launches": 500, "copies": 70}
TEXT = """kernels      lookahead triton; posterior csrc
forecast     about 1 s, 2.5 GB (predicted from the data sheet)
Done: 550 steps, 55 episodes, 2 updates.
"""


def outcome(text: str = TEXT, code: int = 0, other: dict[str, int] | None = None, **here: int) -> Outcome:
    """Of a captured run on cuda:0."""
    run = Run("test", [], device=0, graphs=True, memory=True)
    return Outcome(run, codes=[code], text=text, devices=[BUSY | here, QUIET | (other or {})], allocated=[2 * 10**9, 0])


@pytest.mark.parametrize("sizes", [(4, 4, 3, 3, 3, 3, 2, 2, 2), (2, 2), (5, 1, 3)])
def test_every_pair_of_values_occurs(sizes: tuple[int, ...]) -> None:
    factors = {f"f{i}": [f"v{j}" for j in range(size)] for i, size in enumerate(sizes)}
    rows = pairwise(factors)
    for (a, xs), (b, ys) in combinations(factors.items(), 2):
        assert {(row[a], row[b]) for row in rows} == set(product(xs, ys))
    largest = sorted(sizes)[-2:]
    assert len(rows) <= 1.5 * largest[0] * largest[1]  # the least possible is the product of the two largest


def test_a_sound_run_has_no_problem() -> None:
    assert judge(outcome()) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"code": 1}, "exit code 1"),
        ({"text": TEXT + "Traceback (most recent call last):"}, "exception"),
        ({"nodes": 0}, "0 nodes"),
        ({"graph_launches": 0}, "0 graph launches"),
        ({"empty_graph_launches": 1}, "empty graph launches: 1"),
        ({"empty_captures": 1}, "empty captures: 1"),
        ({"failed_captures": 2}, "failed captures: 2"),
        ({"forbidden_syncs": 1}, "forbidden syncs"),
        ({"forbidden_pageable_copies": 1}, "forbidden pageable copies"),
        ({"other": {"launches": 3}}, "not asked for"),
        ({"other": {"forbidden_other": 3}}, "forbidden other"),
        ({"text": TEXT.replace("2 updates", "0 updates")}, "no update"),
        ({"text": TEXT.replace("triton;", "aten (triton refused: x);")}, "Triton does not serve"),
        ({"text": TEXT.replace("csrc", "PyTorch (not built)")}, "extension does not serve"),
        ({"text": TEXT + "act runs without a CUDA graph: x"}, "without its CUDA graph"),
        ({"text": TEXT.replace("2.5 GB", "1.5 GB")}, "2.00 GB at the peak"),
    ],
)
def test_each_fault_is_named(changes: dict[str, Any], problem: str) -> None:
    assert any(problem in found for found in judge(outcome(**changes)))


def test_kernels_that_do_nothing_must_fail_their_checks() -> None:
    seeing, refused = outcome(), TEXT.replace("triton;", "aten (triton refused: failed its check);")
    seeing.run.sees, seeing.run.memory = True, False
    assert any("passed their checks" in found for found in judge(seeing))
    seeing.text = "warning      linear (triton) fails its check on cuda:0\n" + refused
    assert judge(seeing) == []


@pytest.mark.slow
@pytest.mark.skipif(not (VENV / "bin" / "python").exists(), reason=f"no CUDA build: {VENV} is made by make cuda-check")
def test_the_cuda_build_runs_on_hollow_devices() -> None:
    command = ["make", "cuda-check", f"CUDA_VENV={VENV}", "CUDA_ARGS=--short"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
