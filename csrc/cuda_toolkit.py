"""The CUDA toolkit to build with: found by asking nvcc, and checked against torch before anything is compiled."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

ARCHITECTURES = ("8.0", "9.0", "10.0")  # A100, H100, B200


class Toolkit(NamedTuple):
    home: Path
    libraries: Path  # where libcudart.so is
    release: str


def answer(nvcc: Path, *question: str) -> str:
    """What nvcc prints, on either stream; nothing if it cannot be run."""
    try:
        done = subprocess.run([nvcc, *question], capture_output=True, encoding="utf-8", errors="replace", timeout=60)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout + done.stderr


def toolkit_of(nvcc: Path, torch_cuda: str) -> Toolkit | str:
    """The toolkit of this nvcc, or why it does not serve.

    It is looked for around nvcc, then where nvcc itself says it is: the nvcc on the PATH may be a script that calls
    another one, and torch would take the script's surroundings for the toolkit.
    """
    release = re.search(r"release ((\d+)\.\d+)", answer(nvcc, "--version"))
    if release is None:
        return f"{nvcc} does not say its version"
    if release[2] != torch_cuda.split(".")[0]:  # torch refuses to build with another major version
        return f"{nvcc} is of CUDA {release[1]}, torch of CUDA {torch_cuda}"
    top = re.search(r"^#\$ TOP=(.+)$", answer(nvcc, "--dryrun", "any.cu"), re.MULTILINE)
    for home in (nvcc.parents[1], *([Path(top[1].strip())] if top else [])):
        for libraries in (home / "lib64", home / "lib", *home.glob("targets/*/lib")):
            if (home / "bin" / "nvcc").exists() and (libraries / "libcudart.so").exists():
                return Toolkit(home.resolve(), libraries.resolve(), release[1])
    return f"the toolkit of {nvcc} has no libcudart.so"


def find_toolkit(torch_cuda: str | None) -> Toolkit | str:
    """The first toolkit that suits a torch of this CUDA version, or why there is none. No GPU need be visible."""
    if torch_cuda is None:
        return "this torch is not a CUDA build"
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    nvccs = [Path(home, "bin", "nvcc") for home in homes if home]
    on_path = shutil.which("nvcc")
    if on_path is not None:
        nvccs.insert(-1, Path(on_path))  # what the user names comes first, a guess last
    found = [toolkit_of(nvcc, torch_cuda) for nvcc in nvccs if nvcc.exists()]
    for each in found:
        if isinstance(each, Toolkit):
            return each
    return found[0] if found else "no CUDA toolkit was found (nvcc on the PATH, or CUDA_HOME)"


def architectures(toolkit: Toolkit) -> tuple[list[str], list[str]]:
    """Our architectures that this nvcc knows, and those it does not: sm_100, say, needs CUDA 12.8."""
    listed = set(re.findall(r"sm_\d+", answer(toolkit.home / "bin" / "nvcc", "--list-gpu-code")))
    known = [each for each in ARCHITECTURES if "sm_" + each.replace(".", "") in listed]
    if not known:  # no usable answer: let nvcc complain when it compiles
        return list(ARCHITECTURES), []
    return known, [each for each in ARCHITECTURES if each not in known]
