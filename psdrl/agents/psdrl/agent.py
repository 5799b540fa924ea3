"""The agent: Algorithm 1 of the paper."""

import json
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psdrl.agents.interface import Agent
from psdrl.agents.psdrl import learning, monitor, oracle, planning, posterior, statistics
from psdrl.agents.psdrl.acting import Actor
from psdrl.agents.psdrl.kernel_calls import check_kernels, serving
from psdrl.agents.psdrl.learning import make_optimisers
from psdrl.agents.psdrl.models import Models
from psdrl.agents.psdrl.posterior import Posterior
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.agents.psdrl.work import PsdrlWorkload
from psdrl.agents.psdrl.world_model import SampledModel
from psdrl.envs.vector import EnvSpec, Step
from psdrl.errors import Diverged
from psdrl.kernels import choice, triton_support
from psdrl.replay.episodes import Batch, Replay
from psdrl.runtime import profiling
from psdrl.runtime.device import resolve_device
from psdrl.runtime.execution import Execution, load_optimiser
from psdrl.runtime.profiling import Phases

TRANSFORMS: dict[str, Callable[[NDArray], NDArray]] = {
    "tanh": np.tanh,
    "none": lambda reward: reward,
    "clip": lambda reward: np.clip(reward, -1, 1),
}


def all_finite(x: Tensor) -> Tensor:
    """Whether all numbers are: 26 million in 4 ms, where torch.isfinite takes 105."""
    return torch.stack(x.aminmax()).isfinite().all() if x.numel() else torch.ones((), dtype=torch.bool, device=x.device)


class Path(NamedTuple):
    """The phases of an update; both paths compute the same numbers up to rounding."""

    train_autoencoder: Callable[..., learning.Losses]
    encode_buffer: Callable[..., learning.Latents]
    train_forward: Callable[..., learning.Losses]
    buffer_statistics: Callable[..., statistics.Statistics]
    train_value: Callable[..., learning.Losses]


PATHS = {
    "fast": Path(
        learning.train_autoencoder,
        learning.encode_buffer,
        learning.train_forward,
        statistics.buffer_statistics,
        planning.train_value,
    ),
    "plain": Path(
        oracle.train_autoencoder,
        oracle.EncodeOnUse,
        oracle.train_forward,
        oracle.buffer_statistics,
        oracle.train_value,
    ),
}


class PsdrlAgent(Agent):
    """Networks, optimisers, posterior, sampled model, replay and random states of one run."""

    PHASES: ClassVar = {  # with the lines of Algorithm 1 that they are
        "autoencoder": "autoencoder (line 6)",
        "encoding": "encoding (z = E(s))",
        "forward": "forward and termination (lines 7, 8)",
        "posterior": "posterior (line 9)",
        "sample": "sample (lines 10, 11)",
        "value": "value (line 12)",
    }
    POLICIES: ClassVar = {"sample": "the model sampled last", "mean": "the posterior mean"}
    config: PsdrlConfig
    replay: Replay
    actors: list[Actor]

    def __init__(self, config: PsdrlConfig, spec: EnvSpec, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config, self.spec, self.dtype = config, spec, dtype
        self.device = resolve_device(config.device)
        self.execution = Execution.of(config, self.device)
        seeds = [
            int(s) >> 1 for s in np.random.SeedSequence([config.seed, 2**16]).generate_state(4 + config.env_groups)
        ]
        self.rng = np.random.default_rng(seeds[0])  # batches and new networks
        self.generator = torch.Generator(self.device).manual_seed(seeds[1])  # draws from the posterior
        self.models = self.initialised(lambda: Models(config, spec), seeds[2])
        self.models.forward_model.flatten()
        group = config.num_envs // config.env_groups
        self.actors = [Actor(self, group, seed) for seed in (seeds[3], *seeds[5:])]  # one per group of environments
        self.evaluation_seed = seeds[4]
        triton_support.missing()  # Adam imports Triton and breaks on a broken one; asking first hides that one from it
        self.optimisers = make_optimisers(self.models, config)
        self.replay = Replay(
            config.replay.capacity, config.num_envs, spec.shape, spec.dtype, self.device, config.replay.device
        )
        self.posterior = Posterior(config, self.models.forward_model.statistics(self.device))
        self.model: SampledModel = self.draw()  # before the first update: from the prior
        self.next_update = 0  # step of the next update

    @property
    def actor(self) -> Actor:
        """Who plays the environments, or the first group of them."""
        return self.actors[0]

    def initialised(self, build: Callable[[], Any], seed: int) -> Any:
        """What `build` makes, with PyTorch's initialisation drawn from this seed, on the agent's device."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build().to(self.device, self.dtype)

    def update_due(self) -> bool:
        """Whether line 5 says to learn now: t has passed a multiple of m; before an episode has ended there is
        nothing to learn from, and the next multiple is awaited."""
        due = self.step >= self.next_update
        if due:
            period = self.config.update_period(self.step)
            self.next_update = (self.step // period + 1) * period
        return due and bool(self.replay.episodes)

    def update(self, on_phase: Callable[[str], None] = lambda name: None) -> dict[str, float]:
        """Lines 6 to 12: learn the world model, update the posterior, sample a model, plan in it."""
        config, models, optimisers, replay = self.config, self.models, self.optimisers, self.replay
        ranges = self.PHASES | {"monitor": "numbers for the log"}
        path, phase = PATHS[config.update_path], Phases(profiling.device_for(self.device), ranges, on_phase)
        how = (self.execution,) if config.update_path == "fast" else ()
        compiled = self.execution.compile_seconds()
        with phase("autoencoder"):
            stored = replay.stored_slots()
            some = stored[:: max(1, len(stored) // 1024)]  # a mean needs no more
            models.autoencoder.renew(replay.frames(slots) for slots in some.split(256))
            losses = path.train_autoencoder(models, optimisers, replay, self.batch, config, *how)  # line 6
        with phase("encoding"):
            latents = path.encode_buffer(models, replay, *how)
        with phase("forward"):
            models.forward_model.renew(replay)
            losses |= path.train_forward(models, optimisers, latents, self.batch, config, *how)  # lines 7 and 8
        metrics: posterior.Metrics = {}
        with phase("posterior"):
            if self.posterior.rule != "none":
                data = path.buffer_statistics(models, replay, latents, *how)
                metrics = self.posterior.fit(data)  # line 9
        with phase("sample"):
            self.model = self.draw()  # lines 10 and 11
        with phase("value"):
            losses |= self.plan(path, latents, how)  # line 12
        seen: monitor.Metrics = {}
        if self.updates % monitor.EVERY == 0:
            with phase("monitor"):
                seen = monitor.look(models, replay, latents, self.model, self.draw(mean=True))
        self._check_finite(losses, metrics)  # reads the device for the first time
        self.updates += 1
        return (
            {f"loss/{name}": float(loss) for name, loss in losses.items()}
            | {f"posterior/{name}": float(value) for name, value in metrics.items()}
            | monitor.known(seen)
            | {"train/sequence_length": float(replay.sequence_length(config.replay.length))}
            | {f"time/{name}": seconds for name, seconds in phase.seconds().items()}
            | ({"time/compile": self.execution.compile_seconds() - compiled} if config.compile else {})
        )

    def _check_finite(self, losses: learning.Losses, metrics: posterior.Metrics) -> None:
        """Raise if an update has made anything that is not finite; reads the device once."""
        of = {"termination": "forward"}  # the phases of losses and networks that are not named like them
        found: dict[tuple[str, str], Tensor] = {
            (of.get(name, name), f"the loss of {name} is not finite"): torch.isfinite(loss)
            for name, loss in losses.items()
        }
        for name, optimiser in self.optimisers.items():
            numbers = [p for group in optimiser.param_groups for p in group["params"]]
            numbers += [x for entry in optimiser.state.values() for x in entry.values() if isinstance(x, Tensor)]
            finite = torch.stack([all_finite(x).to(self.device) for x in numbers]).all()
            found[of.get(name, name), f"a parameter of {name} is not finite"] = finite
        sampled = [all_finite(x) for x in (self.posterior.mean, self.model.weight, self.model.bias)]
        values = [x.isfinite() for x in metrics.values() if isinstance(x, Tensor)]
        found["posterior", "the posterior or its sample is not finite"] = torch.stack([*sampled, *values]).all()
        for (phase, cause), finite in zip(found, torch.stack(list(found.values())).tolist(), strict=True):
            if not finite:
                raise Diverged(phase, cause)

    def undoing(self) -> Callable[[bool], None]:
        """Keep networks, optimisers, posterior and sample; see `Agent.undoing`."""
        optimisers = (x for o in self.optimisers.values() for entry in o.state.values() for x in entry.values())
        changed = [*self.models.state_dict().values(), *optimisers, self.posterior.mean]
        tensors = [(x, x.detach().clone()) for x in changed if isinstance(x, Tensor)]
        factors, eps, model = self.posterior.factors, self.posterior.eps, self.model  # an update replaces them
        rng, generator = self.rng.bit_generator.state, self.generator.get_state()

        def undo(streams: bool) -> None:
            with torch.no_grad():
                for changed, before in tensors:
                    changed.copy_(before)
            self.posterior.factors, self.posterior.eps, self.model = factors, eps, model
            if streams:
                self.rng.bit_generator.state = rng
                self.generator.set_state(generator)
                self.next_update = self.step  # due again

        return undo

    def batch(self) -> Batch:
        """A fresh batch of B sequences of L steps."""
        replay = self.config.replay
        return self.replay.sample(replay.batch, replay.length, self.rng, replay.ends == "even")

    def draw(self, mean: bool = False) -> SampledModel:
        """A model drawn from the posterior, or its mean; the trained output layer under rule none."""
        if self.posterior.rule == "none":
            return self.models.forward_model.sampled(None)
        weight = self.posterior.mean.clone() if mean else self.posterior.draw(self.generator)
        return self.models.forward_model.sampled(weight)

    def plan(self, path: Path, latents: learning.Latents, how: tuple) -> learning.Losses:
        """Line 12: the value network of the sampled model."""
        return path.train_value(
            self.models, self.optimisers, self.replay, latents, self.batch, self.model, self.config, *how
        )

    def begin(self, first: int, observations: NDArray) -> None:
        """Environments `first`, ... start their first episodes."""
        for i, observation in enumerate(observations, first):
            self.replay.start(i, observation)

    def observe(self, first: int, actions: NDArray[np.int64], step: Step) -> None:
        """Line 18: keep the transitions of a step."""
        rewards = TRANSFORMS[self.config.reward_transform](step.reward)
        cut_is_end = "time-limit-ends" in self.config.released
        for i, observation in enumerate(step.observation):
            if step.started[i]:
                self.replay.start(first + i, observation)
                continue
            terminated, truncated = bool(step.terminated[i]), bool(step.truncated[i])
            ends = terminated or (cut_is_end and truncated)
            self.replay.add(first + i, int(actions[i]), float(rewards[i]), observation, ends, truncated)

    def player(self, stream: int, policy: str | None = None, num_envs: int = 1, epsilon: float | None = None) -> Actor:
        """An actor of its own, on the present sample or on the posterior mean; epsilon: by default that of the run."""
        model = self.draw(mean=True) if policy == "mean" else None
        return Actor(self, num_envs, self.evaluation_seed + stream, model, epsilon)

    def description(self) -> dict[str, str]:
        """Sampling rule, sizes of the networks, and what serves on this device."""
        counts = dict(self.models.counts())
        parts = ", ".join(f"{name.replace('_model', '')} {count:,}" for name, count in counts.items())
        return {
            "posterior": f"rule {self.config.rule}",
            "parameters": f"{sum(counts.values()):,} ({parts})",
            "kernels": serving(self.device),
        }

    @classmethod
    def failed_checks(cls, config: PsdrlConfig, spec: EnvSpec, device: torch.device) -> dict[str, str]:
        """Kernels that fail at the shapes and in the precision of this configuration."""
        return {f"{f.operation} ({f.backend})": f.problem or "" for f in check_kernels(config, spec, device)}

    @classmethod
    def workload(cls, config: PsdrlConfig, spec: EnvSpec) -> PsdrlWorkload:
        """What each phase does."""
        return PsdrlWorkload(config, spec)

    def state_dict(self) -> dict[str, Any]:
        """Everything but the replay buffer and the running episodes."""
        return {
            "models": self.models.state_dict(),
            "optimisers": {name: optimiser.state_dict() for name, optimiser in self.optimisers.items()},
            "posterior": self.posterior.state_dict(),
            "model": {"weight": self.model.weight, "bias": self.model.bias},
            "counters": {name: getattr(self, name) for name in ("step", "updates", "episodes", "next_update")},
            "random": {
                "device": self.device.type,
                "rng": json.dumps(self.rng.bit_generator.state),
                "generator": self.generator.get_state(),
                "actors": torch.stack([actor.generator.get_state() for actor in self.actors]),
            },
            "kernels": json.dumps(choice.state()),  # which library forms a product decides how it is rounded
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.execution.forget()  # the optimisers' state moves
        choice.restore(json.loads(state["kernels"]))
        self.models.load_state_dict(state["models"])
        for name, optimiser in self.optimisers.items():
            load_optimiser(optimiser, state["optimisers"][name])
        self.posterior.load_state_dict(state["posterior"])
        self.model = self.draw() if self.posterior.rule == "none" else self._sampled(**state["model"])
        for name, value in state["counters"].items():
            setattr(self, name, value)
        self.rng.bit_generator.state = json.loads(state["random"]["rng"])
        if state["random"]["device"] == self.device.type:  # generators of CPU and GPU have different states
            self.generator.set_state(state["random"]["generator"].cpu())
            for actor, generator in zip(self.actors, state["random"]["actors"], strict=True):
                actor.generator.set_state(generator.cpu().clone())  # a view with an offset crashes it

    def _sampled(self, weight: Tensor, bias: Tensor) -> SampledModel:
        return SampledModel(weight.to(self.device, self.dtype), bias.to(self.device, self.dtype))
