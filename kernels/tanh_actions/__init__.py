"""Networks of tanh layers on all actions of states, of which only the first layer's terms differ."""

from psdrl.kernels.tanh_actions.native import tanh_actions

__all__ = ["tanh_actions"]
