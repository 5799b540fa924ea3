"""The posterior's operations on the CPU against float64 oracles.

Bounds are those of rounding error analysis (Higham, Accuracy and Stability of Numerical Algorithms, chapters 3, 8, 10)
and hence hold for ill-conditioned data too: gamma(n) = n u / (1 - n u) times a product of absolute values.
"""

import pytest
import torch
from torch import Tensor

from psdrl.agents.psdrl.posterior import Posterior
from psdrl.agents.psdrl.regression import Statistics
from psdrl.kernels import posterior as native
from psdrl.kernels.posterior import reference, unavailable
from tests.helpers import small_config
from tests.kernels.inputs import gamma, variances, within, zeros
from tests.kernels.inputs import randn64 as randn

CPU = torch.device("cpu")
WHY_NOT = unavailable(CPU)
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))


def ill_conditioned(kind: str, k: int = 40) -> Tensor:
    """Features (90, k)."""
    phi = randn(90, k)
    if kind == "duplicate columns":
        phi[:, k // 2 :] = phi[:, : k - k // 2]
    elif kind == "duplicate rows":
        phi[1:] = phi[0]
    elif kind == "condition 1e12":  # of Phi^T Phi
        u, _, v = torch.linalg.svd(phi, full_matrices=False)
        phi = u * torch.logspace(0, -6, k, dtype=torch.float64) @ v
    elif kind == "zero rows":
        phi[10:] = 0
    else:
        phi[:] = 0
    return phi


KINDS = ["duplicate columns", "duplicate rows", "condition 1e12", "zero rows", "all zero"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1), (0, 5, 3), (7, 3, 2), (9, 5, 0), (100, 193, 5), (1030, 385, 33)], ids=str)
def test_gram(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    n, k, o = shape
    phi, targets = randn(n, k, dtype=dtype), randn(n, o, seed=1, dtype=dtype)
    start_gram, start_cross = randn(k, k, seed=2), randn(k, o, seed=3)
    for weight in (1.0, -2.5):
        gram, cross, expected, expected_cross = (x.clone() for x in (start_gram, start_cross) * 2)
        native.gram_accumulate_(gram, cross, phi, targets, weight)
        reference.gram_accumulate_(expected, expected_cross, phi, targets, weight)
        p, t = phi.double().abs(), targets.double().abs()
        bound = 2 * gamma(n + 2) * (start_gram.abs() + abs(weight) * p.T @ p)
        within((gram - expected).tril(), bound, f"gram {shape} {dtype} weight {weight}")
        bound = 2 * gamma(n + 2) * (start_cross.abs() + abs(weight) * p.T @ t)
        within(cross - expected_cross, bound, f"cross {shape} {dtype} weight {weight}")


def test_gram_of_many_rows_loses_nothing() -> None:
    """2e5 float32 rows with a mean: float64 sums keep 12 digits where float32 sums keep about 5."""
    phi = (randn(200_000, 8) + 3).float()
    gram, cross = zeros(8, 8), zeros(8, 1)
    for chunk in phi.split(5000):
        native.gram_accumulate_(gram, cross, chunk, chunk[:, :1])
    halves = [phi.double()[i::2].T @ phi.double()[i::2] for i in range(2)]  # another order
    torch.testing.assert_close(gram.tril(), torch.stack(halves).sum(0).tril(), rtol=1e-12, atol=0)
    torch.testing.assert_close(cross[:, 0], gram.tril()[:, 0], rtol=1e-12, atol=0)


def test_gram_is_deterministic_and_rows_can_leave() -> None:
    phi, targets = randn(500, 300, dtype=torch.float32), randn(500, 7, dtype=torch.float32)
    results = []
    for _ in range(2):
        gram, cross = zeros(300, 300), zeros(300, 7)
        native.gram_accumulate_(gram, cross, phi, targets)
        results.append((gram, cross))
    assert torch.equal(results[0][0].tril(), results[1][0].tril())
    assert torch.equal(results[0][1], results[1][1])
    native.gram_accumulate_(gram, cross, phi[200:], targets[200:], -1.0)
    kept, kept_cross = zeros(300, 300), zeros(300, 7)
    native.gram_accumulate_(kept, kept_cross, phi[:200], targets[:200])
    p = phi.double().abs()
    within((gram - kept).tril(), 4 * gamma(800) * p.T @ p, "gram without the rows that left")
    within(cross - kept_cross, 4 * gamma(800) * p.T @ targets.double().abs(), "cross without the rows that left")


def precisions(gram: Tensor, priors: Tensor, noises: Tensor, jitter: Tensor) -> Tensor:
    full = gram.tril() + gram.tril(-1).T
    ridge = (1 / priors + jitter)[:, None, None] * torch.eye(len(gram), dtype=torch.float64)
    return full / noises[:, None, None] + ridge


def check_posterior(phi: Tensor, targets: Tensor, group: list[int], priors: Tensor, noises: Tensor) -> Tensor:
    """Factor, mean and sample satisfy their equations within the bounds; returns the jitter."""
    k, o = phi.shape[1], targets.shape[1]
    gram, cross = zeros(k, k), zeros(k, o)
    native.gram_accumulate_(gram, cross, phi, targets)
    factors, jitter, info = native.posterior_factor(gram, priors, noises)
    assert info.tolist() == [0] * len(group)
    size = factors.abs() @ factors.abs().mT
    truth = precisions(gram, priors, noises, jitter)
    within(factors @ factors.mT - truth, gamma(k + 5) * size, "factor")
    assert torch.equal(factors, factors.tril())
    mean = native.posterior_mean(factors, cross, group, noises)
    eps = randn(3, o, k, seed=5)
    zero_mean = native.posterior_sample(factors, torch.zeros_like(mean), group, eps)
    sample = native.posterior_sample(factors, mean, group, eps)
    assert torch.equal(sample, zero_mean + mean)
    begin = 0
    for g, count in enumerate(group):
        mu, c = mean[begin : begin + count].T, cross[:, begin : begin + count] / noises[g]
        bound = gamma(3 * k + 6) * (size[g] @ mu.abs() + c.abs())
        within(truth[g] @ mu - c, bound, f"mean of group {g}")
        w = zero_mean[:, begin : begin + count]
        within(w @ factors[g] - eps[:, begin : begin + count], 2 * gamma(k) * w.abs() @ factors[g].abs(), f"sample {g}")
        begin += count
    return jitter


@pytest.mark.parametrize("k", [1, 2, 33, 257])
@pytest.mark.parametrize(
    ("group", "priors", "noises"),
    [
        ([4], [1e3], [1.0]),
        ([3, 1], [1e3, 10.0], [1.0, 1.0]),
        ([3, 1], [1.0, 1e3], [1e-2, 1e-4]),
        ([1, 0, 3], [1.0, 2.0, 0.1], [0.1, 1.0, 10.0]),
    ],
    ids=["paper", "sigma_S != sigma_R", "noises differ", "three groups, one empty"],
)
def test_factor_mean_sample(k: int, group: list[int], priors: list[float], noises: list[float]) -> None:
    phi, targets = randn(max(3, k // 2), k), randn(max(3, k // 2), 4, seed=1)
    assert check_posterior(phi, targets, group, variances(*priors), variances(*noises)).tolist() == [0] * len(group)


def test_paper_size() -> None:
    phi, targets = randn(400, 2292, dtype=torch.float32), randn(400, 9, seed=1, dtype=torch.float32)
    assert check_posterior(phi, targets, [8, 1], variances(1e3, 1e3), variances(1.0, 0.1)).tolist() == [0, 0]


@pytest.mark.parametrize("k", [1, 7, 127, 128, 129, 300])
@pytest.mark.parametrize("rows", [1, 5, 24, 61, 400])
def test_systems_are_solved_in_registers_and_by_lapack(k: int, rows: int) -> None:
    """The same systems both ways, within the bounds of both: k odd to panels and blocks, rows to strips and vectors."""
    phi, right = randn(k + 3, k), randn(rows, k, seed=1)
    ops, one = torch.ops.psdrl, variances(1.0)
    (factor,), _, info = ops.posterior_factor(phi.T @ phi, one, one, 1, True)
    (other,), _, _ = ops.posterior_factor(phi.T @ phi, one, one, 1, False)
    assert info.tolist() == [0]
    torch.testing.assert_close(factor, other, rtol=1e-9, atol=1e-11)
    whole = torch.cat([torch.full((rows, 3), torch.nan, dtype=torch.float64), right], 1)
    solved = whole[:, 3:]  # rows of a larger table
    for back in (False, True):
        solved.copy_(right)
        ops.solve_rows_(factor, solved, back)
        back_again = solved @ (factor if back else factor.T)
        within(back_again - right, 2 * gamma(k) * solved.abs() @ (factor if back else factor.T).abs(), f"back {back}")
    assert whole[:, :3].isnan().all()
    norms = native.inverse_norm(factor), reference.inverse_norm(other)
    torch.testing.assert_close(*norms, rtol=1e-9, atol=0)


def test_outputs_without_targets_have_the_mean_zero() -> None:
    phi, targets = randn(30, 12), randn(30, 6, seed=1)
    targets[:, [0, 2, 5]] = 0
    gram, cross, noises = phi.T @ phi, phi.T @ targets, variances(0.1, 0.2)
    factors, _, _ = native.posterior_factor(gram, variances(1.0, 2.0), noises)
    expected = reference.posterior_mean(factors, cross, [4, 2], noises)
    for registers in (False, True):
        mean = torch.ops.psdrl.posterior_mean(factors, cross, [4, 2], noises, registers)
        torch.testing.assert_close(mean, expected, rtol=1e-9, atol=1e-12)
        assert (mean[[0, 2, 5]] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_ill_conditioned(kind: str) -> None:
    """With a prior of 1e3 float64 sums need no jitter, even where the data alone are singular."""
    jitter = check_posterior(ill_conditioned(kind), randn(90, 3), [2, 1], variances(1e3, 1.0), variances(1.0, 1e-3))
    assert jitter.tolist() == [0, 0]


def test_jitter_is_decided_per_matrix() -> None:
    """Without a prior the duplicate columns are singular: that matrix gets jitter, its neighbour none."""
    phi = ill_conditioned("duplicate columns")
    gram, priors, noises = phi.T @ phi, variances(torch.inf, 1.0), variances(1.0, 1.0)
    factors, jitter, info = native.posterior_factor(gram, priors, noises)
    assert info.tolist() == [0, 0]
    mean_diagonal = gram.diagonal().mean().item()
    assert mean_diagonal * 0.9e-12 < jitter[0] < mean_diagonal * 1e-9
    assert jitter[1] == 0
    truth = precisions(gram, priors, noises, jitter)
    within(factors @ factors.mT - truth, gamma(50) * factors.abs() @ factors.abs().mT, "factor with jitter")
    expected = reference.posterior_factor(gram, priors, noises)
    torch.testing.assert_close(jitter, expected[1])


def test_what_cannot_be_factored_is_reported() -> None:
    gram = torch.diag(variances(1.0, -5.0, 1.0))
    for implementation in (native, reference):
        factors, _, info = implementation.posterior_factor(gram, variances(torch.inf, 0.1), variances(1.0, 1.0), 1)
        assert info.tolist() == [2, 0], implementation.__name__
        assert factors[0].isnan().all()
        assert factors[1].isfinite().all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [(0, 0), (4, 4), (3, 1)], ids=str)
def test_input_that_is_not_finite_is_reported(place: tuple[int, int], value: float) -> None:
    gram = randn(5, 5)
    gram = gram @ gram.T
    gram[place] = value
    for implementation in (native, reference):
        factors, _, info = implementation.posterior_factor(gram, variances(1.0, 2.0), variances(1.0, 1.0))
        assert info.tolist() == [-1, -1], implementation.__name__
        assert factors.isnan().all()


def test_the_upper_triangle_is_never_read() -> None:
    gram = randn(60, 20).T @ randn(60, 20)
    spoilt = gram.tril() + torch.full_like(gram, torch.nan).triu(1)
    clean = native.posterior_factor(gram, variances(1.0), variances(1.0))
    for found, expected in zip(native.posterior_factor(spoilt, variances(1.0), variances(1.0)), clean, strict=True):
        assert torch.equal(found, expected)


def test_samples_have_the_posterior_covariance() -> None:
    """8000 draws of 2 outputs, whitened by the factor: mean 0 and covariance I within 4.5 standard errors."""
    phi = randn(30, 5)
    factors, _, _ = native.posterior_factor(phi.T @ phi, variances(10.0, 0.2), variances(0.5, 2.0))
    mean, generator = randn(2, 5, seed=7), torch.Generator().manual_seed(3)
    count = 8000
    draws = native.posterior_sample(factors, mean, [1, 1], None, count, generator) - mean
    z = torch.cat([draws[:, g] @ factors[g] for g in range(2)], 1)  # (count, 10)
    assert z.mean(0).abs().max() * count**0.5 < 4.5
    error = ((1 + torch.eye(10)) / count) ** 0.5
    assert ((z.T @ z / count - torch.eye(10)).abs() / error).max() < 4.5
    again = native.posterior_sample(factors, mean, [1, 1], None, count, torch.Generator().manual_seed(3)) - mean
    assert torch.equal(draws, again)


def test_opcheck() -> None:
    gram = randn(9, 5).T @ randn(9, 5)
    ops, priors, noises = torch.ops.psdrl, variances(1.0, 2.0), variances(1.0, 0.5)
    factors, _, _ = ops.posterior_factor(gram, priors, noises)
    mean, eps = randn(3, 5), randn(2, 3, 5)
    phi = randn(7, 5, dtype=torch.float32)
    torch.library.opcheck(ops.gram_accumulate_, (gram, zeros(5, 3), phi, randn(7, 3, dtype=torch.bfloat16), -1.0))
    torch.library.opcheck(ops.posterior_factor, (gram, priors, noises))
    torch.library.opcheck(ops.posterior_mean, (factors, randn(5, 3), [2, 1], noises))
    torch.library.opcheck(ops.posterior_sample, (factors, mean, [2, 1], eps))


def test_gradients_are_refused() -> None:
    gram, noises = torch.eye(3, dtype=torch.float64), variances(1.0)
    with pytest.raises(RuntimeError, match=r"psdrl::posterior_factor has no gradient"):
        native.posterior_factor(gram.clone().requires_grad_(), noises, noises)
    with pytest.raises(RuntimeError, match=r"psdrl::gram_\w+_ has no gradient"):
        native.gram_accumulate_(gram.clone(), gram.clone(), randn(4, 3).requires_grad_(), randn(4, 3))
    with torch.no_grad():
        native.posterior_factor(gram.clone().requires_grad_(), noises, noises)


@pytest.mark.parametrize(
    "call",
    [
        lambda: native.gram_accumulate_(zeros(3, 3).float(), zeros(3, 2), randn(4, 3), randn(4, 2)),
        lambda: native.gram_accumulate_(zeros(3, 3), zeros(3, 2), randn(4, 3), randn(5, 2)),
        lambda: native.posterior_factor(zeros(3, 2), variances(1.0), variances(1.0)),
        lambda: native.posterior_mean(zeros(1, 3, 3), zeros(3, 2), [1], variances(1.0)),
        lambda: native.posterior_sample(zeros(1, 3, 3), zeros(2, 3), [2], zeros(1, 3, 2)),
    ],
    ids=["float32 sums", "rows", "not square", "groups", "noise"],
)
def test_wrong_arguments_are_explained(call) -> None:
    with pytest.raises(RuntimeError, match=r"must be|expected|need"):
        call()


def test_sums_of_targets_that_are_nearly_all_zero() -> None:
    """Added up row by row, with and without counts, in two parts."""
    phi, targets = randn(700, 9), torch.zeros(700, 400, dtype=torch.float64)
    targets[torch.arange(700), torch.arange(700) % 37] = randn(700, seed=1)
    times = torch.arange(700) % 4 + 1
    for counts in (None, times):
        data = Statistics.empty(9, 400, CPU)
        for part in (slice(0, 300), slice(300, 700)):
            data.add(phi[part], targets[part], None if counts is None else counts[part])
        weights = torch.ones(700, 1, dtype=torch.float64) if counts is None else counts[:, None]
        torch.testing.assert_close(data.cross, phi.T @ (weights * targets), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(data.lower.tril(), (phi.T @ (weights * phi)).tril(), rtol=1e-12, atol=1e-12)


def fitted(rule: str, phi: Tensor, targets: Tensor) -> Posterior:
    settings = {"rule": rule, "prior": (3.0, 40.0), "noise": (1.0, 0.05)}
    data = Statistics.empty(phi.shape[1], targets.shape[1], CPU)
    result = Posterior(small_config(posterior=settings), data)
    data.add(phi, targets)
    result.fit(data)
    return result


@pytest.mark.parametrize("rule", ["exact", "released"])
def test_the_fallback_computes_the_same(rule: str, monkeypatch) -> None:
    phi, targets = randn(60, 21), randn(60, 4, seed=1)
    fast = fitted(rule, phi, targets)
    monkeypatch.setattr(native, "_implementation", lambda like: reference)
    plain = fitted(rule, phi, targets)
    torch.testing.assert_close(fast.mean, plain.mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(fast.factors, plain.factors, rtol=1e-10, atol=1e-12)
    draws = [p.draw(torch.Generator().manual_seed(0)) for p in (fast, plain)]
    torch.testing.assert_close(*draws, rtol=1e-9, atol=1e-11)
