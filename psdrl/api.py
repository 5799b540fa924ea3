"""PSDRL from Python in five lines: `Agent(configure(env="deepsea-5"), spec)`, then train and evaluate."""

from typing import Any

from psdrl.agents.registry import make_agent
from psdrl.config import Config
from psdrl.envs.vector import EnvSpec, VectorEnv
from psdrl.run.evaluation import evaluate
from psdrl.run.loop import train


class Agent:
    """The agent that the configuration names; `core` is the agent itself (`psdrl.agents`)."""

    def __init__(self, config: Config, spec: EnvSpec) -> None:
        self.core: Any = make_agent(config, spec)

    def train(self, env: VectorEnv, **options: Any) -> None:
        """Interact with the environment until config.steps, see `psdrl.run.loop.train`."""
        train(self.core, env, **options)

    def evaluate(self, episodes: int = 10, **options: Any) -> list[float]:
        """Returns of this many episodes, see `psdrl.run.evaluation.evaluate`."""
        return evaluate(self.core, episodes, **options)

    @property
    def step(self) -> int:
        """Environment steps taken."""
        return self.core.step

    @property
    def updates(self) -> int:
        """Updates made."""
        return self.core.updates
