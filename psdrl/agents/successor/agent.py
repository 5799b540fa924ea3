"""The agent: Successor Uncertainties (Janz et al. 2019)."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psdrl.agents.interface import Actor, Metrics
from psdrl.agents.stacks import Stacks
from psdrl.agents.successor.acting import ThompsonActor, make_choice
from psdrl.agents.successor.learning import make_step, noise_shape
from psdrl.agents.successor.network import Networks
from psdrl.agents.successor.posterior import RewardPosterior
from psdrl.agents.successor.recent import RecentReplay
from psdrl.agents.successor.settings import SuccessorConfig
from psdrl.agents.successor.work import SuccessorWorkload
from psdrl.agents.transitions import TransitionAgent
from psdrl.envs.vector import EnvSpec, Step
from psdrl.runtime.profiling import Phases


class SuccessorAgent(TransitionAgent):
    """Rewards are linear in local features phi, values in successor features psi with the same weights w. Uncertainty
    about w is uncertainty about values: w is drawn now and then, and acted on greedily."""

    PHASES: ClassVar = {"posterior": "regression on phi, draws of w", "learning": "reward, successor features, Q"}
    POLICIES: ClassVar = {"greedy": "the mean of w", "sample": "one draw of w per episode"}
    NUMBERS: ClassVar = ("loss/reward", "loss/successor", "loss/q", "train/q", "train/gradient_norm")
    COUNTERS: ClassVar = (*TransitionAgent.COUNTERS, "next_draw")
    config: SuccessorConfig
    networks: Networks
    replay: RecentReplay
    actors: list[ThompsonActor]

    def __init__(self, config: SuccessorConfig, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        seeds = self.seeds(2**17, 4)
        self.rng = np.random.default_rng(seeds[0])  # batches
        self.generator = torch.Generator(self.device).manual_seed(seeds[1])  # draws of w
        self.networks = self.initialised(lambda: Networks(config.network, spec, config.replay.stack), seeds[2])
        self.evaluation_seed = seeds[3]
        self.posterior = RewardPosterior(config.posterior, config.network.features, self.device)
        self.perturbations = torch.zeros(config.num_envs, config.network.features, device=self.device)
        self.actors = self._training_actors(seeds[4:])
        self.gradient_step = make_step(
            self.networks, self.posterior.root, self.optimiser, config.learning, self.execution
        )
        self.replay = self.stored(RecentReplay)
        self.next_draw = config.exploration.random_steps  # step of the next draw
        self.absorbed = np.zeros(config.num_envs, np.int64)  # slots of each environment that the posterior knows

    def _training_actors(self, seeds: list[int]) -> list[ThompsonActor]:
        config, group = self.config, self.config.num_envs // self.config.env_groups
        noise = config.posterior.beta if config.posterior.action_noise else 0.0
        return [
            ThompsonActor(
                self.execution.captured("act", make_choice(self.networks, self.execution)),
                Stacks(group, config.replay.stack, self.spec, self.device),
                self.perturbations[i * group : (i + 1) * group],
                self.spec.num_actions,
                lambda: config.random_share(self.step),
                noise,
                np.random.default_rng(seed),
            )
            for i, seed in enumerate(seeds)
        ]

    def observe(self, first: int, actions: NDArray[np.int64], step: Step) -> None:
        """Keep the transitions of a step; what random actions led to is not for the posterior."""
        super().observe(first, actions, step)
        if self.step <= self.config.exploration.random_steps:
            part = slice(first, first + len(actions))
            self.absorbed[part] = self.replay.complete()[part]

    def update_due(self) -> bool:
        """Whether a draw or a gradient step is due."""
        return self.step >= self.next_draw or super().update_due()

    def _learn(self, phase: Phases) -> None:
        if self.step >= self.next_draw:
            with phase("posterior"):
                self._draw()
        if super().update_due():
            super()._learn(phase)

    @torch.no_grad()
    def _draw(self) -> None:
        """Take in what was seen since the last draw, with the features of today; then draw w for each environment."""
        seen, rows = self.replay.since(self.absorbed), self.execution.chunk_rows
        parts = [slots for slots in np.split(seen, range(rows, len(seen), rows)) if len(slots)]
        if parts:
            self.posterior.absorb(torch.cat([self._local(slots) for slots in parts]))
        self.absorbed = self.replay.complete()
        self.perturbations.copy_(self.posterior.draw(len(self.perturbations), self.generator))
        period = self.config.exploration.draw_every * self.config.num_envs
        start = self.config.exploration.random_steps
        self.next_draw = start + ((self.step - start) // period + 1) * period

    def _local(self, slots: NDArray[np.int64]) -> Tensor:
        """phi(s, a) (n, k) of stored transitions."""
        batch = self.replay.transitions_at(slots)
        with self.execution.autocast():
            online = self.networks.online
            return online.local_of(online.hidden(batch.frames[:, :-1]), batch.actions)

    def inputs(self) -> Sequence[Tensor]:
        """Transitions, and noise by which next actions are drawn."""
        shape = noise_shape(self.config.learning, self.config.network.features, self.spec.num_actions)
        noise = torch.randn(shape, device=self.device, generator=self.generator)
        return *self.replay.sample(self.config.learning.batch, self.rng)[:4], noise

    def undoing(self) -> Callable[[bool], None]:
        """Of a draw the posterior is kept, too."""
        undo_learning, generator = super().undoing(), self.generator.get_state()
        next_draw, absorbed = self.next_draw, self.absorbed
        posterior, perturbations = self.posterior.state_dict(), self.perturbations.clone()

        def undo(streams: bool) -> None:
            undo_learning(streams)
            if streams:
                self.generator.set_state(generator)
                self.next_draw, self.absorbed = next_draw, absorbed
                self.posterior.load_state_dict(posterior)
                self.perturbations.copy_(perturbations)

        return undo

    def condition(self) -> Metrics:
        """How sure the regression is."""
        return {"posterior/sd": self.posterior.deviation()}

    def player(self, stream: int, policy: str | None = None, num_envs: int = 1, epsilon: float | None = None) -> Actor:
        """By the mean of w, or by draws of a stream of their own, one per episode; never with noise per action."""
        seed, redraw = self.evaluation_seed + stream, None
        if policy == "sample":
            generator = torch.Generator(self.device).manual_seed(seed)
            redraw = lambda count: self.posterior.draw(count, generator)  # noqa: E731
        actor = ThompsonActor(
            self.execution.kept("play", make_choice(self.networks, self.execution)),
            Stacks(num_envs, self.config.replay.stack, self.spec, self.device),
            self.perturbations.new_zeros(num_envs, self.perturbations.shape[1]),
            self.spec.num_actions,
            lambda: epsilon or 0.0,
            0.0,
            np.random.default_rng(seed),
            redraw,
        )
        actor.start(np.ones(num_envs, bool))
        return actor

    def description(self) -> dict[str, str]:
        """The posterior and the sizes of the network."""
        config, online = self.config, self.networks.online
        total, torso = (sum(p.numel() for p in part.parameters()) for part in (online, online.torso))
        norm = "all actions together" if config.network.joint_normalisation else "each action"
        return {
            "features": f"{config.network.features}, of norm 1 for {norm}",
            "posterior": f"beta {config.posterior.beta:g} (a standard deviation), a draw every "
            f"{config.exploration.draw_every} steps, next action by {config.learning.next_action} draws",
            "parameters": f"{total:,} (torso {torso:,}), and as many in the target network",
        }

    @classmethod
    def workload(cls, config: SuccessorConfig, spec: EnvSpec) -> SuccessorWorkload:
        """What a gradient step, a draw and an action do."""
        return SuccessorWorkload(config, spec)

    def state_dict(self) -> dict[str, Any]:
        """The posterior and its draws besides."""
        return super().state_dict() | {
            "posterior": self.posterior.state_dict(),
            "perturbations": self.perturbations,
            "absorbed": torch.from_numpy(self.absorbed),
            "draws": {"device": self.device.type, "generator": self.generator.get_state()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        super().load_state_dict(state)
        self.posterior.load_state_dict(state["posterior"])
        self.perturbations.copy_(state["perturbations"])
        self.absorbed = state["absorbed"].cpu().numpy().copy()
        if state["draws"]["device"] == self.device.type:  # generators of CPU and GPU have different states
            self.generator.set_state(state["draws"]["generator"].cpu())
