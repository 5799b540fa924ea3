"""The CPU kernels of the lookahead: a linear layer for a handful of rows, and the fused epilogue of a hidden layer."""

import itertools
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from psdrl.kernels import extension
from psdrl.kernels.extension import missing
from psdrl.kernels.gru_actions import reference as gru_reference
from psdrl.kernels.linear_tanh import aten, reference
from psdrl.kernels.posterior import reference as posterior_reference
from tests.kernels.inputs import error, randn

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5, 6, 7, 10])
@pytest.mark.parametrize(("inner", "units"), [(1, 1), (7, 3), (8, 4), (37, 41), (515, 6), (1100, 130)])
def test_linear_rows(rows, inner, units):
    x, weight, bias = randn(rows, inner), randn(units, inner, seed=1), randn(units, seed=2)
    for b in (bias, None):
        y = torch.ops.psdrl.linear_rows(x, weight, b)
        assert y.shape == (rows, units)
        if rows:
            exact = F.linear(x.double(), weight.double(), None if b is None else b.double())
            # Bound of a dot product in any order of additions: (inner + 1) eps |x| |w|.
            bound = (inner + 2) * 2**-24 * F.linear(x.abs().double(), weight.abs().double())
            assert ((y - exact).abs() <= bound + 2**-23 * exact.abs() + 1e-30).all()


def test_linear_rows_takes_strided_inputs_and_refuses_wrong_ones():
    x, weight = randn(12, 20)[::2, 3:], randn(17, 9)
    torch.testing.assert_close(torch.ops.psdrl.linear_rows(x, weight.T, None), x @ weight, rtol=1e-5, atol=1e-5)
    with pytest.raises(RuntimeError, match="float32"):
        torch.ops.psdrl.linear_rows(x.double(), weight.T.double(), None)
    with pytest.raises(RuntimeError, match="weight"):
        torch.ops.psdrl.linear_rows(x, weight, None)
    with pytest.raises(RuntimeError, match="no gradient"):
        torch.ops.psdrl.linear_rows(x.clone().requires_grad_(), weight.T, None)


@pytest.mark.parametrize("units", [1, 8, 13, 256])
@pytest.mark.parametrize("actions", [1, 3, 18])
@pytest.mark.parametrize("terms", ["bias", "state", "columns", "bias+state+columns", ""])
def test_linear_tanh_against_the_oracle(units, actions, terms):
    """No worse than twice eager's error, over draws enough that neither is lucky."""
    states, ours, eager, exact = 5, [], [], []
    for seed in range(0, 5 * max(4, 256 // units), 5):
        x, weight = randn(states * actions, 19, seed=seed), randn(units, 19, seed=seed + 1)
        given = {
            "bias": randn(units, seed=seed + 2) if "bias" in terms else None,
            "state": randn(states, units + 4, seed=seed + 3)[:, 2 : units + 2] if "state" in terms else None,
            "columns": randn(actions, units, seed=seed + 4) if "columns" in terms else None,
        }
        doubled = {name: None if t is None else t.double() for name, t in given.items()}
        exact.append(reference.linear_tanh(x.double(), weight.double(), **doubled).flatten())
        eager.append(reference.linear_tanh(x, weight, **given).flatten())
        ours.append(aten.linear_tanh(x, weight, **given).flatten())
    errors = [error(torch.cat(found), torch.cat(exact)) for found in (ours, eager)]
    assert errors[0] <= 2 * errors[1]


def test_tanh_over_its_whole_range():
    """Every exponent, both signs: within 4 units in the last place, as accurate near 0 as far away."""
    grid = np.concatenate([[0.0], np.geomspace(1e-37, 100, 200_001)]).astype(np.float32)
    y = torch.from_numpy(np.concatenate([grid, -grid]))[None].contiguous()
    exact = np.tanh(y.numpy().astype(np.float64))
    torch.ops.psdrl.bias_tanh_(y)
    ulp = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    assert (np.abs(y.numpy() - exact) / ulp).max() <= 4
    assert np.signbit(y.numpy()).sum() == len(grid)


def test_tanh_of_extremes():
    y = torch.tensor([[np.inf, -np.inf, np.nan, 1e38, -1e38, 0.0, -0.0, 9.5]], dtype=torch.float32)
    expected = torch.tanh(y.double()).float()
    torch.ops.psdrl.bias_tanh_(y)
    torch.testing.assert_close(y, expected, rtol=1e-6, atol=0, equal_nan=True)


def test_bias_tanh_refuses_what_does_not_fit():
    y = randn(6, 4)
    for arguments in ((randn(5),), (None, randn(4, 4)), (None, None, randn(4, 4)), (randn(4).double(),)):
        with pytest.raises(RuntimeError, match="bias_tanh_"):
            torch.ops.psdrl.bias_tanh_(y, *arguments)
    with pytest.raises(RuntimeError, match="contiguous"):
        torch.ops.psdrl.bias_tanh_(y.T)


@pytest.mark.parametrize("rows", [0, 1, 6, 10])
def test_tanh_net_rows(rows):
    """A network of three layers against float64: no worse than twice eager's error."""
    sizes = [19, 41, 8, 1]
    weights = [randn(o, i, seed=i) for i, o in itertools.pairwise(sizes)]
    biases = [randn(o, seed=o) for o in sizes[1:]]
    x = randn(rows, 22)[:, 2:21]

    def net(dtype):
        y = x.to(dtype)
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            y = torch.tanh(F.linear(y, weight.to(dtype), bias.to(dtype)))
        return F.linear(y, weights[-1].to(dtype), biases[-1].to(dtype))

    y = torch.ops.psdrl.tanh_net_rows(x, weights, biases)
    assert y.shape == (rows, 1)
    if rows:
        exact = net(torch.float64)
        assert error(y, exact) <= max(2 * error(net(torch.float32), exact), 2**-22)
    with pytest.raises(RuntimeError, match="bias for each"):
        torch.ops.psdrl.tanh_net_rows(x, weights, biases[:-1])
    with pytest.raises(RuntimeError, match="no gradient"):
        torch.ops.psdrl.tanh_net_rows(x, [weights[0].clone().requires_grad_(), *weights[1:]], biases)


@pytest.mark.parametrize("size", [1, 7, 8, 64, 67])
@pytest.mark.parametrize(("states", "actions"), [(0, 3), (1, 1), (1, 6), (70, 18)])
def test_gru_actions_rows(states, actions, size):
    """Against the oracle in float64, with inputs that are columns of a wider matrix."""
    inputs, recurrent = randn(states, 3 * size + 5)[:, :-5], randn(states, 3 * size, seed=1)
    columns, hidden = randn(actions, 3 * size, seed=2), randn(states, size, seed=3).tanh()
    found = torch.ops.psdrl.gru_actions_rows(inputs, recurrent, columns, hidden)
    assert found.shape == (states, actions, size)
    if states:
        arguments = (inputs, recurrent, columns, hidden)
        exact = gru_reference.gru_actions(*(t.double() for t in arguments))
        assert error(found, exact) <= max(2 * error(gru_reference.gru_actions(*arguments), exact), 2**-23)
    with pytest.raises(RuntimeError, match="contiguous rows"):
        torch.ops.psdrl.gru_actions_rows(inputs, recurrent, columns[:, 1:], hidden)


def test_operators_are_well_formed():
    networks = ([randn(4, 5), randn(2, 4)], [randn(4), randn(2)])
    torch.library.opcheck(torch.ops.psdrl.tanh_net_rows.default, (randn(3, 5), *networks))
    gates = (randn(2, 9), randn(2, 9), randn(4, 9), randn(2, 3))
    torch.library.opcheck(torch.ops.psdrl.gru_actions_rows.default, gates)
    torch.library.opcheck(torch.ops.psdrl.linear_rows.default, (randn(3, 5), randn(7, 5), randn(7)))
    arguments = (randn(6, 4), randn(4), randn(2, 4), randn(3, 4))
    torch.library.opcheck(torch.ops.psdrl.bias_tanh_.default, arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1), (0, 5, 3), (9, 5, 0), (130, 50, 33), (300, 193, 7)], ids=str)
def test_gram_in_registers(shape, dtype):
    n, k, o = shape
    torch.manual_seed(0)
    phi, targets = torch.randn(n, 2 * k, dtype=dtype)[:, :k], torch.randn(n, o, dtype=dtype)
    start = torch.randn(k, k, dtype=torch.float64), torch.randn(k, o, dtype=torch.float64)
    ours, oracle = ([x.clone() for x in start] for _ in range(2))
    torch.ops.psdrl.gram_registers_(*ours, phi, targets, -1.5)
    posterior_reference.gram_accumulate_(oracle[0], oracle[1], phi, targets, -1.5)
    torch.testing.assert_close(ours[0].tril(), oracle[0].tril(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours[1], oracle[1], rtol=1e-12, atol=1e-12)


@pytest.mark.skipif(sys.platform != "linux", reason="OpenMP is used on Linux only")
def test_kernels_have_pytorchs_threads():
    """at::parallel_for is silently a loop where the extension was compiled without OpenMP."""
    before = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert extension.threads() == count
    finally:
        torch.set_num_threads(before)
