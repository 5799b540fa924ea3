"""One-step lookahead over all actions (Eq. 6 and 7): `reference` is the oracle, `factored` the fast one."""

from psdrl.agents.psdrl.lookahead import factored, reference
from psdrl.agents.psdrl.lookahead.reference import Lookahead, lookahead

__all__ = ["Lookahead", "factored", "lookahead", "reference"]
