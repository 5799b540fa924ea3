"""All actions at once by broadcasting; on the CPU csrc/ does it in one pass. No gradients."""

import torch
from torch import Tensor

from psdrl.kernels.extension import missing

NATIVE = missing() is None

if NATIVE:

    @torch.library.register_fake("psdrl::gru_actions_rows")
    def _gru_actions_rows(inputs: Tensor, recurrent: Tensor, columns: Tensor, hidden: Tensor) -> Tensor:
        return hidden.new_empty(len(hidden), len(columns), hidden.shape[1])


def gru_actions(inputs: Tensor, recurrent: Tensor, columns: Tensor, hidden: Tensor) -> Tensor:
    """h' (n, A, H); see `reference`."""
    if NATIVE and inputs.is_cpu and inputs.dtype == torch.float32:
        return torch.ops.psdrl.gru_actions_rows(inputs, recurrent, columns, hidden)
    i_r, i_z, i_n = inputs[:, None].chunk(3, 2)
    h_r, h_z, h_n = recurrent[:, None].chunk(3, 2)
    c_r, c_z, c_n = columns.chunk(3, 1)
    reset = torch.sigmoid(c_r + (i_r + h_r))
    update = torch.sigmoid(c_z + (i_z + h_z))
    new = torch.addcmul(c_n + i_n, reset, h_n).tanh()
    return torch.lerp(new, hidden[:, None], update)
