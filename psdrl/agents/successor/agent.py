"""The agent: Successor Uncertainties (Janz et al. 2019)."""

import json
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psdrl.agents.interface import Actor, Agent, Metrics
from psdrl.agents.stacks import TRANSFORMS, Stacks
from psdrl.agents.successor.acting import ThompsonActor, make_choice
from psdrl.agents.successor.learning import make_optimiser, make_step, noise_shape
from psdrl.agents.successor.network import Networks
from psdrl.agents.successor.posterior import RewardPosterior
from psdrl.agents.successor.recent import RecentReplay
from psdrl.agents.successor.settings import SuccessorConfig
from psdrl.agents.successor.work import SuccessorWorkload
from psdrl.envs.vector import EnvSpec, Step
from psdrl.errors import Diverged
from psdrl.kernels import triton_support
from psdrl.runtime import profiling
from psdrl.runtime.device import is_gpu, resolve_device
from psdrl.runtime.execution import Execution, load_optimiser, optimiser_state
from psdrl.runtime.profiling import Phases

REPORT_EVERY = 500  # gradient steps: reading numbers back makes a GPU wait, and a line for each would be 450,000
COUNTERS = ("step", "updates", "episodes", "next_update", "next_target", "next_draw", "_summed")
NAMES = ("loss/reward", "loss/successor", "loss/q", "train/q", "train/gradient_norm")


class SuccessorAgent(Agent):
    """Rewards are linear in local features phi, values in successor features psi with the same weights w. Uncertainty
    about w is uncertainty about values: w is drawn now and then, and acted on greedily."""

    PHASES: ClassVar = {"posterior": "regression on phi, draws of w", "learning": "reward, successor features, Q"}
    POLICIES: ClassVar = {"greedy": "the mean of w", "sample": "one draw of w per episode"}
    config: SuccessorConfig
    replay: RecentReplay
    actors: list[ThompsonActor]

    def __init__(self, config: SuccessorConfig, spec: EnvSpec) -> None:
        super().__init__()
        self.config, self.spec = config, spec
        self.device = resolve_device(config.device)
        self.execution = Execution.of(config, self.device)
        sequence = np.random.SeedSequence([config.seed, 2**17])
        seeds = [int(s) >> 1 for s in sequence.generate_state(4 + config.env_groups)]
        self.rng = np.random.default_rng(seeds[0])  # batches
        self.generator = torch.Generator(self.device).manual_seed(seeds[1])  # draws of w
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeds[2])
            self.networks = Networks(config.network, spec, config.replay.stack).to(self.device)
        for network in (self.networks.online, self.networks.target):
            network.torso.bf16 = self.execution.precision == "mixed"
        self.evaluation_seed = seeds[3]
        self.posterior = RewardPosterior(config.posterior, config.network.features, self.device)
        self.perturbations = torch.zeros(config.num_envs, config.network.features, device=self.device)
        self.actors = self._training_actors(seeds[4:])
        triton_support.missing()  # Adam imports Triton and breaks on a broken one; asking first hides that one from it
        self.optimiser = make_optimiser(self.networks.online, config.learning.learning_rate)
        self._gradient_step = make_step(
            self.networks, self.posterior.root, self.optimiser, config.learning, self.execution
        )
        replay = config.replay
        self.replay = RecentReplay(
            replay.capacity, config.num_envs, spec.shape, spec.dtype, replay.stack, 0, self.device, replay.device
        )
        self.next_update = max(config.exploration.random_steps, config.learning.every)  # step of the next gradient step
        self.next_target = config.learning.target_every  # step of the next copy into the target network
        self.next_draw = config.exploration.random_steps  # step of the next draw
        self.absorbed = np.zeros(config.num_envs, np.int64)  # slots of each environment that the posterior knows
        self._sums = torch.zeros(len(NAMES) + 1, device=self.device)  # of gradient steps, since the last report
        self._summed = 0
        self._phases: list[Phases] = []

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

    def begin(self, first: int, observations: NDArray) -> None:
        """Environments `first`, ... start their first episodes."""
        for i, observation in enumerate(observations, first):
            self.replay.start(i, observation)

    def observe(self, first: int, actions: NDArray[np.int64], step: Step) -> None:
        """Keep the transitions of a step; what random actions led to is not for the posterior."""
        config = self.config
        rewards = TRANSFORMS[config.reward_transform](step.reward)
        ends = step.terminated | step.truncated if config.replay.time_limit_terminates else step.terminated
        for i, observation in enumerate(step.observation):
            if step.failed[i]:
                self.replay.discard(first + i)
            if step.started[i]:
                self.replay.start(first + i, observation)
            else:
                self.replay.add(first + i, int(actions[i]), float(rewards[i]), observation, bool(ends[i]))
        if self.step <= config.exploration.random_steps:
            part = slice(first, first + len(actions))
            self.absorbed[part] = self.replay.complete()[part]

    def update_due(self) -> bool:
        """Whether a draw or a gradient step is due: after the random steps, every so many steps."""
        return self.step >= self.next_draw or self._learning_due()

    def _learning_due(self) -> bool:
        return self.step >= self.next_update and self.replay.transitions > 0

    def update(self, on_phase: Callable[[str], None] = lambda name: None) -> Metrics:
        """The draw and the gradient steps that are due, more than one if many environments step together; now and then
        a report."""
        phase = Phases(profiling.device_for(self.device), self.PHASES, on_phase)
        if self.step >= self.next_draw:
            with phase("posterior"):
                self._draw()
        if self._learning_due():
            with phase("learning"):
                self._learn()
        self.updates += 1
        self._phases.append(phase)
        if self.device.type == "cpu" or self._summed >= REPORT_EVERY:  # reading makes a GPU wait
            self._check_finite()
        return self._report() if self._summed >= REPORT_EVERY else {}

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

    def _learn(self) -> None:
        learning = self.config.learning
        if self.step >= self.next_target:
            self.networks.update_target()
            self.next_target = (self.step // learning.target_every + 1) * learning.target_every
        run = self.execution.kept("learning", self._gradient_step, self._changes)
        shape = noise_shape(learning, self.config.network.features, self.spec.num_actions)
        while self.next_update <= self.step:
            noise = torch.randn(shape, device=self.device, generator=self.generator)
            self._sums += torch.stack(run(*self.replay.sample(learning.batch, self.rng)[:4], noise))
            self._summed += 1
            self.next_update += learning.every

    def _changes(self) -> list[Tensor]:
        """What a gradient step changes."""
        return optimiser_state(self.networks.online, self.optimiser)

    def _check_finite(self) -> None:
        """Raise if a gradient step was rejected since the last look; it has changed nothing."""
        rejected = int(self._sums[-1])
        if rejected:
            self._sums[-1] = 0
            self._summed -= rejected
            raise Diverged("learning", f"the gradient of {rejected} gradient steps is not finite")

    def undoing(self) -> Callable[[bool], None]:
        """A gradient step that is not finite changes nothing: random streams, counters and the posterior are kept."""
        rng, generator = self.rng.bit_generator.state, self.generator.get_state()
        counters, absorbed = (self.next_update, self.updates, self.next_draw), self.absorbed
        posterior, perturbations = self.posterior.state_dict(), self.perturbations.clone()

        def undo(streams: bool) -> None:
            if streams:
                self.rng.bit_generator.state = rng
                self.generator.set_state(generator)
                (self.next_update, self.updates, self.next_draw), self.absorbed = counters, absorbed
                self.posterior.load_state_dict(posterior)
                self.perturbations.copy_(perturbations)

        return undo

    def _report(self) -> Metrics:
        """Means over the gradient steps since the last report, and the seconds that the phases took."""
        means = (self._sums[:-1] / self._summed).tolist()
        seconds = dict.fromkeys(self.PHASES, 0.0)
        for phase in self._phases:
            for name, took in phase.seconds().items():
                seconds[name] += took
        self._sums.zero_()
        self._summed, self._phases = 0, []
        found = dict(zip(NAMES, means, strict=True)) | {"posterior/sd": self.posterior.deviation()}
        return found | {f"time/{name}": took for name, took in seconds.items()}

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

    @property
    def fallbacks(self) -> list[str]:
        """Steps that could not be captured."""
        return [*super().fallbacks, *(f"{name} ran without a CUDA graph" for name in self.execution.failures)]

    def state_dict(self) -> dict[str, Any]:
        """Everything but the replay buffer and the running episodes."""
        return {
            "networks": self.networks.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "posterior": self.posterior.state_dict(),
            "perturbations": self.perturbations,
            "absorbed": torch.from_numpy(self.absorbed),
            "counters": {name: getattr(self, name) for name in COUNTERS},
            "sums": self._sums,
            "random": [json.dumps(rng.bit_generator.state) for rng in self._streams()],
            "draws": {"device": self.device.type, "generator": self.generator.get_state()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.execution.forget()  # the optimiser's state moves
        self.networks.load_state_dict(state["networks"])
        load_optimiser(self.optimiser, state["optimiser"])
        for group in self.optimiser.param_groups:
            group["capturable"] = is_gpu(self.device)  # not what the checkpoint's device wanted
        self.posterior.load_state_dict(state["posterior"])
        self.perturbations.copy_(state["perturbations"])
        self.absorbed = state["absorbed"].cpu().numpy().copy()
        for name, value in state["counters"].items():
            setattr(self, name, value)
        self._sums.copy_(state["sums"])
        for rng, stored in zip(self._streams(), state["random"], strict=True):
            rng.bit_generator.state = json.loads(stored)
        if state["draws"]["device"] == self.device.type:  # generators of CPU and GPU have different states
            self.generator.set_state(state["draws"]["generator"].cpu())

    def _streams(self) -> list[np.random.Generator]:
        return [self.rng, *(actor.rng for actor in self.actors)]
