"""The agent: Bootstrapped DQN with randomised priors (Osband et al. 2018)."""

from collections.abc import Callable
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from psdrl.agents.bootstrap.acting import HeadActor, VoteActor
from psdrl.agents.bootstrap.learning import make_step
from psdrl.agents.bootstrap.network import Networks
from psdrl.agents.bootstrap.settings import BootstrapConfig
from psdrl.agents.bootstrap.work import BootstrapWorkload
from psdrl.agents.interface import Actor, Metrics
from psdrl.agents.stacks import Stacks
from psdrl.agents.transitions import TransitionAgent
from psdrl.envs.vector import EnvSpec
from psdrl.replay.frames import FrameReplay


class BootstrapAgent(TransitionAgent):
    """K value functions, each with a fixed random prior. One of them, drawn per episode, is acted on greedily; all of
    them learn from all episodes."""

    PHASES: ClassVar = {"learning": "double DQN of all heads"}
    POLICIES: ClassVar = {"vote": "what most heads prefer", "head": "one head per episode"}
    NUMBERS: ClassVar = ("loss/heads", "train/q", "train/gradient_norm")
    config: BootstrapConfig
    networks: Networks
    actors: list[HeadActor]

    def __init__(self, config: BootstrapConfig, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        seeds = self.seeds(2**16, 3)
        self.rng = np.random.default_rng(seeds[0])  # masks and batches
        self.networks = self.initialised(lambda: Networks(config.network, spec, config.replay.stack), seeds[1])
        self.evaluation_seed = seeds[2]
        group = config.num_envs // config.env_groups
        schedule = lambda: config.random_share(self.step)  # noqa: E731
        self.actors = [self._head_actor(group, seed, schedule) for seed in seeds[3:]]
        self.gradient_step = make_step(self.networks, self.optimiser, config.learning, self.execution)
        self.replay = self.stored(FrameReplay, config.network.heads)

    def _head_actor(self, num_envs: int, seed: int, random_share: Callable[[], float]) -> HeadActor:
        return HeadActor(
            self.networks,
            Stacks(num_envs, self.config.replay.stack, self.spec, self.device),
            num_envs,
            self.spec.num_actions,
            random_share,
            np.random.default_rng(seed),
            self.execution,
        )

    def mask(self) -> NDArray[np.bool_]:
        """Drawn for each transition."""
        return self.rng.random(self.config.network.heads) < self.config.learning.mask_probability

    def condition(self) -> Metrics:
        """How random the actions are."""
        return {"train/random_share": self.config.random_share(self.step)}

    def player(self, stream: int, policy: str | None = None, num_envs: int = 1, epsilon: float | None = None) -> Actor:
        """A vote of all heads, or heads of a stream of their own; neither is random without an epsilon."""
        seed, share = self.evaluation_seed + stream, lambda: epsilon or 0.0
        if policy == "head":
            actor = self._head_actor(num_envs, seed, share)
            actor.start(np.ones(num_envs, bool))
            return actor
        stacks, rng = Stacks(num_envs, self.config.replay.stack, self.spec, self.device), np.random.default_rng(seed)
        return VoteActor(self.networks, stacks, self.spec.num_actions, share, rng, self.execution)

    def description(self) -> dict[str, str]:
        """Heads, prior and sizes of the networks."""
        config, network = self.config, self.networks.online
        torso, heads = (sum(p.numel() for p in part.parameters()) for part in (network.torso, network.heads))
        prior = f"{config.network.heads}, prior scale {config.network.prior_scale:g}"
        return {
            "heads": f"{prior}, mask probability {config.learning.mask_probability:g}",
            "parameters": f"{torso + heads:,} (torso {torso:,}, heads {heads:,}), and as many in target and prior",
        }

    @classmethod
    def workload(cls, config: BootstrapConfig, spec: EnvSpec) -> BootstrapWorkload:
        """What a gradient step and an action do."""
        return BootstrapWorkload(config, spec)
