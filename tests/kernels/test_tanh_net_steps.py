"""Gradient steps of value networks by csrc/: against autograd and torch.optim.Adam, in float64 and in float32."""

import copy

import pytest
import torch

from psdrl.agents.psdrl.planning import value_gradient
from psdrl.agents.psdrl.settings import ValueConfig
from psdrl.agents.psdrl.value import MinEnsemble
from psdrl.kernels import choice
from psdrl.kernels.extension import missing
from psdrl.kernels.tanh_net_steps import possible, reference, serves, tanh_net_steps_

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
# steps, rows, inputs, units, layers, networks: whole tiles, odd sizes, a single row, one hidden layer
CASES = [
    (3, 64, 358, 256, 3, 1),
    (2, 7, 5, 13, 4, 3),
    (2, 1, 1, 1, 2, 2),
    (4, 33, 19, 30, 2, 1),
    (2, 125, 40, 50, 5, 1),
]


def problem(steps, rows, inputs, units, layers, networks, dtype=torch.float32):
    torch.manual_seed(0)
    value = MinEnsemble(inputs, ValueConfig(layers=layers, units=units, networks=networks)).to(dtype)
    optimiser = torch.optim.Adam(value.parameters(), 1e-2, betas=(0.8, 0.95), fused=True)
    states, targets = torch.randn(steps, rows, inputs, dtype=dtype), torch.randn(steps, rows, dtype=dtype)
    for p in value.parameters():  # moments of earlier steps
        optimiser.state[p] = {
            "step": torch.tensor(5.0),
            "exp_avg": 0.1 * torch.randn_like(p),
            "exp_avg_sq": 0.1 * torch.rand_like(p),
        }
    return value, optimiser, states, targets


def in_float64(value, optimiser, states, targets):
    value, state = copy.deepcopy(value).double(), copy.deepcopy(optimiser.state_dict())
    other = torch.optim.Adam(value.parameters())
    other.load_state_dict(state)
    return value, other, states.double(), targets.double()


def numbers(value, optimiser):
    return [*value.parameters(), *(x for p in value.parameters() for x in optimiser.state[p].values())]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_steps_are_the_oracles(case):
    value, optimiser, states, targets = problem(*case)
    exact = in_float64(value, optimiser, states, targets)
    plain, adam = copy.deepcopy(value), copy.deepcopy(optimiser.state_dict())
    eager = torch.optim.Adam(plain.parameters(), fused=True)
    eager.load_state_dict(adam)
    assert possible(states, optimiser)
    with torch.no_grad():
        losses = tanh_net_steps_(states, targets, optimiser, list(value.parameters()), len(value))
        for x, target in zip(states, targets, strict=True):  # what serves elsewhere
            plain.each(value_gradient, x, target)
            eager.step()
    oracle = reference.tanh_net_steps_(*exact[2:], exact[1], list(exact[0].parameters()), len(exact[0]))
    assert losses.shape == oracle.shape
    torch.testing.assert_close(losses.double(), oracle, rtol=1e-5, atol=1e-6)
    for ours, theirs, true in zip(numbers(value, optimiser), numbers(plain, eager), numbers(*exact[:2]), strict=True):
        error, usual = (ours.double() - true).abs().max(), (theirs.double() - true).abs().max()
        assert error <= 2 * usual + 1e-6 * true.abs().max(), f"{tuple(ours.shape)}: {error:.1e}, eager {usual:.1e}"


def test_a_block_is_its_steps_one_by_one():
    whole, apart = problem(4, 9, 6, 10, 3, 2), problem(4, 9, 6, 10, 3, 2)
    with torch.no_grad():
        losses = tanh_net_steps_(*whole[2:], whole[1], list(whole[0].parameters()), 2)
        parts = [
            tanh_net_steps_(x[None], y[None], apart[1], list(apart[0].parameters()), 2)
            for x, y in zip(*apart[2:], strict=True)
        ]
    assert torch.equal(losses, torch.cat(parts))
    assert all(map(torch.equal, numbers(*whole[:2]), numbers(*apart[:2])))
    assert all(float(whole[1].state[p]["step"]) == 9 for p in whole[0].parameters())


def test_threads_do_not_change_numbers():
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            value, optimiser, states, targets = problem(2, 64, 200, 256, 3, 1)
            with torch.no_grad():
                tanh_net_steps_(states, targets, optimiser, list(value.parameters()), 1)
            results.append(numbers(value, optimiser))
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, *results))


def test_what_it_does_not_serve():
    value, optimiser, states, _ = problem(1, 4, 3, 5, 2, 1)
    assert possible(states, optimiser)
    assert not possible(states.double(), optimiser)
    assert not possible(states, torch.optim.SGD(value.parameters(), 1e-2))
    assert not possible(states, torch.optim.Adam(value.parameters(), weight_decay=0.1))
    with torch.autocast("cpu", torch.bfloat16):
        assert not possible(states, optimiser)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"states": torch.zeros(2, 4, 3).double()}, "float32"),
        ({"targets": torch.zeros(2, 5)}, "targets"),
        ({"states": torch.zeros(2, 4, 9)}, "layer 0 of network 0 does not fit"),
        ({"networks": 2}, "a weight and a bias for each layer"),
    ],
)
@torch.no_grad()
def test_wrong_arguments_are_explained(change, message):
    value, optimiser, states, targets = problem(2, 4, 3, 5, 3, 1)
    given = {"states": states, "targets": targets, "networks": 1} | change
    with pytest.raises(RuntimeError, match=message):
        tanh_net_steps_(given["states"], given["targets"], optimiser, list(value.parameters()), given["networks"])


@torch.no_grad()
def test_a_loser_does_not_serve(monkeypatch):
    value, _, states, _ = problem(1, 8, 3, 5, 2, 2)
    parameters, before = list(value.parameters()), [p.detach().clone() for p in value.parameters()]
    for winner in ("csrc", "aten"):

        def chosen(operation, x, y, candidates, winner=winner):
            for call in candidates().values():
                call()
            return winner

        monkeypatch.setattr(choice, "choose", chosen)
        assert serves(states, parameters, 2, lambda: None) is (winner == "csrc")
    assert all(map(torch.equal, parameters, before)), "measuring changes nothing"
