"""Planning: the value network of the sampled model, by fitted value iteration (Eq. 5 to 7)."""

import torch
from torch import nn


def copy_parameters(source: nn.Module, target: nn.Module) -> None:
    """psi' <- psi, in place."""
    with torch.no_grad():
        torch._foreach_copy_(list(target.parameters()), list(source.parameters()))
