"""Which device a run uses, and what it can do."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from psdrl.errors import UserError


def cuda_available() -> bool:
    """Whether this build of PyTorch sees a CUDA device."""
    return torch.cuda.is_available()


def cuda_count() -> int:
    """CUDA devices that this build of PyTorch sees."""
    return torch.cuda.device_count() if cuda_available() else 0


def is_gpu(device: torch.device) -> bool:
    """Whether this device computes while the host goes on."""
    return device.type == "cuda"


def pinned_empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Host memory that a GPU can copy from on its own; ordinary memory where there is no GPU."""
    return torch.empty(shape, dtype=dtype, pin_memory=cuda_available())


def uploaded(x: torch.Tensor, device: torch.device, staging: torch.Tensor | None = None) -> torch.Tensor:
    """A host tensor on the device. A GPU copies from pinned memory when it gets there, and the host goes on.

    staging: pinned memory to use again, once the last copy from it is known to have happened.
    """
    if not is_gpu(device):
        return x.to(device)
    staging = pinned_empty(tuple(x.shape), x.dtype) if staging is None else staging
    return staging.copy_(x).to(device, non_blocking=True)


def resolve_device(name: str) -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:N` as a device; refuses one that is not there."""
    if name == "auto":
        name = "cuda" if cuda_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"--device {name} is no device: use auto, cpu, cuda or cuda:N.") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"--device {name} is not supported: use auto, cpu, cuda or cuda:N.")
    if device.type == "cuda":
        if not cuda_available():
            why = "this PyTorch is a CPU build" if torch.version.cuda is None else "no GPU or no driver was found"
            raise UserError(
                f"--device {name} asks for a GPU, but {why}: use --device cpu, or install a CUDA build or driver."
            )
        if (device.index or 0) >= torch.cuda.device_count():
            raise UserError(f"--device {name} is not there: this machine has {torch.cuda.device_count()} GPU(s).")
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)  # what names no device (events, Triton, libraries' handles) means this one
    return device


@cache
def bf16_on_cpu() -> str | None:
    """Why products in bfloat16 cannot be formed on this CPU; None: they can.

    Some virtual machines promise AMX and refuse it, and oneDNN's product ends the process. So where AMX is promised it
    is tried in a process of its own (3 s)."""
    cpu = Path("/proc/cpuinfo")
    if "ONEDNN_MAX_CPU_ISA" in os.environ or not cpu.exists() or "amx_bf16" not in cpu.read_text():
        return None
    trial = "import torch; x = torch.ones(200, 64, dtype=torch.bfloat16); torch.nn.functional.linear(x, x[:64])"
    if subprocess.run([sys.executable, "-c", trial], capture_output=True).returncode == 0:
        return None
    return f"this CPU promises AMX and does not have it: set ONEDNN_MAX_CPU_ISA={WITHOUT_AMX}"


WITHOUT_AMX = "AVX512_CORE_BF16"


@contextmanager
def limited_threads(most: int) -> Iterator[int]:
    """At most so many CPU threads within, PyTorch's own number if 0; gives the number in force."""
    before = torch.get_num_threads()
    torch.set_num_threads(min(most, before) if most else before)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
