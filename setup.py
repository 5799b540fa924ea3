"""Packages and the optional C++ extension of PSDRL.

`kernels/` at the top level is installed as `psdrl.kernels`, never as `kernels`. The extension `psdrl._C` is built
where a C++ compiler and torch are present; where it cannot be built the install goes on without it, says why, and
PyTorch's own operations serve instead.
"""

import sys
from typing import Any

from setuptools import setup

HOW = "to build it later: pip install torch==2.13.0 ninja && pip install --no-build-isolation --no-deps -e ."


def skipped(why: str) -> None:
    """Say on the terminal what was left out (pip shows it with -v)."""
    print(f"psdrl: installed without the C++ extension: {why}; {HOW}", file=sys.stderr)


def extension() -> dict[str, Any]:
    """setup() arguments that build psdrl._C, or none."""
    try:
        from torch.utils.cpp_extension import BuildExtension, CppExtension
    except ImportError:
        skipped("this build environment has no torch (pip builds in isolation)")
        return {}

    class OptionalBuild(BuildExtension):
        """A failed build is reported, not fatal."""

        def run(self) -> None:
            try:
                super().run()
            except Exception as error:  # whatever the compiler, ninja or torch raise
                skipped(f"{type(error).__name__}: {error}".splitlines()[0])
                self.extensions = []

    flags = ["-O3", "-std=c++20"]
    sources = ["csrc/module.cpp", "csrc/linear_rows.cpp"]
    return {
        "ext_modules": [CppExtension("psdrl._C", sources, extra_compile_args=flags)],
        "cmdclass": {"build_ext": OptionalBuild},
    }


setup(
    packages=[
        "psdrl",
        "psdrl.envs",
        "psdrl.kernels",
        "psdrl.kernels.gru_actions",
        "psdrl.kernels.linear_tanh",
        "psdrl.kernels.lookahead",
        "psdrl.kernels.tanh_dot",
    ],
    package_dir={"psdrl": "psdrl", "psdrl.kernels": "kernels"},
    **extension(),
)
