"""Products on the CPU by each library that may serve: linear layers, tanh layers, and those of gradients."""

import pytest

from psdrl.kernels.linear_tanh import aten, reference
from tests.kernels.inputs import error, randn


def possible(table, rows=1000):
    return [name for name in table if aten._possible(name, rows)]


def running_sum(a, b):
    """a b in the plainest order. MKL's is a better one on some CPUs: without AVX-512 its error is 0.45 of oneDNN's."""
    result = a.new_zeros(a.shape[0], b.shape[1])
    for column, row in zip(a.T, b, strict=True):
        result.addr_(column, row)
    return result


@pytest.mark.parametrize(("rows", "inner", "units"), [(3, 256, 40), (64, 256, 256), (601, 130, 67), (4099, 1000, 1)])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("name", ["linear", "linear_tanh"])
def test_layers(name, with_bias, rows, inner, units):
    x, weight = randn(rows, inner + 3)[:, 1:-2], randn(units, inner, seed=1) / inner**0.5
    bias = randn(units, seed=2) if with_bias else None
    plain, table = getattr(reference, name), aten.LINEAR if name == "linear" else aten.TANH
    exact = plain(x.double(), weight.double(), None if bias is None else bias.double())
    plainest = running_sum(x, weight.T) if bias is None else running_sum(x, weight.T) + bias
    allowed = 2 * error(plainest if name == "linear" else plainest.tanh(), exact)
    for library in possible(table, rows):
        assert error(table[library](x, weight, bias), exact) <= allowed, library
    assert error(getattr(aten, name)(x, weight, bias), exact) <= allowed


@pytest.mark.parametrize(("rows", "inner", "units"), [(125, 900, 901), (1000, 400, 259)])
def test_products_of_gradients(rows, inner, units):
    delta, weight, x = randn(rows, units), randn(units, inner, seed=1), randn(rows, inner, seed=2)
    for a, b in ((delta, weight), (delta.T, x)):
        exact = a.double() @ b.double()
        allowed = 1.1 * error(running_sum(a, b), exact)
        for library in possible(aten.PRODUCT):
            assert error(aten.PRODUCT[library](a, b), exact) <= allowed, library
        assert error(aten.product(a, b), exact) <= allowed


@pytest.mark.parametrize(
    ("x", "weight"),
    [(randn(100, 256).double(), randn(256, 256).double()), (randn(0, 256), randn(256, 256))],
    ids=["float64", "empty"],
)
def test_what_is_left_to_aten(monkeypatch, x, weight):
    def refuse(*args):
        raise AssertionError("nothing is to be chosen here")

    monkeypatch.setattr(aten.choice, "choose", refuse)
    assert aten.linear(x, weight).shape == aten.linear_tanh(x, weight).shape == aten.product(x, weight).shape
