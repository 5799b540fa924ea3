"""What Eq. 4 needs of the replay buffer: features and targets of all stored transitions, summed up in float64."""

from operator import itemgetter

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from psdrl.agents.psdrl.models import Models
from psdrl.agents.psdrl.regression import Statistics
from psdrl.kernels.linear_tanh import linear_tanh
from psdrl.replay.episodes import Replay
from psdrl.runtime.execution import EAGER, Execution

UNIT = 512  # rows of features are multiples of so many: oneDNN makes and keeps code for every other number, 0.5 MB each


@torch.no_grad()
def buffer_statistics(models: Models, replay: Replay, latents: Tensor, execution: Execution = EAGER) -> Statistics:
    """Features and targets of all stored transitions, streamed: Phi is never materialised."""
    model = models.forward_model
    statistics = model.statistics(replay.device)
    rows = max(1, execution.chunk_rows // model.rows_per_state)
    for x, targets, times in model.memory.transitions(model, replay, latents, rows):
        with execution.autocast():
            phi = model.feature_layers(F.pad(x, (0, 0, 0, -len(x) % min(UNIT, rows))), linear_tanh)
        statistics.add(tree_map(itemgetter(slice(len(targets))), phi), targets, times=times)
    return statistics
