"""The agent: DreamerV2 (Hafner et al. 2021)."""

import json
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psdrl.agents.dreamer.acting import LatentActor, Policy, make_decision
from psdrl.agents.dreamer.learning import BEHAVIOUR_NUMBERS, MODEL_NUMBERS, make_optimisers, make_steps
from psdrl.agents.dreamer.networks import ImageNetwork, Networks
from psdrl.agents.dreamer.sequences import Moments, draw_sequences, enough
from psdrl.agents.dreamer.settings import DreamerConfig
from psdrl.agents.dreamer.work import DreamerWorkload
from psdrl.agents.interface import Actor, Agent, Metrics
from psdrl.agents.stacks import TRANSFORMS
from psdrl.envs.vector import EnvSpec, Step
from psdrl.errors import Diverged
from psdrl.kernels import triton_support
from psdrl.replay.episodes import Replay
from psdrl.runtime import profiling
from psdrl.runtime.device import is_gpu, resolve_device
from psdrl.runtime.execution import Execution, load_optimiser, optimiser_state
from psdrl.runtime.profiling import Phases

REPORT_EVERY = 100  # updates: a line for each would be 119,000 in the paper's runs
NUMBERS = (*MODEL_NUMBERS, *BEHAVIOUR_NUMBERS)
COUNTERS = ("step", "updates", "episodes", "next_update", "learned", "_summed")


class DreamerAgent(Agent):
    """A world model learned from sequences, and an actor and a critic that learn from what it imagines."""

    PHASES: ClassVar = {"model": "world model", "behaviour": "imagination, actor and critic"}
    POLICIES: ClassVar = {"mode": "the most likely action", "sample": "actions drawn as in training"}
    config: DreamerConfig
    replay: Replay
    actors: list[LatentActor]

    def __init__(self, config: DreamerConfig, spec: EnvSpec) -> None:
        super().__init__()
        self.config, self.spec = config, spec
        self.device = resolve_device(config.device)
        self.execution = Execution.of(config, self.device)
        seeds = [
            int(s) >> 1 for s in np.random.SeedSequence([config.seed, 2**16]).generate_state(4 + config.env_groups)
        ]
        self.rng = np.random.default_rng(seeds[0])  # sequences
        self.generator = torch.Generator(self.device).manual_seed(seeds[1])  # noise of latent states and actions
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeds[2])
            self.networks = Networks(config, spec).to(self.device)
        for network in self.networks.modules():
            if isinstance(network, ImageNetwork):
                network.bf16 = self.execution.precision == "mixed"
        self.evaluation_seed = seeds[3]
        group = config.num_envs // config.env_groups
        self.actors = [self._actor(group, seed) for seed in seeds[4:]]
        triton_support.missing()  # Adam imports Triton and breaks on a broken one; asking first hides that one from it
        self.optimisers = make_optimisers(self.networks, config)
        self._steps = make_steps(self.networks, self.optimisers, config, self.execution)
        self.replay = Replay(
            config.replay.capacity, config.num_envs, spec.shape, spec.dtype, self.device, config.replay.device
        )
        self.moments = Moments(spec.shape) if config.model.standardise and spec.kind == "vector" else None
        self.next_update = max(config.exploration.random_steps, config.learning.every)  # step of the next one
        self.learned = 0  # gradient steps of each network; several in an update if many environments step together
        self._sums = torch.zeros(len(NUMBERS), device=self.device)  # of what they return, since the last report
        self._summed = 0
        self._phases: list[Phases] = []
        self._kept: list[Tensor] = []  # see `undoing`

    def _actor(self, num_envs: int, seed: int) -> LatentActor:
        """Samples actions, after the random steps."""

        def share() -> float:
            return float(self.step < self.config.exploration.random_steps)

        decide = self.execution.captured("act", make_decision(self.networks, self.execution, "sample"))
        rng = np.random.default_rng(seed)
        return LatentActor(self.networks, num_envs, self.spec.num_actions, share, rng, decide)

    def begin(self, first: int, observations: NDArray) -> None:
        """Environments `first`, ... start their first episodes."""
        self._see(observations)
        for i, observation in enumerate(observations, first):
            self.replay.start(i, observation)

    def observe(self, first: int, actions: NDArray[np.int64], step: Step) -> None:
        """Keep the transitions of a step."""
        self._see(step.observation)
        rewards = TRANSFORMS[self.config.reward_transform](step.reward)
        for i, observation in enumerate(step.observation):
            if step.started[i]:
                self.replay.start(first + i, observation)
            else:
                ends = bool(step.terminated[i]), bool(step.truncated[i])
                self.replay.add(first + i, int(actions[i]), float(rewards[i]), observation, *ends)

    def _see(self, observations: NDArray) -> None:
        if self.moments is not None:
            self.moments.see(observations)

    def update_due(self) -> bool:
        """Whether an update is due: after the random steps, every so many steps; while there is no sequence to learn
        from, it is put off by as many."""
        learning, due = self.config.learning, self.step >= self.next_update
        if due and not enough(self.replay, learning.length, self.config.replay.sequences):
            self.next_update = self.step + learning.every
            return False
        return due

    def update(self, on_phase: Callable[[str], None] = lambda name: None) -> Metrics:
        """The gradient steps that are due, more than one if many environments step together; now and then a report."""
        learning = self.config.learning
        self._renew_scales()
        while self.next_update <= self.step:
            phase = Phases(profiling.device_for(self.device), self.PHASES, on_phase)
            self._sums += self._learn(phase)
            self._summed += 1
            self.learned += 1
            if self.learned % self.config.behaviour.target_every == 0:
                self.networks.update_target()
            self.next_update += learning.every
            self._phases.append(phase)
        self.updates += 1
        return self._report() if self._summed >= REPORT_EVERY else {}

    def _learn(self, phase: Phases) -> Tensor:
        """One gradient step of each network: NUMBERS. Raises Diverged if one of them is not finite."""
        learning, behaviour, groups = self.config.learning, self.config.behaviour, self.config.model.latents
        model, imagination = (
            self.execution.kept(name, step, self._changes) for name, step in zip(self.PHASES, self._steps, strict=True)
        )
        with phase("model"):
            batch = draw_sequences(self.replay, learning.batch, learning.length, self.config.replay.sequences, self.rng)
            hidden, sample, model_numbers = model(*batch, self._noise(learning.length, learning.batch, groups))
        with phase("behaviour"):
            rows = len(hidden)
            noise = self._noise(behaviour.horizon, rows), self._noise(behaviour.horizon, rows, groups)
            (numbers,) = imagination(hidden, sample, batch.terminated.flatten(), *noise)
        found = {"model": model_numbers, "behaviour": numbers}
        bad = torch.stack([x.isfinite().logical_not().any() for x in found.values()]).tolist()
        for name, diverged in zip(found, bad, strict=True):
            if diverged:
                raise Diverged(name, "a loss or the norm of a gradient is not finite")
        return torch.cat([*found.values()])

    def _noise(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device)

    def _renew_scales(self) -> None:
        """Standardise by all observations so far."""
        if self.moments is not None:
            world = self.networks.world
            world.mean.copy_(torch.from_numpy(self.moments.mean))
            world.deviation.copy_(torch.from_numpy(self.moments.deviation()))

    def _changes(self) -> list[Tensor]:
        """What gradient steps change."""
        parts = {"model": self.networks.world, "actor": self.networks.actor, "critic": self.networks.critic}
        return [x for name, part in parts.items() for x in optimiser_state(part, self.optimisers[name])]

    def undoing(self) -> Callable[[bool], None]:
        """Keep networks, optimisers and sums in memory that is used again; see `Agent.undoing`."""
        changed = [*self._changes(), *self.networks.slow_critic.parameters(), *self.networks.buffers(), self._sums]
        if not self._kept:
            self._kept = [torch.empty_like(x) for x in changed]
        with torch.no_grad():
            torch._foreach_copy_(self._kept, changed)
        rng, generator = self.rng.bit_generator.state, self.generator.get_state()
        counters = {name: getattr(self, name) for name in COUNTERS}
        phases = len(self._phases)

        def undo(streams: bool) -> None:
            with torch.no_grad():
                torch._foreach_copy_(changed, self._kept)
            del self._phases[phases:]
            for name, value in counters.items():
                setattr(self, name, value)
            if streams:
                self.rng.bit_generator.state = rng
                self.generator.set_state(generator)
            else:
                self.next_update = self.step + self.config.learning.every

        return undo

    def _report(self) -> Metrics:
        """Means over the gradient steps since the last report, and the seconds they took."""
        means = (self._sums / self._summed).tolist()
        seconds = [phase.seconds() for phase in self._phases]
        times = {f"time/{name}": sum(one[name] for one in seconds) for name in self.PHASES}
        self._sums.zero_()
        self._summed, self._phases = 0, []
        return dict(zip(NUMBERS, means, strict=True)) | times

    def player(self, stream: int, policy: str | None = None, num_envs: int = 1, epsilon: float | None = None) -> Actor:
        """The most likely actions, or drawn ones; none is random without an epsilon."""
        kind: Policy = "sample" if policy == "sample" else "mode"
        decide = self.execution.kept(f"play by {kind}", make_decision(self.networks, self.execution, kind))
        rng = np.random.default_rng(self.evaluation_seed + stream)
        return LatentActor(self.networks, num_envs, self.spec.num_actions, lambda: epsilon or 0.0, rng, decide)

    def description(self) -> dict[str, str]:
        """Latent states, imagination and sizes of the networks."""
        config, networks = self.config, self.networks
        parts = {"world model": networks.world, "actor": networks.actor, "critic": networks.critic}
        counts = {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}
        listed = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        learning, horizon = config.learning, config.behaviour.horizon
        return {
            "latents": f"{config.model.latents} x {config.model.classes} classes, {config.model.recurrent} GRU units",
            "imagination": f"{horizon} steps from {learning.batch} x {learning.length} states every {learning.every}",
            "parameters": f"{sum(counts.values()):,} ({listed})",
        }

    @classmethod
    def workload(cls, config: DreamerConfig, spec: EnvSpec) -> DreamerWorkload:
        """What an update and an action do."""
        return DreamerWorkload(config, spec)

    def state_dict(self) -> dict[str, Any]:
        """Everything but the replay buffer and the running episodes."""
        return {
            "networks": self.networks.state_dict(),
            "optimisers": {name: optimiser.state_dict() for name, optimiser in self.optimisers.items()},
            "counters": {name: getattr(self, name) for name in COUNTERS},
            "sums": self._sums,
            "moments": self.moments.state_dict() if self.moments else {},
            "random": {
                "device": self.device.type,
                "generator": self.generator.get_state(),
                "streams": [json.dumps(rng.bit_generator.state) for rng in self._streams()],
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.execution.forget()  # the optimisers' state moves
        self._kept = []
        self.networks.load_state_dict(state["networks"])
        for name, optimiser in self.optimisers.items():
            load_optimiser(optimiser, state["optimisers"][name])
            for group in optimiser.param_groups:
                group["capturable"] = is_gpu(self.device)  # not what the checkpoint's device wanted
        for name, value in state["counters"].items():
            setattr(self, name, value)
        self._sums.copy_(state["sums"])
        if self.moments is not None:
            self.moments.load_state_dict(state["moments"])
        random = state["random"]
        if random["device"] == self.device.type:  # generators of CPU and GPU have different states
            self.generator.set_state(random["generator"].cpu())
        for rng, stored in zip(self._streams(), random["streams"], strict=True):
            rng.bit_generator.state = json.loads(stored)

    def _streams(self) -> list[np.random.Generator]:
        return [self.rng, *(actor.rng for actor in self.actors)]
