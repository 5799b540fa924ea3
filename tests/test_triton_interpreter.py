"""Runs triton_checks.py in Triton's interpreter, in a process of its own.

The interpreter is chosen when Triton is first imported, and whoever is first in this process (torch.compile, the
ahead-of-time tests) needs the compiler.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the kernels need Triton")
CHECKS = Path(__file__).with_name("triton_checks.py")


def test_kernels_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", "-W", "ignore", str(CHECKS)]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    for name in [name for name in environment if name.startswith("PYTEST_")]:  # those of an outer xdist worker
        del environment[name]
    run = subprocess.run(command, cwd=CHECKS.parent.parent, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout, run.stdout
    assert " skipped" not in run.stdout or "address space" in run.stdout
