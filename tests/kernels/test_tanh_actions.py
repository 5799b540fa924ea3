"""Tanh layers on all actions of states: csrc/ and the layers one by one, against the oracle in float64."""

from itertools import pairwise

import pytest
import torch

from psdrl.kernels.extension import missing
from psdrl.kernels.tanh_actions import native, reference, tanh_actions

# states, actions, inputs, units of the layers, whether an output layer sums up
CASES = [
    (107, 6, 192, (256, 256), True),
    (50, 6, 64, (128, 128), False),
    (1, 1, 1, (1,), True),
    (1, 3, 5, (7,), False),
    (33, 4, 19, (30, 17, 65), True),
    (16, 18, 40, (130, 20), False),
    (0, 3, 5, (7, 8), True),
]


def problem(states, actions, inputs, units, sums_up):
    torch.manual_seed(0)
    widths = (*units, 1) if sums_up else units
    layers = [(torch.randn(o, i) / i**0.5, torch.randn(o)) for i, o in pairwise(widths)]
    weight = torch.randn(units[0], inputs) / inputs**0.5
    x = torch.randn(states * actions, inputs + 3)[:, 1 : inputs + 1]  # a part of wider rows
    return x, weight, torch.randn(states, units[0]), torch.randn(actions, units[0]), layers, sums_up


@pytest.mark.parametrize("name", ["in_one_pass", "by_layer"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_the_oracles(case, name):
    if name == "in_one_pass" and missing():
        pytest.skip(str(missing()))
    given = problem(*case)
    *tensors, layers, sums_up = given
    x, weight, state, columns = (t.double() for t in tensors)
    with torch.no_grad():
        exact = reference.tanh_actions(
            x, weight, state, columns, [(w.double(), b.double()) for w, b in layers], sums_up
        )
        eager, found, served = (f(*given) for f in (reference.tanh_actions, getattr(native, name), tanh_actions))
    assert found.shape == served.shape == exact.shape
    for result in (found, served):
        error, usual = ((y.double() - exact).abs().amax() if y.numel() else 0.0 for y in (result, eager))
        assert error <= 2 * usual + 1e-6, f"{error:.1e}, eager {usual:.1e}"


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_threads_do_not_change_numbers():
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            with torch.no_grad():
                results.append(native.in_one_pass(*problem(*CASES[0])))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: torch.zeros(7, 192)}, "do not fit"),
        ({1: torch.zeros(256, 192).double()}, "float32"),
        ({4: [(torch.zeros(256, 5), torch.zeros(256)), (torch.zeros(1, 256), torch.zeros(1))]}, "layer 1 does not fit"),
        ({4: [(torch.zeros(2, 256), torch.zeros(2))]}, "must have one unit, not 2"),
        ({4: []}, "a weight and a bias"),
    ],
)
@torch.no_grad()
def test_wrong_arguments_are_explained(change, message):
    given = [change.get(i, x) for i, x in enumerate(problem(*CASES[0]))]
    with pytest.raises(RuntimeError, match=message):
        native.in_one_pass(*given)
