"""Updates per second of Bootstrapped DQN with priors at the paper's sizes, beside a plain eager version of it:

    python -m bench.bootstrap [--preset paper] [--actions 18] [--repeat 5]

Plain: PyTorch as one would write it first. A module per head, asked in turn, and Adam parameter by parameter. Both
start from the same weights and do the same steps on the same batches; if the results differ no speed is reported.
"""

import copy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench import gradient_steps
from psdrl.agents.bootstrap.agent import BootstrapAgent
from psdrl.agents.bootstrap.network import Heads, QNetwork


class PlainHead(nn.Module):
    """One of our heads as a module of its own."""

    def __init__(self, heads: Heads, k: int) -> None:
        super().__init__()
        size, units, actions = heads.hidden.in_features, heads.units, heads.advantage_weight.shape[2]
        self.hidden, self.value, self.advantage = (
            nn.Linear(size, 2 * units),
            nn.Linear(units, 1),
            nn.Linear(units, actions),
        )
        part = slice(k * 2 * units, (k + 1) * 2 * units)
        with torch.no_grad():
            for layer, weight, bias in (
                (self.hidden, heads.hidden.weight[part], heads.hidden.bias[part]),
                (self.value, heads.value_weight[k].T, heads.value_bias[k, 0]),
                (self.advantage, heads.advantage_weight[k].T, heads.advantage_bias[k, 0]),
            ):
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)

    def forward(self, features: Tensor) -> Tensor:
        """Q (n, A)."""
        value, advantage = F.relu(self.hidden(features)).chunk(2, 1)
        a = self.advantage(advantage)
        return self.value(value) + a - a.mean(1, keepdim=True)


class PlainQ(nn.Module):
    """Torso and heads."""

    def __init__(self, ours: QNetwork) -> None:
        super().__init__()
        self.torso = copy.deepcopy(ours.torso)
        self.heads = nn.ModuleList(PlainHead(ours.heads, k) for k in range(ours.heads.heads))

    def forward(self, stacks: Tensor) -> list[Tensor]:
        """Q (n, A) by head."""
        features = self.torso(stacks.float())
        return [head(features) for head in self.heads]


class Plain:
    """The same gradient step, written plainly."""

    def __init__(self, agent: BootstrapAgent) -> None:
        self.config, networks = agent.config.learning, agent.networks
        self.scale = networks.prior_scale
        self.online, self.target, self.prior = (
            PlainQ(network) for network in (networks.online, networks.target, networks.prior)
        )
        self.optimiser = torch.optim.Adam(self.online.parameters(), self.config.learning_rate, foreach=False)

    def step(self, frames: Tensor, actions: Tensor, rewards: Tensor, terminated: Tensor, masks: Tensor) -> Tensor:
        """The loss (1,) of a batch."""
        now, following = frames[:, :-1], frames[:, 1:]
        rows, losses = torch.arange(len(actions)), []
        with torch.no_grad():
            priors, ahead = self.prior(now), self.prior(following)
            online, target = self.online(following), self.target(following)
        for k, q in enumerate(self.online(now)):
            best = (online[k] + self.scale * ahead[k]).argmax(1)
            value = (target[k] + self.scale * ahead[k])[rows, best]
            wanted = rewards + self.config.discount * (1 - terminated) * value
            errors = F.huber_loss((q + self.scale * priors[k])[rows, actions], wanted, reduction="none")
            losses.append((errors * masks[:, k]).sum() / masks[:, k].sum().clamp(min=1))
        loss = torch.stack(losses).mean()
        self.optimiser.zero_grad()
        loss.backward()
        for parameter in self.online.torso.parameters():
            if parameter.grad is not None:
                parameter.grad /= len(losses)
        torch.nn.utils.clip_grad_norm_(self.online.parameters(), self.config.clip)
        self.optimiser.step()
        return loss.detach()[None]


def main() -> None:
    """Measure in turn, print medians, the ratio and the forecast for an A100."""
    chosen = gradient_steps.options(__doc__)
    agent = gradient_steps.filled_agent("bootstrap", chosen.preset, chosen.actions)
    plain, rng = Plain(agent), np.random.default_rng(1)
    data = [agent.replay.sample(agent.config.learning.batch, rng) for _ in range(gradient_steps.STEPS)]
    gradient_steps.compare(chosen, agent, lambda *batch: agent.gradient_step(*batch)[0][None], plain.step, data)
    gradient_steps.predict("bootstrap", chosen.actions)


if __name__ == "__main__":
    main()
