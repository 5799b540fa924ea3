"""Which device a run uses."""

import torch

from psdrl.errors import UserError


def cuda_available() -> bool:
    """Whether this build of PyTorch sees a CUDA device."""
    return torch.cuda.is_available()


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
            raise UserError(f"--device {name} asks for a GPU, but {why}: use --device cpu, or mend that.")
        if (device.index or 0) >= torch.cuda.device_count():
            raise UserError(f"--device {name} is not there: this machine has {torch.cuda.device_count()} GPU(s).")
    return device
