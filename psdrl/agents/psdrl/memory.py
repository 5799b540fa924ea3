"""What a world model's memory means for the stored states: which hidden states they have, which need predictions."""

import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from psdrl.agents.psdrl.deduplicate import firsts
from psdrl.agents.psdrl.networks import one_hot
from psdrl.replay.episodes import Episode, Replay

if TYPE_CHECKING:
    from psdrl.agents.psdrl.learning import Latents
    from psdrl.agents.psdrl.world_model import WorldModel


class Transitions(NamedTuple):
    """Rows of the regression."""

    inputs: Tensor  # (n, H + Z + A) [h', z, onehot(a)]
    targets: Tensor  # (n, Z + 1) [z', r]
    times: Tensor | None = None  # (n,) how often each occurs, if not once


def targets_at(replay: Replay, latents: Tensor, slots: Tensor) -> Tensor:
    """[z', r] (n, Z + 1) of the transitions at slots (n,)."""
    following = latents[(slots + 1) % replay.num_slots]
    return torch.cat([following, replay.rewards[slots, None].to(following)], 1)


class Stretch(NamedTuple):
    """Consecutive time steps of the stored episodes that last so long: rows of a packed sequence."""

    slots: Tensor  # (n,) where s_t is stored
    inputs: Tensor  # (n, Z + A) [z_t, onehot(a_t)]
    hidden: Tensor  # (n, H) h_t
    next_hidden: Tensor  # (n, H) h_{t+1}


@torch.no_grad()
def walk(
    model: "WorldModel", replay: Replay, latents: "Latents", chunk_rows: int, some: Iterable[Episode] | None = None
) -> Iterator[Stretch]:
    """All stored episodes, or some, from their start, h_0 = 0, in stretches of at most `chunk_rows` rows (at least one
    step).

    Episodes are packed by length (longest first), so nothing is padded; each stretch is a packed GRU scan.
    """
    episodes = sorted(replay.episodes if some is None else some, key=lambda episode: -episode.length)
    starts = torch.tensor([episode.start for episode in episodes])
    lengths = np.array([episode.length for episode in episodes])
    active = len(episodes) - np.searchsorted(lengths[::-1], np.arange(lengths[0]), side="right")  # per time step
    hidden = model.no_hidden(len(episodes))
    time = 0
    while time < len(active):
        steps = max(1, int(np.searchsorted(np.cumsum(active[time:]), chunk_rows, side="right")))
        sizes = active[time : time + steps]
        rows = torch.cat([starts[:size] + t for t, size in enumerate(sizes, time)]) % replay.num_slots
        rows = rows.to(replay.device)
        z = latents[rows]
        inputs = torch.cat([z, one_hot(replay.actions[rows], model.num_actions, z)], 1)
        states = model.scan(inputs, hidden[: sizes[0]], torch.from_numpy(sizes))
        by_step = states.split(sizes.tolist())
        following = (h[:size] for h, size in zip(by_step, sizes[1:], strict=False))
        yield Stretch(rows, inputs, torch.cat([hidden[: sizes[0]], *following]), states)
        hidden = by_step[-1]
        time += steps


class Walked(NamedTuple):
    """Hidden states that a walk has passed, and what they were made of."""

    latents: Tensor  # the table itself: every update makes a new one
    versions: tuple[int, ...]  # of the GRU's parameters, which count their changes
    rows: int
    table: Tensor  # (slots, H)


class Memory:
    """h is the GRU's: every state of every episode has its own.

    Posterior and planning walk through the same episodes with the same GRU: once planning has asked for hidden states,
    the posterior's walk keeps them for it."""

    def __init__(self) -> None:
        self._wanted, self._walked = False, list[Walked]()

    def transitions(self, model: "WorldModel", replay: Replay, latents: Tensor, rows: int) -> Iterator[Transitions]:
        """All stored transitions, at most `rows` at a time (at least one step)."""
        table = model.no_hidden(replay.num_slots) if self._wanted else None
        for slots, inputs, hidden, next_hidden in walk(model, replay, latents, rows):
            if table is not None:
                table[slots] = hidden
            yield Transitions(torch.cat([next_hidden, inputs], 1), targets_at(replay, latents, slots))
        if table is not None:
            self._walked = [Walked(latents, _versions(model), rows, table)]

    def hidden_states(self, model: "WorldModel", replay: Replay, latents: Tensor, rows: int) -> Tensor:
        """h_t (slots, H) of all stored states but the last of each episode, as playing leads to them."""
        self._wanted, walked = True, self._walked
        self._walked = []
        if (
            walked
            and walked[0].latents is latents
            and walked[0].versions == _versions(model)
            and walked[0].rows == rows
        ):
            return walked[0].table
        table = model.no_hidden(replay.num_slots)
        for stretch in walk(model, replay, latents, rows):
            table[stretch.slots] = stretch.hidden
        return table

    def states(
        self, model: "WorldModel", replay: Replay, latents: "Latents", some: list[Episode]
    ) -> tuple[Tensor, Tensor]:
        """The slots (n,) of these episodes' transitions, and h_t (n, H) there, as playing led to them."""
        rows = sum(episode.length for episode in some)
        parts = [(stretch.slots, stretch.hidden) for stretch in walk(model, replay, latents, rows, some)]
        slots, hidden = (torch.cat(part) for part in zip(*parts, strict=True))
        return slots, hidden

    def distinct(self, latents: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Of states at slots (n,) with the h of their episodes: slots (m,) that suffice to predict from, and which of
        these (n,) each is."""
        return slots, torch.arange(len(slots), device=slots.device)


def _versions(model: "WorldModel") -> tuple[int, ...]:
    return tuple(parameter._version for parameter in model.gru.parameters())


class Numbered(NamedTuple):
    """Which stored states are equal."""

    latents: "weakref.ref[Tensor]"  # the table itself: every update makes a new one
    state: Tensor  # (slots,) the slot of the first that is equal


class Memoryless(Memory):
    """h stays zero (`--forward.recurrent 0`): equal states have equal predictions."""

    def __init__(self, gru: nn.GRUCell) -> None:
        super().__init__()
        gru.requires_grad_(False)
        for parameter in gru.parameters():  # 0.5 tanh(0) + 0.5 h: h stays zero
            parameter.zero_()
        self._numbered = list[Numbered]()  # by the last posterior, for planning

    def transitions(self, model: "WorldModel", replay: Replay, latents: Tensor, rows: int) -> Iterator[Transitions]:
        """The stored transitions that differ: of 15,000 in 500 episodes of DeepSea-30 at most 930."""
        stored, slots = replay.stored_slots(), replay.transition_slots()
        state = stored.new_zeros(replay.num_slots)  # the slot of the first one that is equal
        state[stored] = stored[firsts(latents, stored)]
        self._numbered = [Numbered(weakref.ref(latents), state)]
        following = state[(slots + 1) % replay.num_slots]
        columns = torch.stack([state[slots], replay.actions[slots], following], 1).double()
        columns = torch.cat([columns, replay.rewards[slots, None].double()], 1)
        same = firsts(columns, torch.arange(len(columns), device=columns.device))
        for kept, times in zip(*(x.split(rows) for x in same.unique(return_counts=True)), strict=True):
            z = latents[slots[kept]]
            actions = one_hot(replay.actions[slots[kept]], model.num_actions, z)
            inputs = torch.cat([model.no_hidden(len(z)), z, actions], 1)
            yield Transitions(inputs, targets_at(replay, latents, slots[kept]), times)

    def hidden_states(self, model: "WorldModel", replay: Replay, latents: Tensor, rows: int) -> Tensor:
        return model.no_hidden(replay.num_slots)

    def states(
        self, model: "WorldModel", replay: Replay, latents: "Latents", some: list[Episode]
    ) -> tuple[Tensor, Tensor]:
        slots = torch.cat([torch.arange(e.start, e.start + e.length) for e in some]).to(replay.device)
        return slots % replay.num_slots, model.no_hidden(len(slots))

    def distinct(self, latents: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        for numbered in self._numbered:
            if numbered.latents() is latents:
                return numbered.state[slots].unique(return_inverse=True)
        kept, place = firsts(latents, slots).unique(return_inverse=True)
        return slots[kept], place
