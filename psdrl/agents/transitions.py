"""What agents share that learn from single transitions: a gradient step every so many steps, after a phase of random
actions, and a target network that follows."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from psdrl.agents.interface import Agent, Metrics
from psdrl.agents.stacks import TRANSFORMS, StackActor, TargetNetworks, Torso, TorsoSizes
from psdrl.config import Config, at_least, positive
from psdrl.envs.vector import EnvSpec, Step
from psdrl.errors import Diverged, UserError
from psdrl.kernels import triton_support
from psdrl.replay.frames import FrameReplay
from psdrl.runtime import graphs, profiling
from psdrl.runtime.device import is_gpu, resolve_device
from psdrl.runtime.execution import Execution, load_optimiser, optimiser_state, with_state
from psdrl.runtime.profiling import Phases

REPORT_EVERY = 500  # gradient steps: reading numbers back makes a GPU wait, and a line for each would be 475,000
AnyNetworks = TypeVar("AnyNetworks", bound=TargetNetworks)
AnyReplay = TypeVar("AnyReplay", bound=FrameReplay)


@dataclass(frozen=True)
class GradientConfig:
    """Gradient steps on transitions; each agent has defaults of its own."""

    every: int
    batch: int
    learning_rate: float
    discount: float
    clip: float
    target_every: int


@dataclass(frozen=True)
class FrameReplayConfig:
    """Replay of single transitions."""

    capacity: int = 1_000_000
    """Transitions; the oldest leave first. [released]"""
    stack: int = 4
    """Frames that the networks see, zeros before an episode's first. [released]"""
    device: Literal["auto", "device", "host", "pinned"] = "auto"
    """Where the frames lie: on the run's device, or in (pinned) host memory, from where each batch is copied; auto: on
    the device if they take less than a quarter of its free memory. On a CPU all are the same. [ours]"""
    time_limit_terminates: bool = False
    """Store a time limit as a termination, as B+P's released code does. [ours: truncation is not termination]"""


class Exploration(Protocol):
    """What learning needs of an agent's exploration."""

    @property
    def random_steps(self) -> int:
        """Steps of uniformly random actions before learning starts."""


class TransitionConfig(Config):
    """The settings that such an agent has, whatever others; its own class declares them with their defaults."""

    reward_transform: Literal["sign", "tanh", "none"]
    network: TorsoSizes
    learning: GradientConfig
    replay: FrameReplayConfig
    exploration: Exploration

    def random_share(self, step: int) -> float:
        """Probability of a random action at this step."""
        return float(step < self.exploration.random_steps)

    def check(self) -> None:
        """Refuse what cannot work."""
        super().check()
        at_least(self, _MINIMA)
        positive(self, ("learning.learning_rate", "learning.clip"))
        if not 0 <= self.learning.discount < 1:
            raise UserError(f"--learning.discount is {self.learning.discount} but must lie in [0, 1).")
        network = self.network
        if len({len(network.channels), len(network.kernels), len(network.strides)}) != 1:
            raise UserError("--network.channels, .kernels and .strides must have equal lengths.")
        if min((*network.channels, *network.kernels, *network.strides, *network.torso), default=1) < 1:
            raise UserError("--network.channels, .kernels, .strides and .torso must be positive.")


_MINIMA = {
    "network.grid_channels": 0,
    "learning.every": 1,
    "learning.batch": 1,
    "learning.target_every": 1,
    "replay.capacity": 1,
    "replay.stack": 1,
    "exploration.random_steps": 0,
}


def make_optimiser(network: nn.Module, learning_rate: float) -> torch.optim.Adam:
    """Adam on the trained network."""
    parameters = list(network.parameters())
    return with_state(torch.optim.Adam(parameters, learning_rate, fused=True, capturable=is_gpu(parameters[0].device)))


def descend(
    optimiser: torch.optim.Optimizer, parameters: Sequence[Tensor], clip: float, numbers: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Clip the gradient and step: the numbers, the norm of the gradient, 0; or zeros and 1 where the gradient is not
    finite: nothing is changed then."""
    norm = nn.utils.clip_grad_norm_(parameters, clip)
    rejected = (~torch.isfinite(norm)).float()
    optimiser.found_inf = rejected  # type: ignore[attr-defined]  # where it is 1, Adam does nothing
    optimiser.step()
    found = torch.stack([*(x.detach().to(norm.dtype) for x in numbers), norm])
    return (*torch.where(rejected > 0, 0, found), rejected)


class TransitionAgent(Agent):
    """Such an agent. Its own class makes `rng`, `networks`, `replay`, `actors` and `gradient_step`, and says what
    `inputs` a gradient step has."""

    NUMBERS: ClassVar[tuple[str, ...]]  # what a gradient step returns, by their names in the log
    COUNTERS: ClassVar[tuple[str, ...]] = ("step", "updates", "episodes", "next_update", "next_target", "_summed")
    config: TransitionConfig
    rng: np.random.Generator
    networks: TargetNetworks
    optimiser: torch.optim.Optimizer
    replay: FrameReplay
    actors: Sequence[StackActor]
    gradient_step: graphs.Step

    def __init__(self, config: TransitionConfig, spec: EnvSpec) -> None:
        super().__init__()
        self.config, self.spec = config, spec
        self.device = resolve_device(config.device)
        self.execution = Execution.of(config, self.device)
        self.next_update = max(config.exploration.random_steps, config.learning.every)  # step of the next gradient step
        self.next_target = config.learning.target_every  # step of the next copy into the target network
        self._sums = torch.zeros(len(self.NUMBERS) + 1, device=self.device)  # of gradient steps, since the last report
        self._summed = 0
        self._phases: list[Phases] = []

    def seeds(self, stream: int, own: int) -> list[int]:
        """So many for the agent, and one for each group of environments."""
        sequence = np.random.SeedSequence([self.config.seed, stream])
        return [int(s) >> 1 for s in sequence.generate_state(own + self.config.env_groups)]

    def initialised(self, build: Callable[[], AnyNetworks], seed: int) -> AnyNetworks:
        """What `build` makes, with initial weights of this seed, on the agent's device; and its optimiser."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            networks = build().to(self.device)
        for module in networks.modules():
            if isinstance(module, Torso):
                module.bf16 = self.execution.precision == "mixed"
        triton_support.missing()  # Adam imports Triton and breaks on a broken one; asking first hides that one from it
        self.optimiser = make_optimiser(networks.online, self.config.learning.learning_rate)
        return networks

    def stored(self, kind: type[AnyReplay], heads: int = 0) -> AnyReplay:
        """An empty replay buffer."""
        replay, spec = self.config.replay, self.spec
        shape = spec.shape, spec.dtype, replay.stack
        return kind(replay.capacity, self.config.num_envs, *shape, heads, self.device, replay.device)

    def inputs(self) -> Sequence[Tensor]:
        """Of a gradient step: transitions, and what else it needs."""
        return self.replay.sample(self.config.learning.batch, self.rng)

    def mask(self) -> NDArray[np.bool_] | None:
        """Which heads may learn from a transition; None: all."""
        return None

    def begin(self, first: int, observations: NDArray) -> None:
        """Environments `first`, ... start their first episodes."""
        for i, observation in enumerate(observations, first):
            self.replay.start(i, observation)

    def observe(self, first: int, actions: NDArray[np.int64], step: Step) -> None:
        """Keep the transitions of a step."""
        config = self.config
        rewards = TRANSFORMS[config.reward_transform](step.reward)
        ends = step.terminated | step.truncated if config.replay.time_limit_terminates else step.terminated
        for i, observation in enumerate(step.observation):
            if step.failed[i]:
                self.replay.discard(first + i)
            if step.started[i]:
                self.replay.start(first + i, observation)
            else:
                outcome = float(rewards[i]), observation, bool(ends[i])
                self.replay.add(first + i, int(actions[i]), *outcome, self.mask())

    def update_due(self) -> bool:
        """Whether a gradient step is due: after the random steps, every so many steps."""
        return self.step >= self.next_update and self.replay.transitions > 0

    def update(self, on_phase: Callable[[str], None] = lambda name: None) -> Metrics:
        """The gradient steps that are due, more than one if many environments step together; now and then a report."""
        phase = Phases(profiling.device_for(self.device), self.PHASES, on_phase)
        self._learn(phase)
        self.updates += 1
        self._phases.append(phase)
        if self.device.type == "cpu" or self._summed >= REPORT_EVERY:  # reading makes a GPU wait
            self._check_finite()
        return self._report() if self._summed >= REPORT_EVERY else {}

    def _learn(self, phase: Phases) -> None:
        learning = self.config.learning
        with phase("learning"):
            if self.step >= self.next_target:
                self.networks.update_target()
                self.next_target = (self.step // learning.target_every + 1) * learning.target_every
            run = self.execution.kept("learning", self.gradient_step, self._changes)
            while self.next_update <= self.step:
                self._sums += torch.stack(run(*self.inputs()))
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
        """A gradient step that is not finite changes nothing: only random stream and counters are kept."""
        rng, counters = self.rng.bit_generator.state, (self.next_update, self.updates)

        def undo(streams: bool) -> None:
            if streams:
                self.rng.bit_generator.state = rng
                self.next_update, self.updates = counters

        return undo

    def condition(self) -> Metrics:
        """What a report says of the agent besides its gradient steps."""
        return {}

    def _report(self) -> Metrics:
        """Means over the gradient steps since the last report, and the seconds that the phases took."""
        means = (self._sums[:-1] / self._summed).tolist()
        seconds = dict.fromkeys(self.PHASES, 0.0)
        for phase in self._phases:
            for name, took in phase.seconds().items():
                seconds[name] += took
        self._sums.zero_()
        self._summed, self._phases = 0, []
        found = dict(zip(self.NUMBERS, means, strict=True)) | self.condition()
        return found | {f"time/{name}": took for name, took in seconds.items()}

    def state_dict(self) -> dict[str, Any]:
        """Everything but the replay buffer and the running episodes."""
        return {
            "networks": self.networks.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "counters": {name: getattr(self, name) for name in self.COUNTERS},
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
