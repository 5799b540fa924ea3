"""What an update and an action do, and what they need of memory: for the cost model, `psdrl.cost`."""

import torch
from torch import Tensor, nn

from psdrl.agents.dreamer.acting import make_decision
from psdrl.agents.dreamer.learning import behaviour_losses, imagine, make_optimisers, make_steps, model_loss
from psdrl.agents.dreamer.networks import Networks, States
from psdrl.agents.dreamer.settings import DreamerConfig
from psdrl.envs.vector import EnvSpec
from psdrl.runtime.execution import EAGER
from psdrl.runtime.work import Count, Loop, Phase, Trial, Work, Workload, adam, count, weights

# Besides losses and gradients: clipping and Adam are 15 to 23 operations per network (counted for Bootstrapped DQN);
# drawing a batch is work for the host that takes as long as 10 to 50 of them.
OPTIMISER, BATCH = 20, 30


class DreamerWorkload(Workload):
    """Dv2's work: the gradient steps of an update and its actions, run on the meta device."""

    def __init__(self, config: DreamerConfig, spec: EnvSpec) -> None:
        self.config, self.spec, self.capacity = config, spec, config.replay.capacity
        with torch.device("meta"):
            self.networks = Networks(config, spec)
            self.model, self.behaviour = count(self._model, *self._sequences()), count(self._behaviour, *self._start())

    def _model(self, *batch: Tensor) -> None:
        model_loss(self.networks.world, *batch, self.config).total.backward()  # type: ignore[arg-type, call-arg]

    def _behaviour(self, hidden: Tensor, sample: Tensor, terminated: Tensor, *noise: Tensor) -> None:
        imagined = imagine(self.networks, States(hidden, sample), noise[0], noise[1])
        actor, critic, _ = behaviour_losses(self.networks, imagined, terminated, self.config.behaviour)
        (actor + critic).backward()

    def _frames(self, *shape: int) -> Tensor:
        return torch.zeros((*shape, *self.spec.shape), dtype=getattr(torch, self.spec.dtype))

    def _sequences(self) -> tuple[Tensor, ...]:
        shape = self.config.learning.length, self.config.learning.batch
        flags = (torch.zeros(shape) for _ in range(3))
        noise = torch.zeros(*shape, self.config.model.latents)
        return self._frames(*shape), torch.zeros(shape, dtype=torch.long), *flags, noise

    def _start(self) -> tuple[Tensor, ...]:
        learning, model, horizon = self.config.learning, self.config.model, self.config.behaviour.horizon
        rows = learning.length * learning.batch
        state = torch.zeros(rows, model.recurrent), torch.zeros(rows, model.latents * model.classes)
        return *state, torch.zeros(rows), torch.zeros(horizon, rows), torch.zeros(horizon, rows, model.latents)

    def updates(self) -> range:
        every = self.config.learning.every
        return range(max(self.config.exploration.random_steps, every), self.config.steps, every)

    def update(self, transitions: int) -> dict[str, Phase]:
        """One gradient step of each network, whatever the buffer holds."""
        networks, every = self.networks, self.config.behaviour.target_every
        with torch.device("meta"):
            frames = sum(x.nbytes for x in self._sequences())
        copies = 2 * 4 * weights(networks.critic) / every
        return {
            "model": self._phase(self.model, 2 * frames, networks.world),
            "behaviour": self._phase(self.behaviour, copies, networks.actor, networks.critic),
        }

    def _phase(self, found: Count, moved: float, *trained: nn.Module) -> Phase:
        """Products and convolutions of the losses and their gradients, then Adam."""
        size = sum(map(weights, trained))
        step = Work(
            gradient=2 * (found.macs - found.convolutions),
            convolution=2 * found.convolutions,
            weights=found.weights + size,  # gradients are written
            activations=2 * found.cells,
            casts=found.weights + size,
            launches=found.launches + OPTIMISER * len(trained) + BATCH,
        )
        return Phase((Loop((step, adam(size), Work(bytes=moved)), captured=True),))

    def act(self, rows: int) -> Loop:
        """The networks are not asked while all actions are random."""
        asked = max(0.0, 1 - self.config.exploration.random_steps / self.config.steps)
        return self._loop(rows, asked)

    def play(self) -> Loop:
        """The same networks."""
        return self._loop(1)

    def _loop(self, rows: int, times: float = 1.0) -> Loop:
        """Weights are read."""
        model = self.config.model
        with torch.device("meta"):
            state = torch.zeros(rows, model.recurrent), torch.zeros(rows, model.latents * model.classes)
            noise = torch.zeros(rows, model.latents + 1)
            inputs = self._frames(rows), *state, torch.zeros(rows, dtype=torch.long), torch.zeros(rows), noise
            with torch.no_grad():
                found = count(make_decision(self.networks, EAGER, "sample"), *inputs)
        work = Work(flops=2 * found.macs, weights=found.weights, casts=found.weights, launches=found.launches)
        return Loop((work,), times, captured=True)

    def memory(self) -> dict[str, float]:
        """Trained networks have a gradient, Adam's two averages and a copy of all but the gradient, for undoing; the
        slow critic has its copy. Of what the two phases make, the larger counts."""
        networks, replay = self.networks, self.config.replay
        with torch.device("meta"):
            transition = self._frames().nbytes + 8 + 4 + 4
        trained = sum(map(weights, (networks.world, networks.actor, networks.critic)))
        return {
            "replay": 9 / 8 * replay.capacity * transition,
            "networks": 4 * (7 * trained + 2 * weights(networks.slow_critic)),
            "activations": 4 * max(self.model.numbers, self.behaviour.numbers),
        }

    def trials(self) -> dict[str, Trial]:
        """The two gradient steps; acting's products have the rate of imagination's."""
        networks = Networks(self.config, self.spec)
        steps = make_steps(networks, make_optimisers(networks, self.config), self.config)
        batch, start = self._sequences(), self._start()
        model = Trial(2 * self.model.macs, lambda: steps[0](*batch), self.model.launches + OPTIMISER)
        behaviour = Trial(2 * self.behaviour.macs, lambda: steps[1](*start), self.behaviour.launches + 2 * OPTIMISER)
        return {"flops": behaviour, "gradient": behaviour, "convolution": model}
