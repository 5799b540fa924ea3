"""A new folder in kernels/ is all that a new operation takes: dispatch, checks and aot find it."""

import subprocess
import sys
from pathlib import Path

import pytest

from psdrl.kernels import triton_support
from psdrl.kernels.posterior import native, reference

ROOT = Path(__file__).parents[2]
FOLDER = {
    "__init__.py": """
from psdrl.kernels import dispatch
from psdrl.kernels.doubled import aten
fake = lambda x: x.new_empty(x.shape)
doubled = dispatch.operation("doubled(Tensor x) -> Tensor", __name__, aten.doubled, fake, rows=(0,))
""",
    "reference.py": "def doubled(x): return x + x",
    "aten.py": "def doubled(x): return {factor} * x",
    "aot.py": """
from psdrl.kernels.aot import launch
def fixed(dtype): yield launch("doubled", None, (8,), 2, x_ptr=dtype)
""",
}
PROGRAM = """
import sys, torch, psdrl.kernels
psdrl.kernels.__path__.append(sys.argv[1])
from psdrl.kernels import checks, dispatch
assert dispatch.explain("cpu")["doubled"].backend == "aten"
with checks.recorded() as calls:
    dispatch.operations["doubled"].call(torch.empty(50, 3, device="meta"))
failed = checks.start_up(torch.device("cpu"), "fp32", calls, 8)
print([finding.operation for finding in failed], dispatch.explain("cpu")["doubled"].backend)
"""


def run(program: str, folder: Path) -> str:
    command = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def add_folder(path: Path, factor: float) -> Path:
    (path / "doubled").mkdir()
    for name, text in FOLDER.items():
        (path / "doubled" / name).write_text(text.replace("{factor}", str(factor)))
    return path


@pytest.mark.parametrize(("factor", "found"), [(2, "[] aten"), (2.01, "['doubled'] reference")])
def test_dispatch_and_checks_find_a_new_folder(factor: float, found: str, tmp_path: Path) -> None:
    assert run(PROGRAM, add_folder(tmp_path, factor)) == found


@pytest.mark.skipif(triton_support.missing() is not None, reason=str(triton_support.missing()))
def test_aot_finds_a_new_folder(tmp_path: Path) -> None:
    program = """
import sys, psdrl.kernels
psdrl.kernels.__path__.append(sys.argv[1])
from psdrl.kernels import aot
print([(case.precision, case.tile, case.options) for case in aot.cases(80) if case.name == "doubled"])
"""
    wanted = [(dtype, (8,), {"num_warps": 2}) for dtype in ("fp32", "bf16")]
    assert run(program, add_folder(tmp_path, 2)) == str(wanted)


@pytest.mark.skipif(native.extension.missing() is not None, reason=str(native.extension.missing()))
def test_operations_of_the_posterior_are_those_that_the_extension_defines() -> None:
    written = (ROOT / "csrc" / "module.cpp").read_text()
    oracles = [name for name, f in vars(reference).items() if getattr(f, "__module__", "") == reference.__name__]
    oracles.remove("inverse_norm")  # made of others, in registers.py
    assert native.operations() == sorted(oracles)
    assert all(f"{name}(" in written for name in oracles)
