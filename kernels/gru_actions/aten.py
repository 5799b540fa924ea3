"""All actions at once by broadcasting; no gradients."""

import torch
from torch import Tensor


def gru_actions(inputs: Tensor, recurrent: Tensor, columns: Tensor, hidden: Tensor) -> Tensor:
    """h' (n, A, H); see `reference`."""
    i_r, i_z, i_n = inputs[:, None].chunk(3, 2)
    h_r, h_z, h_n = recurrent[:, None].chunk(3, 2)
    c_r, c_z, c_n = columns.chunk(3, 1)
    reset = torch.sigmoid(c_r + (i_r + h_r))
    update = torch.sigmoid(c_z + (i_z + h_z))
    new = torch.addcmul(c_n + i_n, reset, h_n).tanh()
    return torch.lerp(new, hidden[:, None], update)
