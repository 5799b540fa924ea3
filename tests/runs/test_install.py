"""setup.py builds what can be had: CUDA, else C++ alone, else nothing; it says in one sentence what is missing and why.

The real setup.py, torch's BuildExtension, ninja and g++ run. Stand-ins are the sources (tiny files under the names of
csrc/, each leaving its name in the library), the CUDA toolkits (nvcc is a script that hands over to g++) and torch's
CUDA build: a file that is read when Python starts gives the installed torch the CUDA version 99.0, which no toolkit of
the machine can have.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.helpers import BLOCKER

ROOT = Path(__file__).parents[2]
CPU = {path.name for path in (ROOT / "csrc").glob("*.cpp")}
CUDA = {path.name for path in (ROOT / "csrc").glob("*.cu")}
NO_TORCH = f'BLOCKED = {{"torch"}}\n{BLOCKER}'
CUDA_TORCH = """
import torch
torch.version.cuda = "99.0"
torch.cuda._is_compiled = lambda: True
torch.cuda.is_available = lambda: False
"""
NVCC = """#!/bin/sh
case "$*" in
    *--version*) echo "Cuda compilation tools, release {release}, V{release}.1"; exit 0 ;;
    *--list-gpu-code*) printf 'sm_%s\\n' {known}; exit 0 ;;
    *--dryrun*) echo '#$ TOP={home}/bin/..' >&2; exit 0 ;;
esac
echo "$*" >> {home}/calls
for word in $*; do
    case "$word" in
        *code=sm_*) case " {known} " in *" ${{word##*sm_}} "*) ;; *) echo "nvcc fatal: $word" >&2; exit 1 ;; esac ;;
    esac
done
{before}
while [ $# -gt 0 ]; do
    case "$1" in -o) out=$2; shift ;; *.cu) source=$1 ;; esac
    shift
done
exec g++ -x c++ -fPIC -c "$source" -o "$out"
"""

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


class Built(NamedTuple):
    parts: set[str]  # the sources whose names are in the library
    said: list[str]


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def toolkit(
    home: Path, release: str = "99.0", known: str = "80 86 90 100", cudart: bool = True, before: str = ""
) -> Path:
    """A CUDA toolkit with hollow libraries; returns its nvcc."""
    (home / "lib64").mkdir(parents=True)
    hollow = home / "lib64" / "libc10_cuda.so"
    subprocess.run(["g++", "-shared", "-x", "c++", "/dev/null", "-o", hollow], check=True)
    for name in ("libtorch_cuda.so", "libcudart.so") if cudart else ("libtorch_cuda.so",):
        shutil.copy(hollow, home / "lib64" / name)
    return script(home / "bin" / "nvcc", NVCC.format(home=home, release=release, known=known, before=before))


class Project:
    """A copy of the project with tiny sources, and the environment it is built in."""

    def __init__(self, root: Path) -> None:
        self.root, self.start = root / "project", root / "start"
        for folder in (self.root / "csrc", self.root / "psdrl", self.root / "kernels", self.start):
            folder.mkdir(parents=True)
        for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "csrc/cuda_toolkit.py"):
            shutil.copy(ROOT / name, self.root / name)
        for name in CPU | CUDA:
            function = f'extern "C" const char* {name.replace(".", "_")}() {{ return "source {name};"; }}\n'
            (self.root / "csrc" / name).write_text(function, encoding="utf-8")
        for package in ("psdrl", "kernels"):
            (self.root / package / "__init__.py").touch()
        for tool in ("ninja", "g++", "c++", "gcc", "cc", "sh", "ld", "as"):
            self.link(tool)
        ours = ("CUDA", "PSDRL", "TORCH", "CXX", "CC", "LD", "MAX_JOBS", "LIBRARY_PATH", "PYTHONPATH")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        self.environment |= {"PATH": str(self.root.parent / "tools"), "PYTHONPATH": str(self.start), "MAX_JOBS": "1"}
        self.torch(CUDA_TORCH)

    def link(self, tool: str) -> None:
        """Only what is linked here is on the PATH: no nvcc of the machine."""
        folder = self.root.parent / "tools"
        folder.mkdir(exist_ok=True)
        found = shutil.which(tool)
        if found is not None:
            (folder / tool).symlink_to(Path(found).resolve())

    def unlink(self, *tools: str) -> None:
        for tool in tools:
            (self.root.parent / "tools" / tool).unlink()

    def torch(self, code: str) -> None:
        (self.start / "sitecustomize.py").write_text(code, encoding="utf-8")

    def path(self, nvcc: Path) -> None:
        """Put the folder of this nvcc on the PATH."""
        self.environment["PATH"] = f"{nvcc.parent}{os.pathsep}{self.environment['PATH']}"

    def run(self, *command: str, library: str = "out/psdrl") -> Built:
        done = subprocess.run(
            [sys.executable, *command], cwd=self.root, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        built = [path.read_bytes() for path in (self.root / library).glob("_C*.so")]
        assert len(built) <= 1
        parts = {name for name in CPU | CUDA if built and f"source {name};".encode() in built[0]}
        return Built(parts, [line for line in done.stderr.splitlines() if line.startswith("psdrl:")])

    def build(self) -> Built:
        return self.run("setup.py", "build_ext", "--build-lib", "out")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def one_sentence(built: Built, without: str, *words: str) -> None:
    assert len(built.said) == 1, built.said
    assert built.said[0].startswith(f"psdrl: installed without {without}: ")
    for word in words:
        assert word in built.said[0]


WITHOUT_CUDA = "the CUDA part of the extension"
WITHOUT_ALL = "the C++ extension"


@needs_compiler
def test_nvcc_of_another_major_version(project: Project, tmp_path: Path) -> None:
    project.path(toolkit(tmp_path / "cuda", release="98.4"))
    built = project.build()
    assert built.parts == CPU
    one_sentence(built, WITHOUT_CUDA, "is of CUDA 98.4, torch of CUDA 99.0")
    assert not (tmp_path / "cuda" / "calls").exists(), "compiled in vain"


@needs_compiler
def test_toolkit_without_libcudart(project: Project, tmp_path: Path) -> None:
    project.path(toolkit(tmp_path / "cuda", cudart=False))
    built = project.build()
    assert built.parts == CPU
    one_sentence(built, WITHOUT_CUDA, "no libcudart.so")
    assert not (tmp_path / "cuda" / "calls").exists(), "compiled in vain"


@needs_compiler
def test_libcudart_of_the_system(project: Project, tmp_path: Path) -> None:
    """PSDRL_CUDA=1 tries what the checks advise against: here the linker finds libcudart by itself."""
    project.path(toolkit(tmp_path / "cuda", cudart=False))
    (tmp_path / "system").mkdir()
    shutil.copy(tmp_path / "cuda" / "lib64" / "libc10_cuda.so", tmp_path / "system" / "libcudart.so")
    project.environment |= {"PSDRL_CUDA": "1", "LIBRARY_PATH": str(tmp_path / "system")}
    assert project.build() == Built(CPU | CUDA, [])


@needs_compiler
def test_nvcc_is_a_wrapper(project: Project, tmp_path: Path) -> None:
    nvcc = toolkit(tmp_path / "cuda")
    project.path(script(tmp_path / "wrapper" / "bin" / "nvcc", f'#!/bin/sh\nexec {nvcc} "$@"\n'))
    assert project.build() == Built(CPU | CUDA, [])


@needs_compiler
@pytest.mark.parametrize("home", ["nowhere", "hollow"])
def test_cuda_home_without_a_toolkit(project: Project, tmp_path: Path, home: str) -> None:
    """The nvcc on the PATH serves where CUDA_HOME is left over from another installation."""
    toolkit(tmp_path / "hollow", cudart=False)
    project.path(toolkit(tmp_path / "cuda"))
    project.environment["CUDA_HOME"] = str(tmp_path / home)
    assert project.build() == Built(CPU | CUDA, [])


@needs_compiler
@pytest.mark.parametrize("name", ["CUDA_HOME", "CUDA_PATH"])
def test_cuda_home_is_preferred_to_the_path(project: Project, tmp_path: Path, name: str) -> None:
    toolkit(tmp_path / "cuda")
    project.path(toolkit(tmp_path / "other"))
    project.environment[name] = str(tmp_path / "cuda")
    assert project.build() == Built(CPU | CUDA, [])
    assert not (tmp_path / "other" / "calls").exists()


@needs_compiler
def test_nvcc_without_sm_100(project: Project, tmp_path: Path) -> None:
    project.path(toolkit(tmp_path / "cuda", known="80 90"))
    built = project.build()
    assert built.parts == CPU | CUDA
    one_sentence(built, "code for CUDA architecture 10.0", "CUDA 99.0 lacks it")
    call = (tmp_path / "cuda" / "calls").read_text(encoding="utf-8")
    assert sorted(re.findall(r",code=(\w+)", call)) == ["compute_90", "sm_80", "sm_90"]


@needs_compiler
def test_architectures_of_the_user(project: Project, tmp_path: Path) -> None:
    project.path(toolkit(tmp_path / "cuda", known="80 86"))
    project.environment["TORCH_CUDA_ARCH_LIST"] = "8.6"
    assert project.build() == Built(CPU | CUDA, [])
    call = (tmp_path / "cuda" / "calls").read_text(encoding="utf-8")
    assert re.findall(r",code=(\w+)", call) == ["sm_86"]


@needs_compiler
@pytest.mark.parametrize("ninja", [True, False])
def test_nvcc_that_fails(project: Project, tmp_path: Path, ninja: bool) -> None:
    project.path(toolkit(tmp_path / "cuda", before="exit 1"))
    if not ninja:
        project.unlink("ninja")
    built = project.build()
    assert built.parts == CPU
    one_sentence(built, WITHOUT_CUDA, "Error")
    assert (tmp_path / "cuda" / "calls").exists()


@needs_compiler
def test_editable_install_with_an_nvcc_that_fails(project: Project, tmp_path: Path) -> None:
    """The C++ build that follows is still one in place."""
    project.path(toolkit(tmp_path / "cuda", before="exit 1"))
    built = project.run("-c", "from setuptools import build_meta; build_meta.build_editable('out')", library="psdrl")
    assert built.parts == CPU
    one_sentence(built, WITHOUT_CUDA, "Error")
    assert list((project.root / "out").glob("psdrl-*.whl"))


@needs_compiler
def test_torch_without_cuda(project: Project, tmp_path: Path) -> None:
    """PSDRL_CUDA=1 cannot help there, and does no harm."""
    project.torch("import torch\ntorch.version.cuda = None\n")
    project.path(toolkit(tmp_path / "cuda"))
    project.environment["PSDRL_CUDA"] = "1"
    built = project.build()
    assert built.parts == CPU
    one_sentence(built, WITHOUT_CUDA, "not a CUDA build")


@needs_compiler
def test_cuda_not_wanted(project: Project, tmp_path: Path) -> None:
    project.path(toolkit(tmp_path / "cuda"))
    project.environment["PSDRL_CUDA"] = "0"
    built = project.build()
    assert built.parts == CPU
    one_sentence(built, WITHOUT_CUDA, "PSDRL_CUDA=0")
    assert not (tmp_path / "cuda" / "calls").exists()


@needs_compiler
@pytest.mark.parametrize("compiler", ["none", "fails"])
@pytest.mark.parametrize("force", ["", "0"])
def test_no_compiler(project: Project, tmp_path: Path, compiler: str, force: str) -> None:
    project.path(toolkit(tmp_path / "cuda"))
    project.environment["PSDRL_CUDA"] = force
    if compiler == "none":
        project.unlink("g++", "c++", "gcc", "cc")
    else:
        broken = script(tmp_path / "broken", "#!/bin/sh\nexit 1\n")
        project.environment |= {"CXX": str(broken), "CC": str(broken)}
    built = project.build()
    assert built.parts == set()
    one_sentence(built, WITHOUT_ALL, "Error", "to build it later")


def test_no_torch(project: Project) -> None:
    project.torch(NO_TORCH)
    built = project.build()
    assert built.parts == set()
    one_sentence(built, WITHOUT_ALL, "no torch")


def test_torch_that_does_not_load(project: Project) -> None:
    """As with a CUDA build whose libraries are not installed."""
    project.environment["PYTHONPATH"] += f"{os.pathsep}{project.start / 'broken'}"
    project.torch("")
    script(project.start / "broken" / "torch.py", "raise OSError('libcudart.so.99: cannot open shared object file')")
    built = project.build()
    assert built.parts == set()
    one_sentence(built, WITHOUT_ALL, "OSError: libcudart.so.99")
