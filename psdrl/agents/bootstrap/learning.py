"""Learning: double DQN for each head on its share of the transitions, all heads in one gradient step."""

import torch
from torch import Tensor
from torch.nn import functional as F

from psdrl.agents.bootstrap.network import Networks
from psdrl.agents.bootstrap.settings import LearningConfig
from psdrl.agents.transitions import descend
from psdrl.runtime.execution import EAGER, Execution
from psdrl.runtime.graphs import Step


@torch.no_grad()
def targets(
    networks: Networks, following: Tensor, prior: Tensor, rewards: Tensor, terminated: Tensor, discount: float
) -> Tensor:
    """r + gamma Q'_k(s', argmax_a Q_k(s', a)) (K, n), without the second term where s' is absorbing.

    Each head chooses with its trained network and values with its target network; both include the prior (K, n, A).
    """
    best = (networks.online(following) + prior).argmax(2, keepdim=True)
    ahead = (networks.target(following) + prior).gather(2, best).squeeze(2)
    return rewards + discount * (1 - terminated) * ahead.to(rewards.dtype)


def masked_loss(q: Tensor, target: Tensor, masks: Tensor) -> Tensor:
    """Huber loss of q and targets (K, n): each head's mean over the transitions of its mask (n, K), then the mean over
    the heads; a head whose mask has none contributes 0."""
    errors = F.huber_loss(q, target, reduction="none") * masks.T
    return (errors.sum(1) / masks.sum(0).clamp(min=1)).mean()


def bootstrap_loss(
    networks: Networks,
    frames: Tensor,
    actions: Tensor,
    rewards: Tensor,
    terminated: Tensor,
    masks: Tensor,
    discount: float,
) -> tuple[Tensor, Tensor]:
    """The loss of a batch (see `psdrl.replay.frames.Transitions`) and the mean of Q(s, a), for the log."""
    now, following = frames[:, :-1], frames[:, 1:]
    prior, prior_ahead = networks.scaled_prior(torch.cat([now, following])).chunk(2, 1)
    target = targets(networks, following, prior_ahead, rewards, terminated, discount)
    q = networks.online(now) + prior
    q = q.gather(2, actions.expand(len(q), -1)[:, :, None]).squeeze(2).to(target.dtype)
    return masked_loss(q, target, masks), q.detach().mean()


def make_step(
    networks: Networks, optimiser: torch.optim.Optimizer, config: LearningConfig, execution: Execution = EAGER
) -> Step:
    """The gradient step, (frames, actions, rewards, terminated, masks) -> loss, mean Q(s, a) and what `descend` adds.

    The torso sums the gradients of K heads, of which each is 1/K of the loss, and is divided by K once more.
    """
    parameters, torso = list(networks.online.parameters()), list(networks.online.torso.parameters())
    loss_of = execution.compiled(bootstrap_loss)

    def step(frames: Tensor, actions: Tensor, rewards: Tensor, terminated: Tensor, masks: Tensor) -> tuple[Tensor, ...]:
        optimiser.zero_grad(set_to_none=True)
        with execution.fixed_shapes():
            with execution.autocast():
                loss, q = loss_of(networks, frames, actions, rewards, terminated, masks, config.discount)
            loss.backward()
        if torso:
            torch._foreach_mul_([p.grad for p in torso if p.grad is not None], 1 / networks.online.heads.heads)
        return descend(optimiser, parameters, config.clip, (loss, q))

    return step
