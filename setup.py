"""Packages and the optional C++/CUDA extension of PSDRL.

`kernels/` at the top level is installed as `psdrl.kernels`, never as `kernels`. The extension `psdrl._C` is built
where a C++ compiler and torch are present, its CUDA part where nvcc and a CUDA build of torch are (a GPU need not be
visible). What cannot be built is left out with the reason, the install goes on, and PyTorch's own operations serve.

PSDRL_CUDA=0 leaves the CUDA part out, PSDRL_CUDA=1 tries it in any case; TORCH_CUDA_ARCH_LIST chooses the
architectures (default 8.0;9.0;10.0+PTX).
"""

import os
import shutil
import sys
from typing import Any

from setuptools import setup

HOW = "to build it later: pip install torch==2.13.0 ninja && pip install --no-build-isolation --no-deps -e ."
HOW_CUDA = "it needs nvcc and a CUDA build of torch (a GPU need not be visible)"
CPU_SOURCES = [
    f"csrc/{name}.cpp" for name in ("module", "linear_rows", "bias_tanh", "gru_actions", "gram", "posterior")
]
CUDA_SOURCES = ["csrc/posterior_cuda.cu"]
CXX_FLAGS = ["-O3", "-g0", "-std=c++20", "-Wno-psabi"]  # vectors never cross the library's border
NVCC_FLAGS = ["-O3", "-std=c++20", "--expt-relaxed-constexpr"]


def skipped(what: str, why: str, how: str = HOW) -> None:
    """Say on the terminal what was left out (pip shows it with -v)."""
    print(f"psdrl: installed without {what}: {why}; {how}", file=sys.stderr)


def first_line(error: BaseException) -> str:
    """What the compiler, ninja or torch said, shortened."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def without_cuda() -> str | None:
    """Why the CUDA part is not tried, or None if it is: decided by toolkit and torch, not by a visible GPU."""
    import torch

    force = os.environ.get("PSDRL_CUDA", "")
    if force not in ("", "0", "1"):
        raise SystemExit(f"PSDRL_CUDA must be 0 or 1, not {force!r}")
    if force == "0":
        return "PSDRL_CUDA=0"
    if force == "1":
        return None
    if torch.version.cuda is None:
        return "this torch is a CPU build"
    if not (os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or shutil.which("nvcc")):
        return "no CUDA toolkit was found (nvcc on PATH, or CUDA_HOME)"
    return None


def extension() -> dict[str, Any]:
    """setup() arguments that build psdrl._C, or none."""
    try:
        from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension
    except ImportError:
        skipped("the C++ extension", "this build environment has no torch (pip builds in isolation)")
        return {}

    def cpu() -> Any:
        return CppExtension("psdrl._C", list(CPU_SOURCES), extra_compile_args=list(CXX_FLAGS))

    def cuda() -> Any:
        flags = {"cxx": list(CXX_FLAGS), "nvcc": list(NVCC_FLAGS)}
        return CUDAExtension("psdrl._C", CPU_SOURCES + CUDA_SOURCES, extra_compile_args=flags)

    why_not, chosen = without_cuda(), cpu()
    if why_not is None:
        try:
            chosen = cuda()
        except OSError as error:  # torch does not find the toolkit
            why_not = first_line(error)

    class OptionalBuild(BuildExtension):
        """Tries with CUDA, then without, then goes on with nothing; each failure is reported, none is fatal."""

        def run(self) -> None:
            reason = why_not
            if reason is None:
                os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "8.0;9.0;10.0+PTX")
                reason = self.failure()
                if reason is None:
                    return
                self.distribution.ext_modules = [cpu()]
                self.finalize_options()  # takes up the smaller extension
            skipped("the CUDA part of the extension", reason, HOW_CUDA)
            reason = self.failure()
            if reason is not None:
                skipped("the C++ extension", reason)
                self.extensions = []

        def failure(self) -> str | None:
            """Build the extension; the reason if that fails."""
            try:
                super().run()
            except Exception as error:  # whatever the compiler, ninja or torch raise
                return first_line(error)
            return None

    return {"ext_modules": [chosen], "cmdclass": {"build_ext": OptionalBuild}}


setup(
    packages=[
        "psdrl",
        "psdrl.envs",
        "psdrl.kernels",
        "psdrl.kernels.checks",
        "psdrl.kernels.convolution",
        "psdrl.kernels.greedy",
        "psdrl.kernels.gru_actions",
        "psdrl.kernels.linear_tanh",
        "psdrl.kernels.lookahead",
        "psdrl.kernels.posterior",
        "psdrl.kernels.tanh_dot",
    ],
    package_dir={"psdrl": "psdrl", "psdrl.kernels": "kernels"},
    **extension(),
)
