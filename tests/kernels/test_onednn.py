"""Large products on the CPU, which oneDNN computes: linear layers, tanh layers, and those of gradients."""

import pytest
from torch.profiler import ProfilerActivity, profile

from psdrl.kernels.linear_tanh import aten, reference
from tests.kernels.inputs import error, randn

pytestmark = pytest.mark.skipif(not aten.ONEDNN, reason="torch has no oneDNN here")


def served(function, *inputs):
    """The result, and whether oneDNN computed it."""
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        result = function(*inputs)
    return result, any(event.key == "mkldnn::_linear_pointwise" for event in trace.key_averages())


@pytest.mark.parametrize(("rows", "inner", "units"), [(64, 256, 256), (601, 130, 67), (4099, 1000, 1)])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("name", ["linear", "linear_tanh"])
def test_layers(name, with_bias, rows, inner, units):
    x, weight = randn(rows, inner + 3)[:, 1:-2], randn(units, inner, seed=1) / inner**0.5
    bias = randn(units, seed=2) if with_bias else None
    found, by_onednn = served(getattr(aten, name), x, weight, bias)
    assert by_onednn
    plain = getattr(reference, name)
    exact = plain(x.double(), weight.double(), None if bias is None else bias.double())
    assert error(found, exact) <= 2 * error(plain(x, weight, bias), exact)


def running_sum(a, b):
    """a b in the plainest order. MKL's is a better one on some CPUs: without AVX-512 its error is 0.45 of oneDNN's."""
    result = a.new_zeros(a.shape[0], b.shape[1])
    for column, row in zip(a.T, b, strict=True):
        result.addr_(column, row)
    return result


@pytest.mark.parametrize(("rows", "inner", "units"), [(125, 900, 901), (1000, 400, 259)])
def test_products_of_gradients(rows, inner, units):
    delta, weight, x = randn(rows, units), randn(units, inner, seed=1), randn(rows, inner, seed=2)
    for a, b in ((delta, weight), (delta.T, x)):
        found, by_onednn = served(aten.product, a, b)
        assert by_onednn
        exact = a.double() @ b.double()
        assert error(found, exact) <= 1.1 * error(running_sum(a, b), exact)


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        (randn(32, 256), randn(256, 256)),
        (randn(100, 256).double(), randn(256, 256).double()),
        (randn(0, 256), randn(256, 256)),
    ],
    ids=["small", "float64", "empty"],
)
def test_what_is_left_to_others(x, weight):
    assert not served(aten.linear, x, weight)[1]
    assert not served(aten.linear_tanh, x, weight)[1]
    assert not served(aten.product, x, weight)[1]
