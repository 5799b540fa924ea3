"""Whether the Triton kernels can serve, or the reason why not. Triton is imported at the first question."""

import importlib
import os
import sys
from functools import cache

import torch

from psdrl.kernels import interpreter

PROVEN = "3.7"  # the interpreter and ahead-of-time tests ran with this version (torch 2.13.0 belongs to 3.7.1)
DTYPES = (torch.float32, torch.bfloat16)


def _hidden(reason: str) -> str:
    """Let `import triton` say "not found" from now on: torch's optimisers import it too and expect only that."""
    sys.modules["triton"] = None  # type: ignore[assignment]
    return reason


@cache
def missing() -> str | None:
    """None if Triton imports and has the proven version, else the reason."""
    try:
        triton = importlib.import_module("triton")
        importlib.import_module("triton.language")
    except ModuleNotFoundError as error:
        if error.name == "triton":
            return "Triton is not installed (pip install triton==3.7.1)"
        return _hidden(f"Triton does not import ({error})")
    except Exception as error:  # a broken install fails in any way: libraries, symbols, syntax
        return _hidden(f"Triton does not import ({type(error).__name__}: {error})")
    version = str(getattr(triton, "__version__", "of unknown version"))
    if version.split(".")[:2] != PROVEN.split("."):
        return f"Triton {version} is installed, the kernels are proven with {PROVEN} (pip install triton==3.7.1)"
    if interpreted():
        interpreter.correct()
    return None


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y")


@cache
def probe(device: torch.device) -> str | None:
    """None if a tiny kernel compiles and runs on this CUDA device, else the reason (driver, C compiler, ...)."""
    from psdrl.kernels.greedy.triton_kernel import best_return

    zeros = torch.zeros(1, 2, device=device)
    try:
        best_return(zeros, zeros, zeros, 0.99, 0.5)
        torch.cuda.synchronize(device)
    except Exception as error:  # a C compiler, the driver or ptxas may be missing: each raises its own type
        return f"a test kernel failed on {device} ({type(error).__name__}: {error})"
    return None


@cache
def refusal(device: torch.device, dtype: torch.dtype) -> str | None:
    """None if the kernels serve tensors of this device and dtype, else the reason."""
    if reason := missing():
        return reason
    if dtype not in DTYPES:
        return f"the kernels take float32 and bfloat16, not {str(dtype).removeprefix('torch.')}"
    if device.type == "cpu":
        return None if interpreted() else "Triton needs a GPU (in tests, TRITON_INTERPRET=1 runs it on the CPU)"
    if device.type != "cuda" or torch.version.hip:
        return f"the kernels are proven for CUDA devices only, not for {'ROCm' if torch.version.hip else device.type}"
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        return f"the kernels need compute capability 8.0 or newer, {device} has {major}.{minor}"
    return probe(device)
