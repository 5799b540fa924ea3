"""The oracle: PyTorch's GRU cell, once per action."""

import torch
from torch import Tensor


def gru_actions(inputs: Tensor, recurrent: Tensor, columns: Tensor, hidden: Tensor) -> Tensor:
    """h' (n, A, H) of all actions.

    inputs (n, 3H): input projection of the state, W_iz z + b_i; recurrent (n, 3H): W_h h + b_h;
    columns (A, 3H): what each action adds to the input projection; hidden (n, H). Gate order r, z, n as in PyTorch.
    """
    next_hidden = []
    for column in columns:
        i_r, i_z, i_n = (inputs + column).chunk(3, 1)
        h_r, h_z, h_n = recurrent.chunk(3, 1)
        reset = torch.sigmoid(i_r + h_r)
        update = torch.sigmoid(i_z + h_z)
        new = torch.tanh(i_n + reset * h_n)
        next_hidden.append((1 - update) * new + update * hidden)
    return torch.stack(next_hidden, 1)
