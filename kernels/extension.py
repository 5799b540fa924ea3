"""Loads the C++ extension psdrl._C, or says why it is missing; importing this never fails."""

import hashlib
import importlib
from functools import cache
from pathlib import Path

import torch

NEWEST = "tanh_actions"  # of its operations
HOW = "build it with: pip install --no-build-isolation --no-deps -e ."


@cache
def missing() -> str | None:
    """None if torch.ops.psdrl.* are there, else the reason why they are not."""
    try:
        importlib.import_module("psdrl._C")
    except ModuleNotFoundError:
        return f"the C++ extension psdrl._C is not built ({HOW})"
    except (ImportError, OSError) as error:  # built for another torch or another machine
        return f"the C++ extension psdrl._C does not load ({error}; {HOW})"
    if not hasattr(torch.ops.psdrl, NEWEST):
        return f"the C++ extension psdrl._C was built from older sources ({HOW})"
    return None


def instruction_set() -> str:
    """That of the CPU kernels: avx512, avx2 or portable; none without the extension. PSDRL_CPU asks for one."""
    return importlib.import_module("psdrl._C").instruction_set() if missing() is None else "none"


@cache
def fingerprint() -> str:
    """Tells one build from another: a choice between kernels holds for those that were measured."""
    if missing() is not None:
        return ""
    file = importlib.import_module("psdrl._C").__file__
    assert file is not None
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]


def threads() -> int:
    """Threads that share the work of a kernel of the extension, which may be fewer than PyTorch's own."""
    return importlib.import_module("psdrl._C").threads() if missing() is None else 0


def operations() -> set[str]:
    """Names of what is defined in torch.ops.psdrl, by this extension and by `dispatch`."""
    names = (schema.name.split("::") for schema in torch._C._jit_get_all_schemas())
    return {name for library, name in names if library == "psdrl"} if missing() is None else set()
