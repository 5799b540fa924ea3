"""The paper's three ablations: PSDRL with one thing changed."""

from dataclasses import dataclass
from typing import Any

from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.agents.psdrl.learning import Losses
from psdrl.agents.psdrl.settings import PsdrlConfig, Rule


@dataclass(frozen=True)
class EpsilonGreedyConfig(PsdrlConfig):
    """No sampling: the trained model, and epsilon from 1 to 0.01 over 50k steps (exploit) or 1M (explore). [paper]"""

    @property
    def rule(self) -> Rule:
        return "none"

    def epsilon(self, step: int) -> float:
        annealed = 50_000 if self.algo == "egreedy-exploit" else 1_000_000
        return max(0.01, 1.0 - 0.99 * step / annealed)


@dataclass(frozen=True)
class FreshValueConfig(PsdrlConfig):
    """A new value network in every update, with four times the planning. [paper]"""

    @property
    def planning_iterations(self) -> int:
        return 4 * self.value.iterations


class FreshValueAgent(PsdrlAgent):
    """Forgets its value network before it plans."""

    def plan(self, *arguments: Any) -> Losses:
        self.forget_value()
        return super().plan(*arguments)
