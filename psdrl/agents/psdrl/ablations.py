"""The paper's three ablations: PSDRL with one thing changed."""

from dataclasses import dataclass
from typing import Any

from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.agents.psdrl.learning import Losses, restart
from psdrl.agents.psdrl.models import Models
from psdrl.agents.psdrl.settings import PsdrlConfig, Rule
from psdrl.agents.psdrl.value import copy_parameters


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
        seed = int(self.rng.integers(2**31))
        fresh = self.initialised(lambda: Models(self.config, self.spec).value, seed)
        copy_parameters(fresh, self.models.value)
        copy_parameters(fresh, self.models.target)
        restart(self.optimisers["value"])
        return super().plan(*arguments)
