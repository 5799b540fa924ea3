"""Runs triton_checks.py in Triton's interpreter, in a process of its own; each of its tests is one here.

The interpreter is chosen when Triton is first imported, and whoever is first in this process (torch.compile, the
ahead-of-time tests) needs the compiler. One child runs all that is selected here: its start takes seconds, and each
test of the child only a part of one.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
from filelock import FileLock  # torch needs it too

pytest.importorskip("triton", reason="the kernels need Triton")
ROOT = Path(__file__).parents[2]
CHECKS = Path(__file__).with_name("triton_checks.py")
# Read, not imported: to import it is to import Triton.
NAMES = [
    node.name
    for node in ast.parse(CHECKS.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
]


class Case(NamedTuple):
    """A test of the child with its parameters."""

    name: str
    problem: str  # nothing if it passed
    skipped: str


class Report(NamedTuple):
    """What the child found, and what it printed."""

    cases: list[Case]
    output: str
    code: int


def run_child(names: list[str], folder: Path) -> None:
    """Leaves report.xml, and output.txt with the exit code in its first line."""
    tests = [f"{CHECKS}::{name}" for name in names]
    report = f"--junit-xml={folder / 'report.xml'}"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", "-W", "ignore", report, *tests]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    for name in [name for name in environment if name.startswith("PYTEST_")]:  # those of an outer xdist worker
        del environment[name]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    (folder / "output.txt").write_text(f"{run.returncode}\n{run.stdout}{run.stderr}", encoding="utf-8")


def read_cases(path: Path) -> list[Case]:
    """The child's tests, out of JUnit's XML."""
    cases = []
    for case in ElementTree.parse(path).iter("testcase"):
        problems = [part.text or "" for kind in ("failure", "error") for part in case.iter(kind)]
        skipped = [part.get("message", "") for part in case.iter("skipped")]
        cases.append(Case(case.get("name", ""), "\n".join(problems), "\n".join(skipped)))
    return cases


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """One run of the child for all tests that are selected; the workers of an outer xdist share it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder = folder / "triton_interpreter"
    folder.mkdir(exist_ok=True)
    chosen = {item.callspec.params["name"] for item in request.session.items if is_ours(item)}  # type: ignore[attr-defined]
    with FileLock(folder / "lock"):
        if not (folder / "output.txt").exists():
            run_child([name for name in NAMES if name in chosen], folder)
    code, _, output = (folder / "output.txt").read_text(encoding="utf-8").partition("\n")
    found = folder / "report.xml"
    return Report(read_cases(found) if found.exists() else [], output, int(code))


def is_ours(item: pytest.Item) -> bool:
    return item.path == Path(__file__) and "name" in getattr(getattr(item, "callspec", None), "params", {})


@pytest.mark.parametrize("name", NAMES)
def test_in_the_interpreter(name: str, report: Report) -> None:
    cases = [case for case in report.cases if case.name.partition("[")[0] == name]
    assert report.code in (0, 1), f"the child ended with {report.code}, not after its last test:\n{report.output}"
    assert cases, f"{name} did not run:\n{report.output}"
    failed = [case for case in cases if case.problem]
    text = "\n\n".join(f"{case.name}\n{case.problem}" for case in failed)
    assert not failed, f"{len(failed)} of {len(cases)} cases fail:\n{text}"
    skipped = [case for case in cases if case.skipped]
    assert all("address space" in case.skipped for case in skipped), skipped
    if len(skipped) == len(cases):
        pytest.skip(skipped[0].skipped)
