"""What is published: sdist and wheel hold the whole project, and an agent can be trained from either.

The quick tests look at lists of files and at metadata; the slow one installs both archives with pip, each in a fresh
virtual environment, and trains there.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from tests.helpers import BLOCKER

ROOT = Path(__file__).parents[2]
FOLDERS = ("psdrl", "kernels", "csrc", "docs", "bench", "tests")
FILES = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "mkdocs.yml")
BUILT = shutil.ignore_patterns("__pycache__", "*.so", ".lock", "made")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def modules() -> set[str]:
    """The modules of the package and the data of `psdrl report`, as they are installed."""
    data = [path for folder in ("data", "page") for path in (ROOT / "psdrl" / "report" / folder).iterdir()]
    paths = [*(ROOT / "psdrl").rglob("*.py"), *(ROOT / "kernels").rglob("*.py"), *data]
    here = {path.relative_to(ROOT).as_posix() for path in paths}
    own = {name for name in here if not name.startswith("psdrl/kernels/")}
    return {name if name.startswith("psdrl/") else f"psdrl/{name}" for name in own}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as checked out, with the link psdrl/kernels and nothing built."""
    copy = tmp_path_factory.mktemp("package") / "project"
    copy.mkdir()
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=BUILT)
    (copy / "results").mkdir()
    for path in (*(ROOT / name for name in FILES), *(ROOT / "results").glob("*.*")):
        shutil.copy(path, copy / path.relative_to(ROOT))
    return copy


def build(project: Path, kind: str, start: Path) -> str:
    """What setuptools makes of a project without torch, as in pip's isolated builds: a name in project/made."""
    start.mkdir(exist_ok=True)
    (start / "sitecustomize.py").write_text(f'BLOCKED = {{"torch"}}\n{BLOCKER}', encoding="utf-8")
    made = project / "made"
    made.mkdir(exist_ok=True)
    code = f"from setuptools import build_meta; print(build_meta.{kind}('made'))"
    environment = os.environ | {"PYTHONPATH": str(start)}
    done = subprocess.run([sys.executable, "-c", code], cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def unpacked_sdist(project: Path, where: Path) -> Path:
    with tarfile.open(project / "made" / build(project, "build_sdist", where / "start")) as sdist:
        sdist.extractall(where, filter="data")
    return next(where.glob("psdrl-*"))


def files_of_wheel(project: Path, start: Path) -> list[str]:
    wheel = zipfile.ZipFile(project / "made" / build(project, "build_wheel", start))
    return sorted(name for name in wheel.namelist() if ".dist-info/" not in name)


def test_wheel_holds_every_module_once(project: Path, tmp_path: Path) -> None:
    assert files_of_wheel(project, tmp_path) == sorted(modules())


def test_sdist_holds_the_project(project: Path, tmp_path: Path) -> None:
    """Sources, headers, documentation, tests and the Makefile: from it all can be built, read and tested."""
    unpacked = unpacked_sdist(project, tmp_path)
    there = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    here = {path.relative_to(project).as_posix() for path in project.rglob("*") if path.is_file()}
    own = {name for name in here if not name.startswith(("made/", "build/", "psdrl.egg-info/", "psdrl/kernels/"))}
    archives = {name for name in own if re.fullmatch(r"results/.*\.gz", name)}
    assert len(own) > 150
    assert own - there == archives  # the runs themselves stay in the repository
    assert all(name.startswith("psdrl.egg-info/") for name in there - own - {"PKG-INFO", "setup.cfg"})


def test_wheel_of_the_sdist_is_that_of_the_project(project: Path, tmp_path: Path) -> None:
    """The sdist has no link psdrl/kernels, and does not need it."""
    unpacked = unpacked_sdist(project, tmp_path)
    assert not (unpacked / "psdrl" / "kernels").exists()
    assert files_of_wheel(unpacked, tmp_path / "start") == files_of_wheel(project, tmp_path / "start")


def metadata(project: Path, start: Path) -> Message:
    folder = project / "made" / build(project, "prepare_metadata_for_build_wheel", start)
    return Parser().parsestr((folder / "METADATA").read_text(encoding="utf-8"))


def test_version_stands_in_one_place(project: Path, tmp_path: Path) -> None:
    """A release that changes pyproject.toml has changed it everywhere; docs/releasing.md says so."""
    version = "12.34.56"
    copy = tmp_path / "copy"
    shutil.copytree(project, copy, symlinks=True, ignore=BUILT)
    pyproject = copy / "pyproject.toml"
    text = pyproject.read_text(encoding="utf-8")
    assert text.count(f'version = "{PROJECT["version"]}"') == 1
    pyproject.write_text(text.replace(f'version = "{PROJECT["version"]}"', f'version = "{version}"'), encoding="utf-8")
    assert metadata(copy, tmp_path / "start")["Version"] == version
    for path in (ROOT / "psdrl").rglob("*.py"):
        assert f'"{PROJECT["version"]}"' not in path.read_text(encoding="utf-8"), path


def test_all_is_every_extra_of_a_user(project: Path, tmp_path: Path) -> None:
    extras = PROJECT["optional-dependencies"]
    (named,) = extras["all"]
    found = re.fullmatch(r"psdrl\[(.*)\]", named)
    assert found, named
    assert set(found[1].split(",")) == set(extras) - {"all", "dev", "docs"}
    assert set(metadata(project, tmp_path).get_all("Provides-Extra", [])) == set(extras)


class Venv:
    """A fresh virtual environment that knows nothing of this checkout."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.folder = folder / "bin", folder
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self.environment |= {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}

    def run(self, *command: str | Path, cwd: Path | None = None) -> str:
        words = [self.bin / command[0], *command[1:]]
        done = subprocess.run(
            words, cwd=cwd or self.folder, env=self.environment, capture_output=True, text=True, timeout=1800
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def trains(self) -> None:
        """Train, resume, play, and use what psdrl.experiments has, far from the checkout."""
        self.run("psdrl", "train", "--env", "deepsea-4", "--steps", "60", "--logdir", "run")
        self.run("psdrl", "train", "--env", "deepsea-4", "--steps", "80", "--logdir", "run")
        assert (self.folder / "run" / "metrics.jsonl").stat().st_size
        self.run("psdrl", "evaluate", "run", "--episodes", "2", "--video", "dive.gif")
        assert (self.folder / "dive.gif").stat().st_size
        short = ("--steps", "120", "--preset", "debug")
        learn = ("python", "-m", "psdrl.experiments.learn", "CartPole-v1", "--seeds", "0", "--methods", "psdrl")
        self.run(*learn, "--results", "mine", "--extra", *short)
        self.run("psdrl", "report", "mine", "--out", "page")
        assert (self.folder / "page" / "sheets" / "control.png").stat().st_size
        self.run("psdrl", "train", "CartPole-v1", *short, "--logdir", "look")
        self.run("psdrl", "probe", "look")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_both_archives_train_in_fresh_environments(project: Path, tmp_path: Path) -> None:
    """The sdist gives the extension where torch is present, the wheel does without; neither finds this checkout."""
    sdist = project / "made" / build(project, "build_sdist", tmp_path / "start")
    source = Venv(tmp_path / "source")
    source.run("pip", "install", "torch==2.13.0", "setuptools>=77", "wheel", "ninja")
    source.run("pip", "install", "--no-build-isolation", f"{sdist}[all]")
    where = source.run("python", "-c", "import torch, psdrl._C; print(psdrl._C.__file__)")
    assert str(source.folder) in where
    source.trains()
    wheel = project / "made" / build(project, "build_wheel", tmp_path / "start")
    pure = Venv(tmp_path / "pure")
    pure.run("pip", "install", f"{wheel}[all]")
    code = "import importlib.util as u, psdrl; print(psdrl.__version__, u.find_spec('psdrl._C'))"
    assert pure.run("python", "-c", code).split() == [PROJECT["version"], "None"]
    pure.trains()
