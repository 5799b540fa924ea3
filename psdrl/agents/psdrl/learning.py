"""World-model learning: autoencoder (Eq. 1), forward model (Eq. 2), termination model (Eq. 3).

The fast path. Latent states come from a table that is filled once per update. Within a window of truncated
backpropagation the parameters are fixed, so the GRU is scanned first and everything that is not recurrent runs over
all l * B rows at once.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from psdrl.agents.psdrl import descent, one_call
from psdrl.agents.psdrl.deduplicate import counted, firsts
from psdrl.agents.psdrl.encoder import Encoder
from psdrl.agents.psdrl.models import Models
from psdrl.agents.psdrl.networks import one_hot
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.agents.psdrl.termination import Termination
from psdrl.agents.psdrl.world_model import WorldModel
from psdrl.kernels.linear_tanh import linear_tanh
from psdrl.kernels.linear_tanh.aten import product
from psdrl.replay.episodes import Batch, Replay, Slots, parts
from psdrl.runtime.device import is_gpu
from psdrl.runtime.execution import EAGER, Execution, optimiser_state

CPU_FRAMES, GPU_FRAMES = 256, 2048
Sampler = Callable[[], Batch]
Optimisers = dict[str, torch.optim.Optimizer]
Losses = dict[str, Tensor]


class Latents(Protocol):
    """Latent states by replay slot: encoded anew at each use (plain) or once per update (fast)."""

    def __getitem__(self, slots: Tensor, /) -> Tensor:
        """z (..., Z) of slots (...)."""


def make_optimisers(models: Models, config: PsdrlConfig, fused: bool = True) -> Optimisers:
    """One Adam per network; vector observations have no autoencoder to train."""
    networks: dict[str, tuple[nn.Module, float]] = {
        "forward": (models.forward_model, config.forward.learning_rate),
        "termination": (models.termination, config.termination.learning_rate),
        "value": (models.value, config.value.learning_rate),
    }
    if models.autoencoder.trained:
        networks["autoencoder"] = (models.autoencoder, config.autoencoder.learning_rate)
    optimisers: Optimisers = {}
    for name, (network, rate) in networks.items():
        capturable = fused and next(network.parameters()).is_cuda
        optimisers[name] = torch.optim.Adam(network.parameters(), rate, fused=fused, capturable=capturable)
        restart(optimisers[name])
    return optimisers


def restart(optimiser: torch.optim.Optimizer) -> None:
    """Adam's state before its first step. It exists from the start and never moves, as CUDA graphs want it."""
    for group in optimiser.param_groups:
        for p in group["params"]:
            state, device = optimiser.state[p], p.device if group["fused"] or group["capturable"] else "cpu"
            state.setdefault("step", torch.zeros((), device=device)).zero_()
            for name in ("exp_avg", "exp_avg_sq"):
                state.setdefault(name, torch.zeros_like(p, memory_format=torch.preserve_format)).zero_()


def gradient_step(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step down the gradient of the loss."""
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    optimiser.step()


def descend(
    optimiser: torch.optim.Optimizer,
    loss: Tensor,
    layers: Sequence[nn.Linear],
    taps: Sequence[Tensor],
    inputs: Sequence[Tensor],
) -> None:
    """The same, where some layers may have taps."""
    if taps:
        descent.tapped_step(optimiser, loss, layers, taps, inputs)
    else:
        gradient_step(optimiser, loss)


def autoencoder_loss(autoencoder: Encoder, observations: Tensor) -> Tensor:
    """Eq. 1, as a function that can be compiled."""
    return autoencoder.loss(observations)


def train_autoencoder(
    models: Models,
    optimisers: Optimisers,
    replay: Replay,
    sample: Sampler,
    config: PsdrlConfig,
    execution: Execution = EAGER,
) -> Losses:
    """Line 6 of Algorithm 1: per iteration B gradient steps, each on the L observations of one sequence."""
    autoencoder = models.autoencoder
    if not autoencoder.trained:
        return {}
    optimiser, loss_of = optimisers["autoencoder"], execution.compiled(autoencoder_loss)

    def step(observations: Tensor) -> tuple[Tensor]:
        with execution.fixed_shapes():
            with execution.image_autocast():
                loss = loss_of(autoencoder, observations)
            gradient_step(optimiser, loss)
        return (loss.detach(),)

    run = execution.kept("autoencoder", step, lambda: optimiser_state(autoencoder, optimiser))
    losses: list[Tensor] = []
    for _ in range(config.autoencoder.iterations):
        slots = sample().slots[:, :-1]
        taken = in_one_call(autoencoder, optimiser, replay, slots) if execution.plain else None
        losses += [taken] if taken is not None else [torch.stack(run(replay.frames(row))) for row in slots]
    return {"autoencoder": torch.cat(losses).mean()} if losses else {}


def in_one_call(autoencoder: Encoder, optimiser: torch.optim.Optimizer, replay: Replay, slots: Tensor) -> Tensor | None:
    """The same steps on sequences at slots (B, L), if one call can take them."""
    if autoencoder.pictures() is None or not slots.numel():
        return None
    frames = replay.frames(slots.flatten()).unflatten(0, slots.shape)
    return one_call.train_autoencoder(autoencoder, optimiser, frames, lambda: autoencoder.loss(frames[0]).backward())


def chunks(slots: Slots, execution: Execution) -> Iterator[Slots]:
    """Slots (n,) in chunks to encode. On a CPU 256 frames make 47 MB of activations in the paper's first convolution,
    and more are no faster. A GPU takes 2,048, and always as many, so that cuDNN meets one shape: the last slot is
    repeated until the last chunk is full."""
    size = min(execution.chunk_rows, GPU_FRAMES if is_gpu(execution.device) else CPU_FRAMES)
    if is_gpu(execution.device) and isinstance(slots, Tensor) and len(slots):
        slots = torch.cat([slots, slots[-1:].expand(-len(slots) % size)])
    return parts(slots, size)


@torch.no_grad()
def encode_buffer(models: Models, replay: Replay, execution: Execution = EAGER) -> Tensor:
    """Latent states (slots, Z) of all stored observations, each encoded once. Slots that hold none are left as they
    are: filling MinAtar Freeway's 945 MB takes longer than encoding 10,000 of its states."""
    like = next(models.forward_model.parameters())
    table = execution.scratch("latents", like, replay.num_slots, models.autoencoder.latent_size)
    for rows in chunks(replay.stored_rows(), execution):
        with execution.fixed_shapes(), execution.image_autocast():
            latents = models.autoencoder.latents(replay.frames(rows))
        table[rows] = latents.to(table)
    models.autoencoder.rescale_(table, replay.stored_rows(), models.forward_model)
    return table


class LinearTanh(torch.autograd.Function):
    """tanh(x W^T + b) by the fused kernel, and its gradient: 0.19 ms less per layer and window at the cpu preset."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = linear_tanh(x, weight, bias)
        ctx.save_for_backward(x.to(y.dtype), weight.to(y.dtype), y)
        ctx.dtypes = (x.dtype, weight.dtype)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight, y), (inner, outer) = ctx.saved_tensors, ctx.dtypes
        delta = torch.ops.aten.tanh_backward(gradient, y)
        onward = product(delta, weight).to(inner) if ctx.needs_input_grad[0] else None
        return onward, product(delta.T, x).to(outer), delta.sum(0, dtype=outer)


def fused_tanh(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The layer for training; see `psdrl.agents.psdrl.networks.TanhLayer`."""
    return LinearTanh.apply(x, weight, bias)


def window_loss(
    model: WorldModel,
    latents: Tensor,
    actions: Tensor,
    rewards: Tensor,
    hidden: Tensor,
    share: Tensor | None = None,
    taps: Sequence[Tensor] = (),
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Eq. 2 over a window: z (l + 1, B, Z), a and r (l, B), h_0 (B, H) -> the loss, h_l (B, H), z^' (l B, Z), and what
    enters the layers that have `taps`.

    `share` (l B,): of each transition in the mean, 1 / (l B) if not given."""
    following = latents[1:].flatten(0, 1)
    inputs = torch.cat([latents[:-1], one_hot(actions, model.num_actions, latents)], 2)
    states = model.scan(inputs, hidden)
    x, tapping = torch.cat([states, inputs], 2).flatten(0, 1), descent.Tapping(taps)
    target = torch.cat([following, rewards.reshape(-1, 1).to(following)], 1)
    if taps:
        prediction = model.tapped(x, tapping)
    else:
        prediction = model.predicted(model.feature_layers(x, fused_tanh), model.output.weight, model.output.bias)
    following_states, last = prediction[:, :-1].detach(), states[-1].detach()
    if share is not None:  # the loss is a mean of squares
        root = (share * len(share)).sqrt()[:, None]
        prediction, target = prediction * root, target * root
    return model.loss(prediction, target), last, following_states, tapping.inputs


def termination_loss(
    termination: Termination,
    following: Tensor,
    ends: Tensor,
    predicted: Tensor | None,
    share: Tensor | None = None,
    taps: Sequence[Tensor] = (),
) -> tuple[Tensor, list[Tensor]]:
    """Eq. 3, as a function that can be compiled; `share` and `taps` as in `window_loss`."""
    tapping = descent.Tapping(taps)
    loss = termination.loss(following, ends, predicted, tapping.tanh if taps else fused_tanh, share)
    return loss, tapping.inputs


def merged(z: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """A window of transitions, z (l + 1, B, Z) and others (l, B), as one step of the m that differ, (2, m, Z), (1, m),
    and the share (m,) of each: without memory their order does not matter."""
    before, after = z[:-1].flatten(0, 1), z[1:].flatten(0, 1)
    columns = torch.stack([x.flatten().to(z) for x in others], 1)
    rows = torch.cat([before, after, columns], 1)
    kept, share = counted(firsts(rows, torch.arange(len(rows), device=z.device)))
    return torch.stack([before[kept], after[kept]]), *(x.flatten()[kept][None] for x in others), share.to(z)


def train_forward(
    models: Models,
    optimisers: Optimisers,
    latents: Latents,
    sample: Sampler,
    config: PsdrlConfig,
    execution: Execution = EAGER,
) -> Losses:
    """Lines 7 and 8: windows of l steps of truncated backpropagation through time, the hidden state carried on."""
    forward_model, termination = models.forward_model, models.termination
    loss_of, termination_loss_of = execution.compiled(window_loss), execution.compiled(termination_loss)

    one_pass = descent.in_one_pass(execution.device)
    layers, end_layers = (m.tapped_layers() if one_pass else [] for m in (forward_model, termination))

    def learn_ends(following: Tensor, ends: Tensor, predicted: Tensor | None, share: Tensor | None) -> Tensor:
        taps = descent.make_taps(end_layers, len(ends) * (2 if predicted is not None else 1), execution.made(following))
        with execution.autocast():
            loss, inputs = termination_loss_of(termination, following, ends, predicted, share, taps)
        descend(optimisers["termination"], loss, end_layers, taps, inputs)
        return loss.detach()

    def step(
        z: Tensor, actions: Tensor, rewards: Tensor, terminated: Tensor, hidden: Tensor, share: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        following, ends = z[1:].flatten(0, 1), terminated.flatten()
        if not termination.predicted:
            beside, join = execution.beside()  # the two networks share nothing but the latent states
            with beside:
                ended = learn_ends(following, ends, None, share)
        taps = descent.make_taps(layers, actions.numel(), execution.made(z))
        with execution.autocast():
            loss, hidden, prediction, inputs = loss_of(forward_model, z, actions, rewards, hidden, share, taps)
        descend(optimisers["forward"], loss, layers, taps, inputs)
        if termination.predicted:
            ended = learn_ends(following, ends, prediction, share)
        else:
            join()
        return hidden, loss.detach(), ended

    def state() -> list[Tensor]:
        forward = optimiser_state(forward_model, optimisers["forward"])
        return forward + optimiser_state(termination, optimisers["termination"])

    def whole(z: Tensor, window: list[Tensor], share: Tensor | None = None) -> list[tuple[Tensor, Tensor]]:
        """All windows of z (L + 1, B, Z) and actions, rewards and ends (L, B) in one call, if that serves."""
        part = slice(0, config.forward.window)
        first, (actions, rewards, ends) = z[: config.forward.window + 1], (x[part] for x in window)
        hidden, following = forward_model.no_hidden(z.shape[1]), first[1:].flatten(0, 1)
        return one_call.train_forward(
            models,
            optimisers,
            (z, *window),
            config.forward.window,
            share,
            lambda: window_loss(forward_model, first, actions, rewards, hidden)[0].backward(),
            lambda: termination_loss(termination, following, ends.flatten(), None)[0].backward(),
        )

    run = execution.kept("window", step, state)
    merge = execution.sizes_may_vary and config.forward.recurrent == 0
    in_one = execution.plain and forward_model.window_net() is not None
    losses: list[Sequence[Tensor]] = []
    for _ in range(config.forward.iterations):
        batch = sample()
        size, length = batch.actions.shape
        data = [x.T for x in (batch.actions, batch.rewards, batch.terminated)]  # time first
        if in_one and not merge and (found := whole(latents[batch.slots.T], data)):
            losses += found
            continue
        hidden = forward_model.no_hidden(size)
        for start in range(0, length, config.forward.window):
            stop = min(start + config.forward.window, length)
            window = [x[start:stop] for x in data]
            z = latents[batch.slots[:, start : stop + 1].T]
            if not merge:
                hidden, *both = run(z, *window, hidden)
                losses.append(both)
                continue
            z, *window, share = merged(z, *window)
            found = whole(z, window, share) if in_one else []
            losses += found or [run(z, *window, forward_model.no_hidden(z.shape[1]), share)[1:]]
    if not losses:
        return {}
    forward_losses, termination_losses = zip(*losses, strict=True)
    return {"forward": torch.stack(forward_losses).mean(), "termination": torch.stack(termination_losses).mean()}
