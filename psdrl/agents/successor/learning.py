"""Learning: reward, successor features and Q in one gradient step (Janz et al. 2019, section 4)."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from psdrl.agents.successor.network import Networks, dot
from psdrl.agents.successor.settings import LearningConfig
from psdrl.agents.transitions import descend
from psdrl.runtime.execution import EAGER, Execution
from psdrl.runtime.graphs import Step


class Losses(NamedTuple):
    """Three losses and, for the log, the mean of Q(s, a)."""

    reward: Tensor
    successor: Tensor
    q: Tensor
    mean_q: Tensor


def noise_shape(config: LearningConfig, features: int, num_actions: int) -> tuple[int, ...]:
    """Of the standard normal numbers that a gradient step needs: S draws of w, or of each next action's value."""
    return (config.draws, features) if config.next_action == "posterior" else (config.batch, num_actions, config.draws)


def sampled_values(psi: Tensor, w: Tensor, root: Tensor, noise: Tensor) -> Tensor:
    """Draws (n, A, S) of Q from psi (n, A, k), w and noise (S, k): psi . (w + R^T noise), the same w for all rows."""
    return dot(psi, w)[:, :, None] + psi @ (noise @ root).T


def released_values(psi: Tensor, w: Tensor, root: Tensor, noise: Tensor) -> Tensor:
    """The same with noise (n, A, S): Q + variance noise, where variance = psi . Sigma psi. A deviation was meant."""
    return dot(psi, w)[:, :, None] + (psi @ root.T).square().sum(2, keepdim=True) * noise


def best_probabilities(values: Tensor) -> Tensor:
    """How often each action is the best (n, A) in draws (n, A, S) of their values."""
    best = values.max(1).indices  # argmax, 12 times as fast on a CPU (128 x 2 x 100)
    actions = torch.arange(values.shape[1], device=values.device)
    return (best[:, None] == actions[:, None]).to(values.dtype).mean(2)


VALUES = {"posterior": sampled_values, "released": released_values}


@torch.no_grad()
def expected_successors(networks: Networks, following: Tensor, root: Tensor, noise: Tensor, how: str) -> Tensor:
    """psi'(s', a') (n, k) of the target network, averaged over a' by how likely each is the best; w is the trained
    one."""
    target = networks.target
    psi = target.successors(target.hidden(following))
    probabilities = best_probabilities(VALUES[how](psi, networks.online.w, root, noise))
    return (probabilities[:, :, None] * psi).sum(1)


def successor_losses(
    networks: Networks,
    root: Tensor,
    frames: Tensor,
    actions: Tensor,
    rewards: Tensor,
    terminated: Tensor,
    noise: Tensor,
    config: LearningConfig,
) -> Losses:
    """Mean Huber losses of phi . w and r, of psi and phi + gamma E psi', of psi . w and r + gamma (E psi') . w.

    Without the terms of s' where it is absorbing. The second loss trains phi, too, as the released code does, unless
    psi contains phi.
    """
    online = networks.online
    ahead = expected_successors(networks, frames[:, 1:], root, noise, config.next_action)
    ahead = config.discount * (1 - terminated)[:, None] * ahead
    hidden = online.hidden(frames[:, :-1])
    phi = online.local_of(hidden, actions)
    within = phi.detach() if online.residual else phi
    psi = online.successors_of(hidden, actions, within)
    q = dot(psi, online.w)
    return Losses(
        F.huber_loss(dot(phi, online.w), rewards),
        F.huber_loss(psi - within, ahead),
        F.huber_loss(q, rewards + dot(ahead, online.w.detach())),
        q.detach().mean(),
    )


def make_step(
    networks: Networks,
    root: Tensor,
    optimiser: torch.optim.Optimizer,
    config: LearningConfig,
    execution: Execution = EAGER,
) -> Step:
    """The gradient step, (frames, actions, rewards, terminated, noise) -> three losses, mean Q(s, a) and what `descend`
    adds."""
    parameters, losses_of = list(networks.online.parameters()), execution.compiled(successor_losses)

    def step(frames: Tensor, actions: Tensor, rewards: Tensor, terminated: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        optimiser.zero_grad(set_to_none=True)
        with execution.autocast():
            losses = losses_of(networks, root, frames, actions, rewards, terminated, noise, config)
        (losses.reward + losses.successor + losses.q).backward()
        return descend(optimiser, parameters, config.clip, losses)

    return step
