"""Planning: the value network of the sampled model, by fitted value iteration (Eq. 5 to 7).

The fast path. Encoder, sampled model and termination model are fixed while the value network learns, so the model is
rolled out before V is touched: one GRU scan, then the predictions of all actions in bulk. V' is constant between two
copies, so its targets for a whole block of steps come from one pass. Only the gradient steps remain sequential.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from psdrl.config import Config
from psdrl.execution import EAGER, Execution, optimiser_state
from psdrl.kernels.linear_tanh import linear, linear_tanh
from psdrl.kernels.linear_tanh.aten import product
from psdrl.kernels.lookahead.factored import Predictions, folded, predict
from psdrl.learning import Latents, Losses, Optimisers, Sampler, scan
from psdrl.models import Models, SampledModel, Smallest, TanhNet, one_hot


@torch.no_grad()
def follow(source: nn.Module, target: nn.Module, rate: float = 1.0) -> None:
    """psi' <- psi in place, or by this part of the way."""
    old: list[Tensor] = list(target.parameters())
    new: list[Tensor] = list(source.parameters())
    if rate == 1:
        torch._foreach_copy_(old, new)
    else:
        torch._foreach_lerp_(old, new, rate)


def stretches(length: int, block: int, most: int) -> Iterator[range]:
    """Consecutive ranges of at most max(1, `most`) steps that hold whole blocks, or lie within one block."""
    most = max(1, most)
    start = 0
    while start < length:
        rest = block - start % block  # steps left of the block that is under way
        stop = start + (rest + (most - rest) // block * block if most >= rest else most)
        yield range(start, min(stop, length))
        start = stop


@torch.no_grad()
def value_gradient(value: TanhNet, states: Tensor, targets: Tensor) -> Tensor:
    """Eq. 5 for states [z, h] (n, Z + H) and targets (n,): fills the parameters' .grad and returns the loss.

    Backpropagation through tanh layers, written out: 0.60 ms at the cpu preset, where autograd takes 0.76 ms.
    """
    *hidden, last = value.linear_layers()
    inputs = [states]
    for layer in hidden:
        inputs.append(linear_tanh(inputs[-1], layer.weight, layer.bias))
    error = linear(inputs[-1], last.weight, last.bias).squeeze(1) - targets
    delta = (error * (2 / len(error)))[:, None]
    for layer, x in zip((last, *reversed(hidden)), reversed(inputs), strict=True):
        layer.weight.grad = product(delta.T, x).to(layer.weight.dtype)
        layer.bias.grad = delta.sum(0, dtype=layer.bias.dtype)
        if x is not states:  # back through the linear layer, then through the tanh that made x
            delta = torch.ops.aten.tanh_backward(product(delta, layer.weight), x)
    return error.square().mean()


def planned_returns(predictions: Predictions, value: Smallest, discount: float, random: float) -> Tensor:
    """max over actions of r^ + gamma * v^ (n,), with this share of random actions."""
    return predictions.planned(value, discount, random)


def train_value(
    models: Models,
    optimisers: Optimisers,
    latents: Latents,
    sample: Sampler,
    model: SampledModel,
    config: Config,
    hidden_states: Tensor | None = None,
    execution: Execution = EAGER,
) -> Losses:
    """Line 12: per iteration one sweep through a batch, one gradient step per time step.

    Sequences start with h = 0, or with that of their first state in `hidden_states` (slots, H)."""
    iterations = config.value.iterations * (4 if config.algo == "fresh-value" else 1)
    forward_model, value, optimiser = models.forward_model, models.value, optimisers["value"]
    predict_all = execution.compiled(predict)
    targets_of, gradient = execution.compiled(planned_returns), execution.compiled(value_gradient)
    threshold, discount, random = config.termination.threshold, config.value.discount, config.value.random_share
    networks = value.networks()

    @torch.no_grad()
    def steps(latents_hidden: Tensor, rewards: Tensor, omega: Tensor, states: Tensor) -> tuple[Tensor]:
        """V' on what the actions of n steps lead to (n B, A, .), then n gradient steps from states (n, B, Z + H)."""
        predictions = Predictions(latents_hidden, rewards, omega, threshold)
        losses = []
        with execution.autocast():
            targets = targets_of(predictions, models.target, discount, random).view(states.shape[:2])
            for x, target in zip(states, targets, strict=True):
                losses += [gradient(network, x, target) for network in networks]
                optimiser.step()
        return (torch.stack(losses),)

    run = execution.kept("value", steps, lambda: optimiser_state(value, optimiser))
    walk = execution.kept("scan", lambda inputs, hidden: (scan(forward_model, inputs, hidden),))
    losses: list[Tensor] = []
    for _ in range(iterations):
        batch = sample()
        size, length = batch.actions.shape
        with torch.no_grad():
            z = latents[batch.slots[:, :-1].T]  # (L, B, Z), time first
            inputs = torch.cat([z, one_hot(batch.actions.T, forward_model.num_actions, z)], 2)
            start = z.new_zeros(1, size, config.forward.recurrent)
            if hidden_states is not None:
                start = hidden_states[batch.slots[:, 0]][None]
            hidden = torch.cat([start, *walk(inputs[:-1], start[0])]) if length > 1 else start
            states = torch.cat([z, hidden], 2)
        most = config.chunk_rows // (size * forward_model.num_actions * forward_model.rows_per_state)
        for stretch in stretches(length, config.value.target_every, most):
            rows = slice(stretch.start, stretch.stop)
            with torch.no_grad(), execution.autocast():
                predictions = predict_all(
                    folded(forward_model, model),
                    models.termination,
                    z[rows].flatten(0, 1),
                    hidden[rows].flatten(0, 1),
                    threshold,
                    models.bounds,
                )
            for first in range(stretch.start, stretch.stop, config.value.target_every):
                last = min(first + config.value.target_every, stretch.stop)
                if first % config.value.target_every == 0:
                    follow(value, models.target, config.value.target_rate)
                part = predictions.rows((first - stretch.start) * size, (last - stretch.start) * size)
                losses += run(part.latents_hidden, part.rewards, part.omega, states[first:last])
    return {"value": torch.cat(losses).mean()} if losses else {}
