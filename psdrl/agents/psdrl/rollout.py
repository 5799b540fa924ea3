"""The sampled model, rolled out from the states of batches in the order of the gradient steps (`--value.sweep`)."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from psdrl.agents.psdrl.learning import Latents
from psdrl.agents.psdrl.lookahead import Happened, Predictions, joined
from psdrl.agents.psdrl.networks import one_hot
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.agents.psdrl.world_model import WorldModel
from psdrl.replay.episodes import Batch, Replay
from psdrl.runtime.execution import Execution
from psdrl.runtime.graphs import Step

TABLE_BYTES = 2**29  # of predictions that are kept for several batches
UNIT = 64  # states are predicted in multiples: oneDNN makes and keeps code for every other number of rows, 0.5 MB each


def stretches(length: int, block: int, most: int) -> Iterator[range]:
    """Consecutive ranges of at most max(1, `most`) steps that hold whole blocks, or lie within one block."""
    most = max(1, most)
    start = 0
    while start < length:
        rest = block - start % block  # steps left of the block that is under way
        stop = start + (rest + (most - rest) // block * block if most >= rest else most)
        yield range(start, min(stop, length))
        start = stop


class Block(NamedTuple):
    """Steps of a batch for which V' is constant, or a part of them."""

    first: int  # the first one's place in the sweep
    states: Tensor  # (n, B, Z + H) [z, h]
    predictions: Predictions  # (n B, A, .) what the actions lead to


class Rollout(NamedTuple):
    """Makes blocks of predictions."""

    predict: Callable[[Tensor, Tensor, Happened | None], Predictions]  # from z (n, Z) and h (n, H)
    scan: Step  # (inputs (T, B, Z + A), h_0 (B, H)) -> h_1 ... h_T
    model: WorldModel
    latents: Tensor
    replay: Replay
    hindsight: bool  # `--value.hindsight`
    execution: Execution
    block: int  # steps for which V' is constant
    width: int  # numbers that a prediction has
    inputs: Tensor | None = None  # of V, if not all of them, see `idle`

    @property
    def most(self) -> int:
        """States whose actions make no more than `chunk_rows` rows."""
        most = max(1, self.execution.chunk_rows // (self.model.num_actions * self.model.rows_per_state))
        return most // min(UNIT, most) * min(UNIT, most)

    def happened(self, slots: Tensor) -> Happened | None:
        """After the states at slots (n,), if planning is to know."""
        return Happened.at(self.replay, self.latents, slots) if self.hindsight else None

    def blocks(self, batches: list[Batch], config: PsdrlConfig) -> Iterator[Block]:
        """What each sweep through a batch needs, in the order of its gradient steps."""
        if not config.plans_within_episodes:
            return self.from_zero(batches)
        hidden = self.model.memory.hidden_states(self.model, self.replay, self.latents, self.execution.chunk_rows)
        return self.from_episodes(batches, hidden, config.value.sweep == "backward")

    def from_zero(self, batches: list[Batch]) -> Iterator[Block]:
        """Sequences start with h = 0: a state's h depends on where its sequence starts."""
        for batch in batches:
            size, length = batch.actions.shape
            z = self.latents[batch.slots[:, :-1].T]  # (L, B, Z), time first
            hidden = z.new_zeros(1, size, self.model.hidden_size)
            if length > 1:
                inputs = torch.cat([z, one_hot(batch.actions.T, self.model.num_actions, z)], 2)
                hidden = torch.cat([hidden, *self.scan(inputs[:-1], hidden[0])])
            states = torch.cat([z, hidden], 2)
            for stretch in stretches(length, self.block, self.most // size):
                rows = slice(stretch.start, stretch.stop)
                happened = self.happened(batch.slots[:, :-1].T[rows].flatten())
                ahead = self.predict(z[rows].flatten(0, 1), hidden[rows].flatten(0, 1), happened)
                for first in range(stretch.start, stretch.stop, self.block):
                    last = min(first + self.block, stretch.stop)
                    part = ahead.at(slice((first - stretch.start) * size, (last - stretch.start) * size))
                    yield Block(first, states[first:last], part)

    def from_episodes(self, batches: list[Batch], hidden_states: Tensor, backward: bool = False) -> Iterator[Block]:
        """A state has the h of its episode, `hidden_states` (slots, H), so one that is drawn again needs no new
        prediction: of the 30,720 that the cpu preset draws from a buffer of 10,000 states 9,500 differ."""
        if not batches:
            return
        drawn = torch.stack([batch.slots[:, :-1].T for batch in batches])  # (batches, L, B), time first
        slots, place = (drawn.flip(1) if backward else drawn).unique(return_inverse=True)
        if not self.hindsight:  # equal states are followed by different ones
            slots, of_slot = self.model.memory.distinct(self.latents, slots)
            place = of_slot[place]
        slots = torch.cat([slots, slots[-1:].expand(-len(slots) % min(UNIT, self.most))])  # the last one again
        z, hidden = self.latents[slots], hidden_states[slots]
        states = torch.cat([z, hidden], 1)
        states = states if self.inputs is None else states[:, self.inputs]
        size = self.model.num_actions * self.width * states.itemsize * len(slots)
        if size > TABLE_BYTES and len(batches) > 1:
            half = len(batches) // 2
            yield from self.from_episodes(batches[:half], hidden_states, backward)
            yield from self.from_episodes(batches[half:], hidden_states, backward)
            return
        parts = (x.split(self.most) for x in (z, hidden, slots))
        ahead = (self.predict(z, h, self.happened(at)) for z, h, at in zip(*parts, strict=True))
        table = joined(ahead, len(slots), self.execution)
        for batch in place:
            for first in range(0, len(batch), self.block):
                rows = batch[first : first + self.block]
                yield Block(first, states[rows], table.at(rows.flatten()))


State = tuple[Tensor, Tensor, Tensor]  # slots (B,), z (B, Z) and h (B, H)


@torch.no_grad()
def plain_hidden_states(model: WorldModel, replay: Replay, latents: Latents) -> Tensor:
    """h_t (slots, H) of all stored states but the last of each episode; episodes that still run go on together."""
    table = model.no_hidden(replay.num_slots)
    for t in range(max(episode.length for episode in replay.episodes) - 1):
        starts = [episode.start for episode in replay.episodes if episode.length > t + 1]
        now = (torch.tensor(starts, device=replay.device) + t) % replay.num_slots
        table[(now + 1) % replay.num_slots] = model.next_hidden(latents[now], replay.actions[now], table[now])
    return table


def plain_sweep(
    model: WorldModel, replay: Replay, latents: Latents, config: PsdrlConfig
) -> Callable[[Batch], Iterable[State]]:
    """For the oracle: how to go through a batch, state by state."""

    @torch.no_grad()
    def states(batch: Batch, hidden: Tensor) -> Iterator[State]:
        for t in range(batch.actions.shape[1]):
            z = latents[batch.slots[:, t]]
            yield batch.slots[:, t], z, hidden
            hidden = model.next_hidden(z, batch.actions[:, t], hidden)

    if config.value.sweep == "paper":
        return lambda batch: states(batch, model.no_hidden(len(batch.actions)))
    table = plain_hidden_states(model, replay, latents)
    if config.value.sweep == "episode":
        return lambda batch: states(batch, table[batch.slots[:, 0]])
    return lambda batch: reversed(list(states(batch, table[batch.slots[:, 0]])))
