"""The losses of `learning.py` as the DreamerV2 paper writes them: step by step, every layer on its joined inputs, every
head asked in every step. Same numbers from the same noise up to rounding; tests and benchmarks compare.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, kl_divergence
from torch.nn import functional as F

from psdrl.agents.dreamer.categorical import draw
from psdrl.agents.dreamer.learning import ModelLoss
from psdrl.agents.dreamer.networks import UPDATE_BIAS, Networks, RecurrentModel, States, WorldModel
from psdrl.agents.dreamer.settings import DreamerConfig


def joined(parts: tuple[nn.Linear, ...], inputs: tuple[Tensor, ...]) -> Tensor:
    """One linear layer on all inputs: W [x, y, ...] + b."""
    weight = torch.cat([part.weight for part in parts], 1)
    return F.linear(torch.cat(inputs, -1), weight, parts[0].bias)


def gru(model: RecurrentModel, x: Tensor, hidden: Tensor) -> Tensor:
    """The cell: one linear layer and one normalisation of all gates; the reset gate scales the candidate."""
    gates = model.norm(model.gates(torch.cat([x, hidden], -1)))
    reset, candidate, update = gates.chunk(3, -1)
    reset, update = torch.sigmoid(reset), torch.sigmoid(update + UPDATE_BIAS)
    return update * torch.tanh(reset * candidate) + (1 - update) * hidden


def advance(model: RecurrentModel, state: States, action: Tensor) -> Tensor:
    """h_t of z_{t-1}, one-hot a_{t-1} and h_{t-1}."""
    x = F.elu(joined((model.from_sample, model.from_action), (state.sample, action)))
    return gru(model, x, state.hidden)


def straight_through(logits: Tensor, noise: Tensor) -> Tensor:
    """sample + p - stop(p), (n, G C)."""
    p = logits.softmax(-1)
    sample = F.one_hot(draw(p, noise), p.shape[-1]).to(p.dtype)
    return (sample + p - p.detach()).flatten(1)


def model_loss(
    world: WorldModel,
    frames: Tensor,
    actions: Tensor,
    rewards: Tensor,
    terminated: Tensor,
    first: Tensor,
    noise: Tensor,
    config: DreamerConfig,
) -> ModelLoss:
    """The world model's loss on sequences, time first."""
    model, settings = world.recurrent, config.model
    state = model.start(frames.shape[1])
    parts, states = [], []
    for t in range(len(frames)):
        inputs, keep = world.inputs(frames[t]), (1 - first[t])[:, None]
        action = F.one_hot(actions[t], model.from_action.in_features).to(inputs.dtype) * keep
        hidden = advance(model, States(state.hidden * keep, state.sample * keep), action)
        prior = model.prior(hidden).unflatten(-1, (model.groups, model.classes))
        layer = joined((model.from_hidden, model.from_embedding), (hidden, world.encoder(inputs)))
        posterior = model.posterior(F.elu(layer)).unflatten(-1, (model.groups, model.classes))
        state = States(hidden, straight_through(posterior, noise[t]))
        states.append(state)
        features = state.features
        goes_on = config.behaviour.discount * (1 - terminated[t])
        q, p = Categorical(logits=posterior), Categorical(logits=prior)
        stopped = Categorical(logits=posterior.detach()), Categorical(logits=prior.detach())
        to_prior, to_posterior = kl_divergence(stopped[0], p).sum(1), kl_divergence(q, stopped[1]).sum(1)
        parts.append(
            torch.stack(
                [
                    0.5 * (world.decoder(features) - inputs).square().flatten(1).sum(1),
                    0.5 * (world.reward(features)[:, 0] - rewards[t]).square(),
                    -Bernoulli(logits=world.discount(features)[:, 0], validate_args=False).log_prob(goes_on),
                    settings.kl_balance * to_prior + (1 - settings.kl_balance) * to_posterior,
                ]
            )
        )
    means = torch.stack(parts).mean((0, 2))
    weights = means.new_tensor([1.0, 1.0, settings.discount_weight, settings.kl_weight])
    hidden, sample = (torch.stack(list(x)) for x in zip(*states, strict=True))
    return ModelLoss((weights * means).sum(), means.detach(), States(hidden, sample))


def behaviour_losses(
    networks: Networks, start: States, terminated: Tensor, action_noise: Tensor, noise: Tensor, config: DreamerConfig
) -> tuple[Tensor, Tensor]:
    """The losses of actor and critic, imagined step by step; t counts states, the given ones are t = 0."""
    world, model, behaviour = networks.world, networks.world.recurrent, config.behaviour
    horizon, state = behaviour.horizon, start
    rewards, discounts, values, slow, logs, entropies = [], [], [], [], [], []
    for t in range(horizon + 1):
        features = state.features
        with torch.no_grad():
            rewards.append(world.reward(features)[:, 0])
            discounts.append(torch.sigmoid(world.discount(features)[:, 0]))
            slow.append(networks.slow_critic(features)[:, 0])
        values.append(networks.critic(features)[:, 0])
        if t == horizon:
            break
        policy = Categorical(logits=networks.actor(features))
        actions = draw(policy.probs.detach(), action_noise[t])
        logs.append(policy.log_prob(actions))
        entropies.append(policy.entropy())
        with torch.no_grad():
            action = F.one_hot(actions, model.from_action.in_features).to(features.dtype)
            hidden = advance(model, state, action)
            prior = model.prior(hidden).unflatten(-1, (model.groups, model.classes))
            state = States(hidden, straight_through(prior, noise[t]))
    discounts[0] = behaviour.discount * (1 - terminated)
    returns = {horizon: slow[horizon]}
    for t in reversed(range(horizon)):
        mixed = (1 - behaviour.trace) * slow[t + 1] + behaviour.trace * returns[t + 1]
        returns[t] = rewards[t] + discounts[t] * mixed
    weight = torch.ones_like(terminated)
    actor, critic = [], []
    for t in range(horizon):
        critic.append(0.5 * weight * (values[t] - returns[t]).square())
        if t < horizon - 1:
            advantage = returns[t + 1] - slow[t]
            actor.append(-weight * (logs[t] * advantage + behaviour.entropy * entropies[t]))
        weight = weight * discounts[t]
    return torch.stack(actor).mean(), torch.stack(critic).mean()


def make_steps(
    networks: Networks, optimisers: dict[str, torch.optim.AdamW], config: DreamerConfig
) -> tuple[Callable[..., tuple[Tensor, ...]], Callable[..., tuple[Tensor, ...]]]:
    """The gradient steps of `learning.make_steps`, with the losses above; they return losses only."""

    def descend(name: str, network: nn.Module, loss: Tensor) -> None:
        optimisers[name].zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), config.learning.clip)
        optimisers[name].step()

    def model_step(*batch: Tensor) -> tuple[Tensor, ...]:
        loss = model_loss(networks.world, *batch, config)  # type: ignore[call-arg, arg-type]
        descend("model", networks.world, loss.total)
        hidden, sample = (x.detach().flatten(0, 1) for x in loss.states)
        return hidden, sample, loss.parts

    def behaviour_step(hidden: Tensor, sample: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        actor, critic = behaviour_losses(networks, States(hidden, sample), *rest, config)  # type: ignore[call-arg, arg-type]
        descend("actor", networks.actor, actor)
        descend("critic", networks.critic, critic)
        return (torch.stack([actor, critic]).detach(),)

    return model_step, behaviour_step
