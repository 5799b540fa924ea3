"""The CPU kernels for the instruction sets that this machine would not choose: the same tests, in a process each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from psdrl.kernels.extension import instruction_set, missing

ROOT = Path(__file__).parents[2]
SETS = ("portable", "avx2", "avx512")
FILES = (
    "tests/kernels/test_csrc_rows.py",
    "tests/kernels/test_tanh_net_steps.py",
    "tests/kernels/test_window_steps.py",
    "tests/kernels/test_autoencoder_steps.py",
    "tests/kernels/test_tanh_actions.py",
    "tests/kernels/test_products.py",
    "tests/unit/test_models.py",
)
LIMITS = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.parametrize("name", SETS)
def test_kernels_by(name, tmp_path):
    here = instruction_set()
    if SETS.index(name) >= SETS.index(here):
        pytest.skip(f"this machine's own is {here}, which the other tests use")
    environment = os.environ | LIMITS | {"PSDRL_CPU": name, "PSDRL_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *FILES]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:]
    assert " passed" in run.stdout or "100%" in run.stdout
