"""One-step lookahead over all actions (Eq. 6 and 7)."""

from psdrl.kernels.lookahead.reference import Lookahead, lookahead

__all__ = ["Lookahead", "lookahead"]
