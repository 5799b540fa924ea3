"""What Eq. 4 needs of the replay buffer: features and targets of all stored transitions, summed up in float64."""

import torch
from torch import Tensor

from psdrl.agents.psdrl.models import Models
from psdrl.agents.psdrl.regression import Statistics
from psdrl.kernels.linear_tanh import linear_tanh
from psdrl.replay.episodes import Replay
from psdrl.runtime.execution import EAGER, Execution


@torch.no_grad()
def buffer_statistics(models: Models, replay: Replay, latents: Tensor, execution: Execution = EAGER) -> Statistics:
    """Features and targets of all stored transitions, streamed: Phi is never materialised."""
    model = models.forward_model
    statistics = model.statistics(replay.device)
    rows = max(1, execution.chunk_rows // model.rows_per_state)
    for x, targets, times in model.memory.transitions(model, replay, latents, rows):
        with execution.autocast():
            phi = model.feature_layers(x, linear_tanh)
        statistics.add(phi, targets, times=times)
    return statistics
