"""Which device a run uses."""

import torch

from psdrl.errors import UserError


def cuda_available() -> bool:
    """Whether this build of PyTorch sees a CUDA device."""
    return torch.cuda.is_available()


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
