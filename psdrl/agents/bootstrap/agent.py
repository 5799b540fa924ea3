"""The agent: Bootstrapped DQN with randomised priors (Osband et al. 2018)."""

import json
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psdrl.agents.bootstrap.acting import HeadActor, VoteActor
from psdrl.agents.bootstrap.learning import make_optimiser, make_step
from psdrl.agents.bootstrap.network import Networks
from psdrl.agents.bootstrap.settings import BootstrapConfig
from psdrl.agents.bootstrap.work import BootstrapWorkload
from psdrl.agents.interface import Actor, Agent, Metrics
from psdrl.agents.stacks import TRANSFORMS, Stacks
from psdrl.envs.vector import EnvSpec, Step
from psdrl.errors import Diverged
from psdrl.kernels import triton_support
from psdrl.replay.frames import FrameReplay
from psdrl.runtime import profiling
from psdrl.runtime.device import is_gpu, resolve_device
from psdrl.runtime.execution import Execution, load_optimiser, optimiser_state
from psdrl.runtime.profiling import Phases

REPORT_EVERY = 500  # gradient steps: reading numbers back makes a GPU wait, and a line for each would be 475,000
COUNTERS = ("step", "updates", "episodes", "next_update", "next_target", "_summed")


class BootstrapAgent(Agent):
    """K value functions, each with a fixed random prior. One of them, drawn per episode, is acted on greedily; all of
    them learn from all episodes."""

    PHASES: ClassVar = {"learning": "double DQN of all heads"}
    POLICIES: ClassVar = {"vote": "what most heads prefer", "head": "one head per episode"}
    config: BootstrapConfig
    replay: FrameReplay
    actors: list[HeadActor]

    def __init__(self, config: BootstrapConfig, spec: EnvSpec) -> None:
        super().__init__()
        self.config, self.spec = config, spec
        self.device = resolve_device(config.device)
        self.execution = Execution.of(config, self.device)
        seeds = [
            int(s) >> 1 for s in np.random.SeedSequence([config.seed, 2**16]).generate_state(3 + config.env_groups)
        ]
        self.rng = np.random.default_rng(seeds[0])  # masks and batches
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeds[1])
            self.networks = Networks(config.network, spec, config.replay.stack).to(self.device)
        for network in (self.networks.online, self.networks.target, self.networks.prior):
            network.torso.bf16 = self.execution.precision == "mixed"
        self.evaluation_seed = seeds[2]
        group = config.num_envs // config.env_groups
        schedule = lambda: config.random_share(self.step)  # noqa: E731
        self.actors = [self._head_actor(group, seed, schedule) for seed in seeds[3:]]
        triton_support.missing()  # Adam imports Triton and breaks on a broken one; asking first hides that one from it
        self.optimiser = make_optimiser(self.networks, config.learning.learning_rate)
        self._gradient_step = make_step(self.networks, self.optimiser, config.learning, self.execution)
        self.replay = FrameReplay(
            config.replay.capacity,
            config.num_envs,
            spec.shape,
            spec.dtype,
            config.replay.stack,
            config.network.heads,
            self.device,
            config.replay.device,
        )
        self.next_update = max(config.exploration.random_steps, config.learning.every)  # step of the next gradient step
        self.next_target = config.learning.target_every  # step of the next copy into the target network
        self._sums = torch.zeros(4, device=self.device)  # of what gradient steps return, since the last report
        self._summed = 0
        self._phases: list[Phases] = []

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

    def begin(self, first: int, observations: NDArray) -> None:
        """Environments `first`, ... start their first episodes."""
        for i, observation in enumerate(observations, first):
            self.replay.start(i, observation)

    def observe(self, first: int, actions: NDArray[np.int64], step: Step) -> None:
        """Keep the transitions of a step, each with a mask that says which heads may learn from it."""
        config = self.config
        rewards = TRANSFORMS[config.reward_transform](step.reward)
        ends = step.terminated | step.truncated if config.replay.time_limit_terminates else step.terminated
        for i, observation in enumerate(step.observation):
            if step.failed[i]:
                self.replay.discard(first + i)
            if step.started[i]:
                self.replay.start(first + i, observation)
            else:
                mask = self.rng.random(config.network.heads) < config.learning.mask_probability
                self.replay.add(first + i, int(actions[i]), float(rewards[i]), observation, bool(ends[i]), mask)

    def update_due(self) -> bool:
        """Whether a gradient step is due: after the random steps, every so many steps."""
        return self.step >= self.next_update and self.replay.transitions > 0

    def update(self, on_phase: Callable[[str], None] = lambda name: None) -> Metrics:
        """The gradient steps that are due, more than one if many environments step together; now and then a report."""
        learning = self.config.learning
        if self.step >= self.next_target:
            self.networks.update_target()
            self.next_target = (self.step // learning.target_every + 1) * learning.target_every
        phase = Phases(profiling.device_for(self.device), self.PHASES, on_phase)
        run = self.execution.kept("learning", self._gradient_step, self._changes)
        with phase("learning"):
            while self.next_update <= self.step:
                self._sums += torch.stack(run(*self.replay.sample(learning.batch, self.rng)))
                self._summed += 1
                self.next_update += learning.every
        self.updates += 1
        self._phases.append(phase)
        if self.device.type == "cpu" or self._summed >= REPORT_EVERY:  # reading makes a GPU wait
            self._check_finite()
        return self._report() if self._summed >= REPORT_EVERY else {}

    def _check_finite(self) -> None:
        """Raise if a gradient step was rejected since the last look; it has changed nothing."""
        rejected = int(self._sums[3])
        if rejected:
            self._sums[3] = 0
            self._summed -= rejected
            raise Diverged("learning", f"the gradient of {rejected} gradient steps is not finite")

    def undoing(self) -> Callable[[bool], None]:
        """A gradient step that is not finite changes nothing: only random stream and counters are kept."""
        rng, counters = self.rng.bit_generator.state, (self.next_update, self.updates)

        def undo(streams: bool) -> None:
            if streams:
                self.rng.bit_generator.state = rng
                self.next_update, self.updates = counters

        return undo

    def _changes(self) -> list[Tensor]:
        """What a gradient step changes."""
        return optimiser_state(self.networks.online, self.optimiser)

    def _report(self) -> Metrics:
        """Means over the gradient steps since the last report, and the seconds they took."""
        means = (self._sums[:3] / self._summed).tolist()
        seconds = sum(phase.seconds()["learning"] for phase in self._phases)
        self._sums.zero_()
        self._summed, self._phases = 0, []
        names = ("loss/heads", "train/q", "train/gradient_norm")
        share = {"train/random_share": self.config.random_share(self.step)}
        return dict(zip(names, means, strict=True)) | share | {"time/learning": seconds}

    def player(self, stream: int, policy: str | None = None, num_envs: int = 1, epsilon: float | None = None) -> Actor:
        """A vote of all heads, or heads of a stream of their own; neither is random without an epsilon."""
        seed = self.evaluation_seed + stream
        if policy == "head":
            actor = self._head_actor(num_envs, seed, lambda: epsilon or 0.0)
            actor.start(np.ones(num_envs, bool))
            return actor
        stacks = Stacks(num_envs, self.config.replay.stack, self.spec, self.device)
        return VoteActor(
            self.networks, stacks, self.execution, self.spec.num_actions, epsilon or 0.0, np.random.default_rng(seed)
        )

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

    @property
    def fallbacks(self) -> list[str]:
        """Steps that could not be captured."""
        return [*super().fallbacks, *(f"{name} ran without a CUDA graph" for name in self.execution.failures)]

    def state_dict(self) -> dict[str, Any]:
        """Everything but the replay buffer and the running episodes."""
        return {
            "networks": self.networks.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "counters": {name: getattr(self, name) for name in COUNTERS},
            "sums": self._sums,
            "random": [json.dumps(rng.bit_generator.state) for rng in self._streams()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.execution.forget()  # the optimiser's state moves
        self.networks.load_state_dict(state["networks"])
        load_optimiser(self.optimiser, state["optimiser"])
        for group in self.optimiser.param_groups:
            group["capturable"] = is_gpu(self.device)  # not what the checkpoint's device wanted
        for name, value in state["counters"].items():
            setattr(self, name, value)
        self._sums.copy_(state["sums"])
        for rng, stored in zip(self._streams(), state["random"], strict=True):
            rng.bit_generator.state = json.loads(stored)

    def _streams(self) -> list[np.random.Generator]:
        return [self.rng, *(actor.rng for actor in self.actors)]
