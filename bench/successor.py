"""Updates per second of Successor Uncertainties at the paper's sizes, beside a plain eager version of the same agent:

    python -m bench.successor [--preset paper] [--actions 18] [--repeat 5]

Plain: PyTorch as one would write it first. phi and psi of all actions are formed where those of the actions taken
suffice, Adam runs parameter by parameter, the covariance's root is formed anew in every gradient step though it changes
every 250 steps, frames are stacked twice. Both start from the
same weights and do the same steps on the same batches; if the results differ no speed is reported.
"""

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from psdrl.agents.registry import configure, make_agent
from psdrl.agents.successor.agent import SuccessorAgent
from psdrl.cost.devices import data_sheet
from psdrl.cost.forecast import forecast, workload
from psdrl.envs.vector import EnvSpec

STEPS = 4  # gradient steps per measurement
TRANSITIONS = 500


def filled_agent(preset: str, actions: int) -> SuccessorAgent:
    """An agent past its random steps, with random frames in its buffer and in its posterior."""
    size = 84 if preset == "paper" else 64
    config: Any = configure(
        algo="successor", game="Pong", preset=preset, device="cpu", precision="fp32", replay={"capacity": TRANSITIONS}
    )
    agent = make_agent(config, EnvSpec("Pong", "image", (1, size, size), "uint8", actions, "none"))
    assert isinstance(agent, SuccessorAgent)
    rng = np.random.default_rng(0)
    agent.replay.start(0, rng.integers(0, 256, (1, size, size)))
    for _ in range(TRANSITIONS):
        frame = rng.integers(0, 256, (1, size, size))
        agent.replay.add(0, int(rng.integers(actions)), float(rng.integers(-1, 2)), frame, bool(rng.random() < 0.01))
    agent._draw()
    return agent


class Plain:
    """The same gradient step, written plainly."""

    def __init__(self, agent: SuccessorAgent) -> None:
        self.config, self.networks = agent.config.learning, copy.deepcopy(agent.networks)
        gram = agent.posterior.gram
        identity = torch.eye(len(gram), dtype=gram.dtype)
        self.precision = gram.tril() + gram.tril(-1).T + agent.posterior.ridge * identity
        self.beta = agent.posterior.beta
        self.optimiser = torch.optim.Adam(self.networks.online.parameters(), self.config.learning_rate, foreach=False)

    def step(self, frames: Tensor, actions: Tensor, rewards: Tensor, terminated: Tensor, noise: Tensor) -> Tensor:
        """Losses (3,) of a batch."""
        online, target, rows = self.networks.online, self.networks.target, torch.arange(len(actions))
        root = torch.linalg.inv(torch.linalg.cholesky(self.precision / self.beta**2)).float()
        with torch.no_grad():
            hidden = target.hidden(frames[:, 1:].clone())
            psi, w = target.successors(hidden), online.w[0]
            values = (psi @ w)[:, :, None] + psi @ (noise @ root).T
            best = F.one_hot(values.argmax(1), psi.shape[1]).float().mean(1)
            ahead = self.config.discount * (1 - terminated)[:, None] * (best[:, :, None] * psi).sum(1)
        hidden = online.hidden(frames[:, :-1].clone())
        phi, psi = online.local(hidden)[rows, actions], online.successors(hidden)[rows, actions]
        losses = torch.stack(
            [
                F.huber_loss(phi @ online.w[0], rewards),
                F.huber_loss(psi, phi + ahead),
                F.huber_loss(psi @ online.w[0], rewards + ahead @ online.w[0].detach()),
            ]
        )
        self.optimiser.zero_grad()
        losses.sum().backward()
        torch.nn.utils.clip_grad_norm_(online.parameters(), self.config.clip)
        self.optimiser.step()
        return losses.detach()


def batches(agent: SuccessorAgent) -> list[tuple[Tensor, ...]]:
    """The same for both."""
    rng, generator = np.random.default_rng(1), torch.Generator().manual_seed(1)
    shape = (agent.config.learning.draws, agent.config.network.features)
    return [
        (*agent.replay.sample(agent.config.learning.batch, rng)[:4], torch.randn(shape, generator=generator))
        for _ in range(STEPS)
    ]


def seconds(call: Callable[[], object]) -> float:
    """Of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    """Measure in turn, print medians, the ratio and the forecast for an A100."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=("paper", "cpu"), default="paper")
    parser.add_argument("--actions", type=int, default=18)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    agent = filled_agent(options.preset, options.actions)
    plain, data = Plain(agent), batches(agent)
    ours = [torch.stack(agent.gradient_step(*batch))[:3] for batch in data]
    theirs = [plain.step(*batch) for batch in data]
    for one, other in zip(ours, theirs, strict=True):
        if not torch.allclose(one, other, rtol=1e-3, atol=1e-5):
            sys.exit(f"The versions differ: losses {one.tolist()} and {other.tolist()}; no speed is reported.")
    pairs = [
        (seconds(lambda: [plain.step(*b) for b in data]), seconds(lambda: [agent.gradient_step(*b) for b in data]))
        for _ in range(options.repeat)
    ]
    ratios = [a / b for a, b in pairs]
    rates = [STEPS / min(column) for column in zip(*pairs, strict=True)]
    isa = torch.backends.cpu.get_cpu_capability()
    print(
        f"{options.preset}, {options.actions} actions, batch {agent.config.learning.batch}, {torch.get_num_threads()} "
        f"thread(s), {isa}: plain {rates[0]:.2f} gradient steps per second, ours {rates[1]:.2f}; ratio "
        f"{statistics.median(ratios):.2f} (pairs {', '.join(f'{ratio:.2f}' for ratio in ratios)})"
    )
    config: Any = configure(algo="successor", game="Pong", preset="paper", device="cpu")
    spec = EnvSpec("Pong", "image", (1, 84, 84), "uint8", options.actions, "none")
    work = workload(config, spec)
    for graphs in (False, True):
        device = data_sheet("a100", "tf32", graphs)
        step = work.update(work.capacity)["learning"].seconds(device)
        hours = forecast(config, spec, device, work).hours
        print(
            f"PREDICTION for an A100, tf32, {'CUDA graphs' if graphs else 'eager'}: {1 / step:.0f} gradient steps per "
            f"second, {hours:.2f} h for 1,000,000 steps with evaluation"
        )


if __name__ == "__main__":
    main()
