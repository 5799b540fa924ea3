"""setup.py: what cannot be built is left out with the reason, and the install goes on."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("force", "reason"), [("0", "PSDRL_CUDA=0"), ("1", "CUDA")])
def test_a_failed_build_is_not_fatal(tmp_path: Path, force: str, reason: str) -> None:
    """With a compiler that always fails: both parts are reported missing, and the exit code is 0."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("csrc", "kernels"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "psdrl").mkdir()
    environment = os.environ | {"CXX": "false", "CC": "false", "PSDRL_CUDA": force}
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", "out"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("psdrl: installed without")]
    assert len(said) == 2, done.stderr
    assert "the CUDA part" in said[0]
    assert reason in said[0]
    assert "the C++ extension" in said[1]
    assert not list(tmp_path.rglob("*.so"))
