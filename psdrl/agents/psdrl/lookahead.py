"""Lookahead over all actions (Eq. 6 and 7): what acting and planning ask of the sampled model, in bulk.

One step is the paper's. Further steps follow V's greedy policy in the sampled model before V is asked:
Q_K(s, a) = r + gamma 1[omega < 0.5] G_{K-1}(s'), where G_0 = V and G_k(s) = Q_k(s, argmax_a Q_1(s, a)).
`oracle.lookahead` gives the same numbers with one forward-model call per action."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from psdrl.agents.psdrl.termination import Termination
from psdrl.agents.psdrl.value import MinEnsemble
from psdrl.agents.psdrl.world_model import SampledWorld
from psdrl.replay.episodes import Replay
from psdrl.runtime.execution import Execution

if TYPE_CHECKING:
    from psdrl.agents.psdrl.learning import Latents


class Predictions(NamedTuple):
    """What each action leads to, as far as it does not depend on the value network."""

    latents_hidden: Tensor  # (n, A, Z + H) [z^, h'], the value network's input; or codes, see `narrow`
    rewards: Tensor  # (n, A)
    omega: Tensor  # (n, A) termination estimates

    def at(self, rows: slice | Tensor) -> "Predictions":
        """The predictions of some of the states."""
        return Predictions(self.latents_hidden[rows], self.rewards[rows], self.omega[rows])

    def values(self, value: MinEnsemble) -> Tensor:
        """V(z^, h') (n, A)."""
        return value.fast(self.latents_hidden.flatten(0, 1)).view_as(self.rewards)

    def returns(self, value: MinEnsemble) -> Tensor:
        """r^ + gamma 1[omega < 0.5] V(z^, h') (n, A)."""
        return value.returns(self.rewards, self.omega, self.values(value))

    def planned(self, value: MinEnsemble) -> Tensor:
        """The targets (n,) of planning."""
        return value.planned(self.rewards, self.omega, self.values(value))


class Happened(NamedTuple):
    """What followed stored states (`--value.hindsight`)."""

    actions: Tensor  # (n,) that were taken
    latents: Tensor  # (n, Z) z'
    rewards: Tensor  # (n,)
    ends: Tensor  # (n,) delta of Eq. 3

    @classmethod
    def at(cls, replay: Replay, latents: "Latents", slots: Tensor) -> "Happened":
        """After the states at slots (n,)."""
        following = latents[(slots + 1) % replay.num_slots]
        return cls(
            replay.actions[slots],
            following,
            replay.rewards[slots].to(following),
            replay.terminated[slots].to(following),
        )

    def moved(self, of_all: Tensor, real: Tensor) -> Tensor:
        """Numbers (n, A, ...) of all actions, moved so that those of the action taken are the real ones (n, ...)."""
        taken = of_all[torch.arange(len(real), device=real.device), self.actions]
        return of_all + (real - taken)[:, None]


def joined(parts: Iterable[Predictions], count: int, execution: Execution) -> Predictions:
    """Predictions of several groups of states as one, for `count` states: never held twice."""
    table, first = None, 0
    for part in parts:
        if table is None:
            like = part._asdict().items()
            table = Predictions(*(execution.scratch(f"predicted {name}", x, count, *x.shape[1:]) for name, x in like))
        for whole, x in zip(table, part, strict=True):
            whole[first : first + len(x)] = x
        first += len(part.rewards)
    assert table is not None
    assert first == count
    return table


def predict(
    world: SampledWorld, termination: Termination, latents: Tensor, hidden: Tensor, happened: Happened | None = None
) -> Predictions:
    """All actions from latent states (n, Z) and hidden states (n, H): n * A rows in bulk; in hindsight, if it is told
    what happened."""
    latent, shape = latents.shape[1], (len(latents), world.num_actions)
    prediction, rows = world.predict(latents, hidden)
    # The termination network reads z^ from here, not from `prediction`: rows of 2292 start at multiples of 16 bytes,
    # rows of 1537 do not, and a GPU would load them 4 bytes at once.
    following = prediction[:, :latent]
    if happened is not None:
        following = happened.moved(following.view(*shape, latent), happened.latents).flatten(0, 1)
    joint = torch.cat([following, rows], 1)
    omega = termination.fast(joint[:, :latent])
    rewards = prediction[:, latent].to(joint.dtype)
    rewards, omega = rewards.view(shape), omega.to(joint).view(shape)
    if happened is not None:
        rewards, omega = happened.moved(rewards, happened.rewards), happened.moved(omega, happened.ends)
    return Predictions(joint.view(*shape, joint.shape[1]), rewards, omega)


class Lookahead(NamedTuple):
    """K steps in the sampled model, for acting."""

    world: SampledWorld
    termination: Termination
    value: MinEnsemble

    def action(self, latents: Tensor, hidden: Tensor, tie_noise: Tensor) -> tuple[Tensor, Tensor]:
        """The action (n,) with the largest Q_K, and h' of all actions (n, A, H), from latent states (n, Z) and hidden
        states (n, H); `tie_noise` (n, A) breaks ties, see `psdrl.kernels.greedy`."""
        ahead = predict(self.world, self.termination, latents, hidden)
        values = self.followed(ahead, latents.shape[1])
        action = self.value.best_action(ahead.rewards, ahead.omega, values, tie_noise)
        return action, ahead.latents_hidden[..., latents.shape[1] :]

    def followed(self, ahead: Predictions, latent: int) -> Tensor:
        """G_{K-1} (n, A) of what each action leads to. All n A states go on together, with the first of the best
        actions."""
        value, shape, values = self.value, ahead.rewards.shape, ahead.values(self.value)
        passed, state = [], ahead.latents_hidden.flatten(0, 1)
        for _ in range(value.lookahead - 1):
            ahead = predict(self.world, self.termination, state[:, :latent], state[:, latent:])
            values = ahead.values(value)
            action = value.best_action(ahead.rewards, ahead.omega, values, torch.zeros_like(values))[:, None]
            state = ahead.latents_hidden.take_along_dim(action[..., None], 1).squeeze(1)
            passed.append((ahead.rewards.gather(1, action), ahead.omega.gather(1, action)))
            values = values.gather(1, action)
        for rewards, omega in reversed(passed):
            values = value.returns(rewards, omega, values)
        return values.view(shape)
