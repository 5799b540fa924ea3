"""Packages and the optional C++/CUDA extension of PSDRL.

`kernels/` at the top level is installed as `psdrl.kernels`, never as `kernels`. The extension `psdrl._C` is built
where a C++ compiler and torch are present, its CUDA part where nvcc and a CUDA build of torch are (a GPU need not be
visible). What cannot be built is left out with the reason, the install goes on, and PyTorch's own operations serve.

PSDRL_CUDA=0 leaves the CUDA part out, PSDRL_CUDA=1 tries it in any case; TORCH_CUDA_ARCH_LIST chooses the
architectures (default 8.0;9.0;10.0+PTX, without those that nvcc does not know).
"""

import copy
import os
import sys
from collections.abc import Callable, Sequence
from glob import glob
from pathlib import Path
from typing import Any

from setuptools import find_packages, setup

sys.path.insert(0, str(Path(__file__).parent / "csrc"))  # pip's builds do not search the project's folder
from cuda_toolkit import ARCHITECTURES, Toolkit, architectures, find_toolkit

HOW = "to build it later: pip install torch==2.13.0 ninja && pip install --no-build-isolation --no-deps -e ."
HOW_CUDA = "it needs nvcc and libcudart of the CUDA version that torch was built with (a GPU need not be visible)"
CPU_SOURCES, CUDA_SOURCES = sorted(glob("csrc/*.cpp")), sorted(glob("csrc/*.cu"))
HEADERS = sorted(glob("csrc/*.h") + glob("csrc/*.cuh"))
CXX_FLAGS = ["-O3", "-g0", "-std=c++20", "-Wno-psabi", "-fno-math-errno"]  # vectors never cross the library's border
# at::parallel_for is a loop on one thread where OpenMP is off. torch brings libgomp, which is the one that is loaded.
OPENMP = ["-fopenmp"] if sys.platform == "linux" else []
CXX_FLAGS += OPENMP
NVCC_FLAGS = ["-O3", "-std=c++20", "--expt-relaxed-constexpr"]


def skipped(what: str, why: str, how: str = HOW) -> None:
    """Say on the terminal what was left out (pip shows it with -v)."""
    print(f"psdrl: installed without {what}: {why}; {how}", file=sys.stderr)


def one_line(error: BaseException) -> str:
    """What the compiler, ninja or torch said, shortened."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def choose_architectures(known: Sequence[str]) -> bool:
    """Take these, the last one as PTX too for whatever comes later; False if the user has chosen others."""
    if os.environ.get("TORCH_CUDA_ARCH_LIST"):
        return False
    os.environ["TORCH_CUDA_ARCH_LIST"] = ";".join(known) + "+PTX"
    return True


def extension() -> dict[str, Any]:
    """setup() arguments that build psdrl._C, or none."""
    try:
        import torch
        from torch.utils import cpp_extension
    except Exception as error:  # OSError, too: a torch whose own libraries are missing
        absent = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        why = "this build environment has no torch (pip builds in isolation)" if absent else one_line(error)
        skipped("the C++ extension", why)
        return {}

    def cpu() -> Any:
        flags = list(CXX_FLAGS)
        return cpp_extension.CppExtension(
            "psdrl._C", list(CPU_SOURCES), extra_compile_args=flags, extra_link_args=list(OPENMP), depends=HEADERS
        )

    def cuda(toolkit: Toolkit | None) -> Any:
        flags = {"cxx": list(CXX_FLAGS), "nvcc": list(NVCC_FLAGS)}
        libraries = []
        if toolkit is not None:
            cpp_extension.CUDA_HOME = str(toolkit.home)  # torch has guessed already, when it was imported
            libraries.append(str(toolkit.libraries))
        return cpp_extension.CUDAExtension(
            "psdrl._C",
            CPU_SOURCES + CUDA_SOURCES,
            extra_compile_args=flags,
            extra_link_args=list(OPENMP),
            library_dirs=libraries,
            depends=HEADERS,
        )

    class OptionalBuild(cpp_extension.BuildExtension):
        """Tries with CUDA, then without, then goes on with nothing; what is left out is said, and nothing is fatal."""

        def finalize_options(self) -> None:
            own = ("distribution", "asked")
            self.asked = {name: copy.copy(value) for name, value in vars(self).items() if name not in own}
            super().finalize_options()

        def run(self) -> None:
            why = self.cuda_failure()
            if why is None:
                return
            failure = self.failure(cpu)
            if failure is None:
                skipped("the CUDA part of the extension", why, HOW_CUDA)
            else:
                self.extensions: list[Any] = []
                skipped("the C++ extension", failure)

        def cuda_failure(self) -> str | None:
            """Build the extension with its CUDA part; the reason if that is not to be had."""
            force = os.environ.get("PSDRL_CUDA", "")
            if force not in ("", "0", "1"):
                raise SystemExit(f"PSDRL_CUDA must be 0 or 1, not {force!r}")
            if force == "0":
                return "PSDRL_CUDA=0"
            toolkit = find_toolkit(torch.version.cuda)
            if isinstance(toolkit, str):
                if force != "1":
                    return toolkit
                choose_architectures(ARCHITECTURES)
                failure = self.failure(lambda: cuda(None))  # with the toolkit that torch guesses
                return None if failure is None else f"{toolkit} ({failure})"
            known, unknown = architectures(toolkit)
            chosen = choose_architectures(known)
            failure = self.failure(lambda: cuda(toolkit))
            if failure is None and chosen and unknown:
                how = f"such a GPU translates the code of {known[-1]} when it is loaded"
                skipped(f"code for CUDA architecture {', '.join(unknown)}", f"CUDA {toolkit.release} lacks it", how)
            return failure

        def failure(self, extension: Callable[[], Any]) -> str | None:
            """Build the extension; the reason if that fails.

            Each try is a fresh command with the options as they were given: a command that has failed can be neither
            finalised again nor trusted to know that it was to build in place.
            """
            trial = cpp_extension.BuildExtension(self.distribution)
            trial.__dict__.update(copy.deepcopy(self.asked))
            try:
                self.distribution.ext_modules = [extension()]
                trial.ensure_finalized()
                trial.run()
            except Exception as error:  # whatever the compiler, ninja or torch raise
                return one_line(error)
            self.extensions, self.ext_map = trial.extensions, trial.ext_map
            return None

    return {"ext_modules": [cpu()], "cmdclass": {"build_ext": OptionalBuild}}


KERNELS = ["psdrl.kernels"] + [f"psdrl.kernels.{name}" for name in find_packages("kernels")]
setup(
    # psdrl/kernels in the tree is a link to kernels/, and find_packages follows links.
    packages=find_packages(include=["psdrl", "psdrl.*"], exclude=KERNELS) + KERNELS,
    package_dir={"psdrl": "psdrl", "psdrl.kernels": "kernels"},
    package_data={"psdrl.report": ["data/*", "page/*"]},
    include_package_data=False,  # MANIFEST.in is for the sdist
    **extension(),
)
