"""--compile: torch.compile for the functions that an update calls over and over."""

import os
import shutil
from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch

from psdrl.errors import UserError

Function = TypeVar("Function", bound=Callable)


def check_compiler(device: torch.device) -> None:
    """On the CPU torch.compile writes C++: refuse early where nothing can compile it."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    if device.type == "cpu" and not any(shutil.which(name) for name in names):
        raise UserError(f"--compile needs a C++ compiler ({' or '.join(names)}): install one or leave --compile out.")


@cache
def _compiled(function: Callable) -> Callable:
    return torch.compile(function)


def compiled(function: Function, wanted: bool) -> Function:
    """The function compiled, once per process, or as it is. Code is cached on disk by PyTorch between runs."""
    return _compiled(function) if wanted else function  # type: ignore[return-value]
