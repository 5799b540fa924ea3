"""Planning: the value network of the sampled model, by fitted value iteration (Eq. 5 to 7).

The fast path. Encoder, sampled model and termination model are fixed while the value network learns, so the model is
rolled out before V is touched: one GRU scan, then the predictions of all actions in bulk, where possible once for
every state that is drawn in the update. V' is constant between two copies, so its targets for a whole block of steps
come from one pass. Only the gradient steps remain sequential.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from psdrl.agents.psdrl import descent
from psdrl.agents.psdrl.idle import Idle
from psdrl.agents.psdrl.learning import Losses, Optimisers, Sampler
from psdrl.agents.psdrl.lookahead import Happened, Predictions, predict
from psdrl.agents.psdrl.models import Models
from psdrl.agents.psdrl.networks import TanhNet
from psdrl.agents.psdrl.rollout import Block, Rollout
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.agents.psdrl.value import MinEnsemble
from psdrl.agents.psdrl.world_model import SampledModel
from psdrl.kernels.linear_tanh import linear, linear_tanh
from psdrl.kernels.linear_tanh.aten import product
from psdrl.kernels.tanh_net_steps import possible, serves, tanh_net_steps_
from psdrl.replay.episodes import Batch, Replay
from psdrl.runtime.execution import EAGER, Execution, optimiser_state

ROWS = 512  # states at a time that are looked at for zeros


@torch.no_grad()
def value_gradient(
    value: TanhNet, states: Tensor, targets: Tensor, one_pass: bool = False
) -> tuple[Tensor, list[descent.Layer]]:
    """Eq. 5 for states [z, h] (n, Z + H) and targets (n,): fills the parameters' .grad and returns the loss.

    Backpropagation through tanh layers, written out: 0.60 ms at the cpu preset, where autograd takes 0.76 ms. one_pass:
    the hidden layers get no .grad but are returned, for `descent.step`."""
    *hidden, last = value.linear_layers()
    kept = []
    inputs = [states]
    for layer in hidden:
        inputs.append(linear_tanh(inputs[-1], layer.weight, layer.bias))
    error = linear(inputs[-1], last.weight, last.bias).squeeze(1) - targets
    delta = (error * (2 / len(error)))[:, None]
    for layer, x in zip((last, *reversed(hidden)), reversed(inputs), strict=True):
        if one_pass and layer is not last:
            kept.append(descent.Layer(layer, x, delta))
        else:
            layer.weight.grad = product(delta.T, x).to(layer.weight.dtype)
            layer.bias.grad = delta.sum(0, dtype=layer.bias.dtype)
        if x is not states:  # back through the linear layer, then through the tanh that made x
            delta = torch.ops.aten.tanh_backward(product(delta, layer.weight), x)
    return error.square().mean(), kept


def planned_returns(predictions: Predictions, target: MinEnsemble) -> Tensor:
    """The targets (n,) of Eq. 5, as a function that can be compiled."""
    return predictions.planned(target)


def in_one_call(value: MinEnsemble, optimiser: torch.optim.Optimizer, states: Tensor, targets: Tensor) -> bool:
    """Whether csrc takes the gradient steps of states (n, B, Z + H), because it can and is faster than one by one."""
    if not possible(states, optimiser):
        return False
    one = value.networks()[0]
    return serves(states, value.tensors(), len(value), lambda: value_gradient(one, states[0], targets[0]))


def idle_inputs(models: Models, optimiser: torch.optim.Optimizer, latents: Tensor, batches: list[Batch]) -> Idle | None:
    """The inputs of V that planning from these batches can do without, if there are enough of them."""
    hidden = models.forward_model.hidden_size
    if not batches or latents.shape[1] + hidden <= models.value.units:
        return None
    drawn = torch.cat([batch.slots[:, :-1].flatten() for batch in batches]).unique()
    slots, _ = models.forward_model.memory.distinct(latents, drawn)
    used = torch.stack([latents[part].ne(0).any(0) for part in slots.split(ROWS)]).any(0)
    return Idle.found(models.value, models.target, optimiser, F.pad(used, (0, hidden), value=True))


def whole_sweep(blocks: Iterator[Block], length: int) -> list[Block]:
    """The next blocks, which are those of one batch of sequences of so many steps."""
    sweep, taken = list[Block](), 0
    while taken < length:
        sweep.append(next(blocks))
        taken += len(sweep[-1].states)
    return sweep


def train_value(
    models: Models,
    optimisers: Optimisers,
    replay: Replay,
    latents: Tensor,
    sample: Sampler,
    model: SampledModel,
    config: PsdrlConfig,
    execution: Execution = EAGER,
) -> Losses:
    """Line 12: per iteration one sweep through a batch, one gradient step per time step."""
    forward_model, value, target = models.forward_model, models.value, models.target
    optimiser = optimisers["value"]
    predict_all, one_pass = execution.compiled(predict), descent.in_one_pass(execution.device)
    targets_of, gradient = execution.compiled(planned_returns), execution.compiled(value_gradient)

    block = config.value.target_every
    rows = config.replay.batch * block * forward_model.num_actions
    plain = execution.plain and not config.value.hindsight
    narrow = forward_model.narrow(model, rows) if execution.plain else None
    width = latents.shape[1] + forward_model.hidden_size if narrow is None else narrow.width(config.value.hindsight)
    batches = [sample() for _ in range(config.planning_iterations)]
    idle = idle_inputs(models, optimiser, latents, batches) if plain and narrow is None else None
    if idle is not None:
        value, target, optimiser, width = idle.value, idle.target, idle.optimiser, idle.width

    def planned(predictions: Predictions, states: Tensor) -> Tensor:
        """The targets (n B,) from states (n, B, Z + H)."""
        if idle is not None:
            values = idle.values(predictions)
        elif narrow is not None:
            values = narrow.values(target, predictions, states.flatten(0, 1)[:, : latents.shape[1]])
        else:
            return targets_of(predictions, target)
        return target.planned(predictions.rewards, predictions.omega, values)

    @torch.no_grad()
    def ahead(latents_hidden: Tensor, rewards: Tensor, omega: Tensor, states: Tensor) -> tuple[Tensor]:
        """V' on what the actions of n steps lead to (n B, A, .): targets (n, B)."""
        with execution.autocast():
            return (planned(Predictions(latents_hidden, rewards, omega), states).view(states.shape[:2]),)

    @torch.no_grad()
    def learn(states: Tensor, targets: Tensor) -> tuple[Tensor]:
        """n gradient steps from states (n, B, Z + H)."""
        losses = []
        with execution.autocast():
            if execution.plain and in_one_call(value, optimiser, states, targets):
                return (tanh_net_steps_(states, targets, optimiser, value.tensors(), len(value)).flatten(),)
            for x, target in zip(states, targets, strict=True):
                found = value.each(partial(gradient, one_pass=one_pass), x, target)
                losses += [loss for loss, _ in found]
                descent.step(optimiser, [layer for _, kept in found for layer in kept])
        return (torch.stack(losses),)

    def steps(latents_hidden: Tensor, rewards: Tensor, omega: Tensor, states: Tensor) -> tuple[Tensor]:
        return learn(states, *ahead(latents_hidden, rewards, omega, states))

    @torch.no_grad()
    def foresee(z: Tensor, hidden: Tensor, happened: Happened | None) -> Predictions:
        if narrow is not None:
            return narrow.predict(models.termination, z, hidden, happened)
        with execution.autocast():
            predictions = predict_all(forward_model.fold(model), models.termination, z, hidden, happened)
        return predictions if idle is None else idle.of(predictions)

    run = execution.kept("value", steps, lambda: optimiser_state(value, optimiser))
    if config.value.trace:
        look = execution.kept("ahead", ahead)
        step = execution.kept("learn", learn, lambda: optimiser_state(value, optimiser))
    scan = execution.kept("scan", lambda inputs, hidden: (forward_model.scan(inputs, hidden),))
    losses: list[Tensor] = []
    how = (execution, block, width)
    rollout = Rollout(foresee, scan, forward_model, latents, replay, config.value.hindsight, *how)
    if idle is not None:
        rollout = rollout._replace(inputs=idle.inputs)
    with torch.no_grad():
        blocks = rollout.blocks(batches, config)
        for batch in batches if config.value.trace else ():
            sweep = whole_sweep(blocks, batch.actions.shape[1])
            value.update_target(target)
            found = [look(*predictions, states)[0] for _, states, predictions in sweep]
            targets = value.traced(torch.cat(found), batch.rewards.T, batch.terminated.T)
            for first, states, _ in sweep:
                if first % block == 0 and first:
                    value.update_target(target)
                losses += step(states, targets[first : first + len(states)])
        for first, states, predictions in blocks:  # all of them, without traces
            if first % block == 0:
                value.update_target(target)
            losses += run(*predictions, states)
    if idle is not None:
        idle.give_back(models.value, models.target, optimisers["value"])
    return {"value": torch.cat(losses).mean()} if losses else {}
