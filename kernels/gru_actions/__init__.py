"""Factored GRU: the next hidden states of all actions from one state's projections."""

from psdrl.kernels.gru_actions.aten import gru_actions

__all__ = ["gru_actions"]
