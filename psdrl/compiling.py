"""--compile: torch.compile for the functions that an update calls over and over."""

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch

Function = TypeVar("Function", bound=Callable)


@cache
def _compiled(function: Callable) -> Callable:
    return torch.compile(function)


def compiled(function: Function, wanted: bool) -> Function:
    """The function compiled, once per process, or as it is. Code is cached on disk by PyTorch between runs."""
    return _compiled(function) if wanted else function  # type: ignore[return-value]
