"""The operations of csrc/ as torch.ops.psdrl.*, with the shapes that torch.compile needs."""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from psdrl.kernels import extension
from psdrl.kernels.posterior import reference

_disabled: dict[str, str] = {}  # by kind of device: how they failed their check


def unavailable(device: torch.device) -> str | None:
    """None if the operations run on this device, else why not."""
    return _disabled.get(device.type) or _unavailable(device.type)


def disable(device: torch.device, reason: str) -> None:
    """The operations have failed on this kind of device: the oracle takes their place."""
    _disabled[device.type] = reason


@cache
def operations() -> list[str]:
    """What the extension defines and has an oracle here."""
    return sorted(name for name in extension.operations() if hasattr(reference, name))


@cache
def _unavailable(device: str) -> str | None:
    reason = extension.missing()
    if reason is not None:
        return reason
    _register_fakes()
    key = {"cpu": "CPU", "cuda": "CUDA"}.get(device)
    if key is None or not all(has_kernel(f"psdrl::{name}", key) for name in operations()):
        return f"the C++ extension psdrl._C was built without {device} operations"
    return None


def has_kernel(operation: str, key: str) -> bool:
    """Whether an implementation is registered for this dispatch key."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operation, key)


def _register_fakes() -> None:
    """Shapes and dtypes without data."""

    @torch.library.register_fake("psdrl::gram_registers_")
    @torch.library.register_fake("psdrl::gram_accumulate_")
    def gram_accumulate_(gram: Tensor, cross: Tensor, features: Tensor, targets: Tensor, weight: float = 1.0) -> None:
        return None

    @torch.library.register_fake("psdrl::solve_rows_")
    def solve_rows_(factor: Tensor, rows: Tensor, back: bool) -> None:
        return None

    @torch.library.register_fake("psdrl::posterior_factor")
    def posterior_factor(
        gram: Tensor, prior_variances: Tensor, noise_variances: Tensor, attempts: int = 16, registers: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        groups, k = prior_variances.shape[0], gram.shape[0]
        factors = gram.new_empty(groups, k, k).mT  # column-major, as LAPACK leaves them
        return factors, gram.new_empty(groups), gram.new_empty(groups, dtype=torch.int32)

    @torch.library.register_fake("psdrl::posterior_mean")
    def posterior_mean(
        factors: Tensor, cross: Tensor, group: Sequence[int], noise_variances: Tensor, registers: bool = False
    ) -> Tensor:
        return cross.new_empty(cross.shape[1], cross.shape[0])

    @torch.library.register_fake("psdrl::posterior_sample")
    def posterior_sample(
        factors: Tensor,
        mean: Tensor,
        group: Sequence[int],
        eps: Tensor | None = None,
        samples: int = 1,
        generator: torch.Generator | None = None,
        registers: bool = False,
    ) -> Tensor:
        return mean.new_empty(samples if eps is None else eps.shape[0], *mean.shape)
