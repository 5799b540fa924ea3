"""Learning: a gradient step of the world model on sequences, then one of actor and critic on imagined states.

The scan over time holds only what is recurrent. Encoder, decoder, prior and heads see all steps at once. Gradients of
the actor by REINFORCE do not pass through imagined states, so these are imagined without any, and the actor is asked
again about all of them. `oracle.py` has the same losses step by step.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from psdrl.agents.dreamer.categorical import balanced, draw, log_probability
from psdrl.agents.dreamer.networks import Networks, States, WorldModel
from psdrl.agents.dreamer.settings import BehaviourConfig, DreamerConfig
from psdrl.runtime.device import is_gpu
from psdrl.runtime.execution import EAGER, Execution, with_state
from psdrl.runtime.graphs import Step

MODEL_NUMBERS = ("loss/image", "loss/reward", "loss/discount", "loss/kl", "train/model_norm")
BEHAVIOUR_NUMBERS = (
    "loss/actor",
    "loss/critic",
    "train/entropy",
    "train/imagined_return",
    "train/imagined_reward",
    "train/imagined_discount",
    "train/actor_norm",
    "train/critic_norm",
)


class ModelLoss(NamedTuple):
    """The world model's loss, its parts, and where imagination starts."""

    total: Tensor
    parts: Tensor  # (4,) image, reward, discount, KL: unweighted, for the log
    states: States  # (L, B, ...) drawn from the posterior


class Imagined(NamedTuple):
    """T steps of N imagined episodes."""

    states: States  # (T + 1, N, ...), the given ones first
    actions: Tensor  # (T, N) in all states but the last


def observe_step(
    world: WorldModel,
    hidden: Tensor,
    sample: Tensor,
    action_input: Tensor,
    embedded: Tensor,
    keep: Tensor,
    noise: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """h_t, z_t and the posterior's logits, after states that start anew where keep (B, 1) is 0."""
    state, logits = world.recurrent.observe(States(hidden * keep, sample * keep), action_input, embedded, noise)
    return state.hidden, state.sample, logits


def scan(
    world: WorldModel,
    inputs: Tensor,
    actions: Tensor,
    first: Tensor,
    noise: Tensor,
    step: Callable[..., tuple[Tensor, Tensor, Tensor]] = observe_step,
) -> tuple[States, Tensor]:
    """Posterior states (L, B, ...) and logits (L, B, G, C) of inputs (L, B, ...), with noise (L, B, G)."""
    length, batch = first.shape
    keep = (1 - first)[:, :, None].to(world.mean.dtype)
    action_inputs = world.recurrent.action_inputs(actions) * keep
    embedded = world.embedded(inputs.flatten(0, 1)).unflatten(0, (length, batch))
    state = world.recurrent.start(batch)
    hidden, samples, logits = [], [], []
    # unbound at once: the gradient of x[t] would be a tensor of the size of x at every step
    for parts in zip(*(x.unbind(0) for x in (action_inputs, embedded, keep, noise)), strict=True):
        h, z, logit = step(world, *state, *parts)
        state = States(h, z)
        hidden.append(h)
        samples.append(z)
        logits.append(logit)
    return States(torch.stack(hidden), torch.stack(samples)), torch.stack(logits)


def head_losses(
    world: WorldModel,
    states: States,
    posterior: Tensor,
    inputs: Tensor,
    rewards: Tensor,
    terminated: Tensor,
    config: DreamerConfig,
) -> tuple[Tensor, Tensor]:
    """The loss and its parts: negative log-likelihoods (Gaussians of variance 1, without their constants; Bernoulli for
    the discount), summed over an observation's numbers, and the KL divergence."""
    model = config.model
    features = states.features.flatten(0, 1)
    image = 0.5 * (world.decoder(features).to(inputs.dtype) - inputs.flatten(0, 1)).square().flatten(1).sum(1).mean()
    reward = 0.5 * (scalar(world.reward, features) - rewards.flatten()).square().mean()
    goes_on = config.behaviour.discount * (1 - terminated.flatten())
    discount = F.binary_cross_entropy_with_logits(scalar(world.discount, features), goes_on)
    kl, kl_value = balanced(posterior, world.recurrent.prior_logits(states.hidden), model.kl_balance)
    total = image + reward + model.discount_weight * discount + model.kl_weight * kl
    return total, torch.stack([image, reward, discount, kl_value]).detach()


def scalar(head: nn.Module, features: Tensor) -> Tensor:
    """A head's single output (...) of features (..., F), in their type."""
    return head(features).squeeze(-1).to(features.dtype)


def model_loss(
    world: WorldModel,
    frames: Tensor,
    actions: Tensor,
    rewards: Tensor,
    terminated: Tensor,
    first: Tensor,
    noise: Tensor,
    config: DreamerConfig,
    execution: Execution = EAGER,
) -> ModelLoss:
    """The world model's loss on sequences (see `psdrl.agents.dreamer.sequences.Sequences`), with noise (L, B, G)."""
    inputs = world.inputs(frames)
    states, posterior = scan(world, inputs, actions, first, noise, execution.compiled(observe_step))
    losses = execution.compiled(head_losses)
    total, parts = losses(world, states, posterior, inputs, rewards, terminated, config)
    return ModelLoss(total, parts, states)


def imagine_step(
    networks: Networks, hidden: Tensor, sample: Tensor, action_noise: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Actions (N,) drawn in states (N, ...), and the states that follow them in the model."""
    state, recurrent = States(hidden, sample), networks.world.recurrent
    actions = draw(networks.actor(state.features).to(hidden.dtype).softmax(-1), action_noise)
    following = recurrent.foresee(state, recurrent.action_inputs(actions), noise)
    return actions, following.hidden, following.sample


@torch.no_grad()
def imagine(
    networks: Networks,
    start: States,
    action_noise: Tensor,
    noise: Tensor,
    step: Callable[..., tuple[Tensor, Tensor, Tensor]] = imagine_step,
) -> Imagined:
    """T steps from states (N, ...), with noise (T, N) and (T, N, G)."""
    state, hidden, samples, taken = start, [start.hidden], [start.sample], []
    for draws in zip(action_noise, noise, strict=True):
        actions, h, z = step(networks, *state, *draws)
        state = States(h, z)
        taken.append(actions)
        hidden.append(h)
        samples.append(z)
    return Imagined(States(torch.stack(hidden), torch.stack(samples)), torch.stack(taken))


def lambda_returns(rewards: Tensor, values: Tensor, discounts: Tensor, trace: float) -> Tensor:
    """R_t = r_t + d_t ((1 - lambda) v_{t+1} + lambda R_{t+1}) (T, N) with R_T = v_T, of rewards and discounts (T, N)
    and values (T + 1, N). r_t is the reward on entering state t: so it is part of that state's value."""
    following, returns = values[-1], []
    for t in range(len(rewards) - 1, -1, -1):
        following = rewards[t] + discounts[t] * torch.lerp(values[t + 1], following, trace)
        returns.append(following)
    return torch.stack(returns[::-1])


def step_weights(discounts: Tensor) -> Tensor:
    """How likely each of T states is reached, and how much it counts: the product of the discounts before it (T, N)."""
    ones = torch.ones_like(discounts[:1])
    return torch.cat([ones, discounts[:-1]]).cumprod(0)


def actor_loss(
    logits: Tensor, actions: Tensor, returns: Tensor, baseline: Tensor, weights: Tensor, entropy_weight: float
) -> tuple[Tensor, Tensor]:
    """-mean of w_t (log pi(a_t | s_t) stop(R_{t+1} - v_t) + eta entropy_t) over t < T - 1, and the mean entropy.

    a_t leads from state t to state t + 1, whose return R_{t+1} begins with its reward; the last action's is not known.
    logits (T - 1, N, A), actions (T - 1, N), returns (T, N), baseline and weights (T - 1, N)."""
    logs, entropy = log_probability(logits, actions)
    objective = logs * (returns[1:] - baseline) + entropy_weight * entropy
    return -(weights * objective).mean(), entropy.detach().mean()


def critic_loss(values: Tensor, returns: Tensor, weights: Tensor) -> Tensor:
    """mean of w_t (v_t - R_t)^2 / 2, all (T, N)."""
    return 0.5 * (weights * (values - returns).square()).mean()


def behaviour_losses(
    networks: Networks, imagined: Imagined, terminated: Tensor, config: BehaviourConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """The actor's loss, the critic's, and numbers for the log; terminated (N,): whether the given states are absorbing,
    by which the first discount is the true one."""
    features, world = imagined.states.features, networks.world
    with torch.no_grad():
        rewards = scalar(world.reward, features[:-1])
        discounts = torch.sigmoid(scalar(world.discount, features[:-1]))
        discounts[0] = config.discount * (1 - terminated)
        slow = scalar(networks.slow_critic, features)
        returns, weights = lambda_returns(rewards, slow, discounts, config.trace), step_weights(discounts)
    logits = networks.actor(features[:-2]).to(features.dtype)
    actor, entropy = actor_loss(logits, imagined.actions[:-1], returns, slow[:-2], weights[:-1], config.entropy)
    critic = critic_loss(scalar(networks.critic, features[:-1]), returns, weights)
    numbers = [actor.detach(), critic.detach(), entropy, returns.mean(), rewards.mean(), discounts.mean()]
    return actor, critic, torch.stack(numbers)


def make_optimisers(networks: Networks, config: DreamerConfig) -> dict[str, torch.optim.AdamW]:
    """Adam for each of the three networks; its decay is a share per update, which PyTorch multiplies by the learning
    rate."""
    rates = {
        "model": (networks.world, config.model.learning_rate),
        "actor": (networks.actor, config.behaviour.actor_rate),
        "critic": (networks.critic, config.behaviour.critic_rate),
    }
    made = {}
    for name, (network, rate) in rates.items():
        parameters = list(network.parameters())
        adam = torch.optim.AdamW(
            parameters,
            rate,
            eps=config.learning.epsilon,
            weight_decay=config.learning.decay / rate,
            fused=True,
            capturable=is_gpu(parameters[0].device),
        )
        made[name] = with_state(adam)
    return made


def make_steps(
    networks: Networks,
    optimisers: dict[str, torch.optim.AdamW],
    config: DreamerConfig,
    execution: Execution = EAGER,
) -> tuple[Step, Step]:
    """The two gradient steps of an update.

    The world model's: (frames, actions, rewards, terminated, first, noise) -> h (L B, H), z (L B, G C), MODEL_NUMBERS.
    The behaviour's: (h, z, terminated, noise of actions, noise of latents) -> BEHAVIOUR_NUMBERS."""
    world, clip = networks.world, config.learning.clip

    def step_of(name: str, network: nn.Module) -> Tensor:
        norm = nn.utils.clip_grad_norm_(network.parameters(), clip)
        optimisers[name].step()
        return norm

    def model_step(*batch: Tensor) -> tuple[Tensor, ...]:
        optimisers["model"].zero_grad(set_to_none=True)
        with execution.autocast():
            loss = model_loss(world, *batch, config, execution)  # type: ignore[call-arg, arg-type]
        loss.total.backward()
        norm = step_of("model", world)
        hidden, sample = (x.detach().flatten(0, 1) for x in loss.states)
        return hidden, sample, torch.cat([loss.parts, norm[None]])

    def behaviour_step(
        hidden: Tensor, sample: Tensor, terminated: Tensor, action_noise: Tensor, noise: Tensor
    ) -> tuple[Tensor, ...]:
        for name in ("actor", "critic"):
            optimisers[name].zero_grad(set_to_none=True)
        with execution.autocast():
            ahead = execution.compiled(imagine_step)
            imagined = imagine(networks, States(hidden, sample), action_noise, noise, ahead)
            losses = execution.compiled(behaviour_losses)
            actor, critic, numbers = losses(networks, imagined, terminated, config.behaviour)
        (actor + critic).backward()  # they share no parameter
        norms = [step_of("actor", networks.actor), step_of("critic", networks.critic)]
        return (torch.cat([numbers, torch.stack(norms)]),)

    return model_step, behaviour_step
