"""Bayesian linear regression (Eq. 4): closed form, draws, the other rules, and the statistics of the buffer."""

import numpy as np
import pytest
import torch

from psdrl.agents.psdrl import oracle
from psdrl.agents.psdrl.posterior import Posterior
from psdrl.agents.psdrl.regression import Statistics
from psdrl.agents.psdrl.synthetic import add_episode
from psdrl.errors import UserError
from psdrl.kernels.posterior import posterior_factor
from psdrl.replay.episodes import Replay
from tests.helpers import (
    Array,
    filled_replay,
    hand_features,
    hand_hidden,
    small_agent,
    small_config,
    small_models,
    vector_spec,
)

CPU = torch.device("cpu")
# prior_latent, prior_reward, noise_latent, noise_reward
VARIANCES = {
    "paper": (1e3, 1e3, 1.0, 1.0),
    "priors differ": (2.0, 50.0, 1.0, 1.0),
    "noises differ": (3.0, 3.0, 0.5, 0.01),
    "all differ": (0.7, 40.0, 0.3, 0.02),
}


def data(rows: int = 12, k: int = 4, outputs: int = 3, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, k)), rng.normal(size=(rows, outputs))


def statistics(phi: Array, targets: Array) -> Statistics:
    result = Statistics.empty(phi.shape[1], targets.shape[1], CPU)
    half = len(phi) // 2
    for rows in (slice(0, half), slice(half, None)):  # chunks must add up
        result.add(torch.from_numpy(phi[rows]), torch.from_numpy(targets[rows]))
    return result


def posterior(k: int, outputs: int, variances: tuple[float, float, float, float], rule: str = "exact") -> Posterior:
    config = small_config(posterior={"rule": rule, "prior": variances[:2], "noise": variances[2:]})
    return Posterior(config, Statistics.empty(k, outputs, CPU))


def equation_4(phi: Array, target: Array, prior: float, noise: float) -> tuple[Array, Array]:
    """mu_j and Sigma_j of one output."""
    sigma: Array = np.linalg.inv(np.eye(phi.shape[1]) / prior + phi.T @ phi / noise).astype(np.float64)
    return sigma @ phi.T @ target / noise, sigma


def check_draws(draws: Array, means: list[Array], covariances: list[Array]) -> None:
    """Sample means and covariances (n draws of (outputs, k)) within 4.5 standard errors of the truth, outputs
    independent: for under 400 numbers a right sampler fails one seed in 300."""
    n, outputs, k = draws.shape
    flat = draws.reshape(n, outputs * k)
    truth = np.zeros((outputs * k, outputs * k))
    for j, covariance in enumerate(covariances):
        truth[j * k : (j + 1) * k, j * k : (j + 1) * k] = covariance
    variance = np.diag(truth)
    z = (flat.mean(0) - np.concatenate(means)) / np.sqrt(variance / n)
    assert np.abs(z).max() < 4.5, f"sample mean is {np.abs(z).max():.1f} standard errors off"
    error = np.sqrt((np.outer(variance, variance) + truth**2) / (n - 1))
    z = (np.cov(flat.T) - truth) / error
    assert np.abs(z).max() < 4.5, f"sample covariance is {np.abs(z).max():.1f} standard errors off"


def draw_many(fitted: Posterior, count: int, seed: int = 0) -> Array:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([fitted.draw(generator) for _ in range(count)]).numpy()


@pytest.mark.parametrize("name", VARIANCES)
def test_equation_4_closed_form(name: str) -> None:
    prior_latent, prior_reward, noise_latent, noise_reward = VARIANCES[name]
    phi, targets = data()
    fitted = posterior(4, 3, VARIANCES[name])
    metrics = fitted.fit(statistics(phi, targets))
    spreads, sizes = [], []
    for j in range(3):
        reward = j == 2
        prior, noise = (prior_reward, noise_reward) if reward else (prior_latent, noise_latent)
        mu, sigma = equation_4(phi, targets[:, j], prior, noise)
        np.testing.assert_allclose(fitted.mean[j].numpy(), mu, rtol=1e-10, err_msg=f"mean of output {j}")
        spreads.append(np.sqrt(np.mean([row @ sigma @ row for row in phi])))
        sizes.append((np.trace(sigma), np.linalg.slogdet(sigma)[1]))
    assert fitted.mean.dtype == torch.float64
    assert metrics["rows"] == 12
    assert metrics["jitter"] == 0
    assert metrics["sd_latent"] == pytest.approx(spreads[0], rel=1e-9)
    assert metrics["sd_reward"] == pytest.approx(spreads[2], rel=1e-9)
    for part, j in (("latent", 0), ("reward", 2)):
        found = float(metrics[f"trace_{part}"]), float(metrics[f"logdet_{part}"])
        assert found == pytest.approx(sizes[j], rel=1e-9), part
    residuals = targets - phi @ fitted.mean.numpy().T
    assert metrics["residual_latent"] == pytest.approx(np.sqrt((residuals[:, :2] ** 2).mean()), rel=1e-9)
    assert metrics["residual_reward"] == pytest.approx(np.sqrt((residuals[:, 2] ** 2).mean()), rel=1e-9)


@pytest.mark.parametrize("name", VARIANCES)
def test_draws_have_the_posterior_mean_and_covariance(name: str) -> None:
    prior_latent, prior_reward, noise_latent, noise_reward = VARIANCES[name]
    phi, targets = data(k=3)
    fitted = posterior(3, 3, VARIANCES[name])
    fitted.fit(statistics(phi, targets))
    variances = [(prior_latent, noise_latent)] * 2 + [(prior_reward, noise_reward)]
    truth = [equation_4(phi, targets[:, j], *variances[j]) for j in range(3)]
    check_draws(draw_many(fitted, 6000), [mu for mu, _ in truth], [sigma for _, sigma in truth])


def test_no_data_is_the_prior() -> None:
    fresh = posterior(3, 3, VARIANCES["all differ"])
    assert torch.count_nonzero(fresh.mean) == 0
    priors = [0.7, 0.7, 40.0]
    check_draws(draw_many(fresh, 6000), [np.zeros(3)] * 3, [prior * np.eye(3) for prior in priors])


def test_few_rows_leave_the_prior_where_nothing_was_seen() -> None:
    """One feature direction observed: the posterior is the prior in all others."""
    phi, targets = np.array([[1.0, 0.0, 0.0]]), np.array([[2.0, 5.0]])
    fitted = posterior(3, 2, (4.0, 9.0, 0.5, 0.25))
    fitted.fit(statistics(phi, targets))
    np.testing.assert_allclose(fitted.mean.numpy()[:, 1:], 0, atol=1e-15)
    np.testing.assert_allclose(fitted.mean[:, 0].numpy(), [2.0 * 4 / 4.5, 5.0 * 9 / 9.25], rtol=1e-12)
    covariances = [np.diag([4 * 0.5 / 4.5, 4, 4]), np.diag([9 * 0.25 / 9.25, 9, 9])]
    check_draws(draw_many(fitted, 6000), list(fitted.mean.numpy()), covariances)


def test_refitting_forgets_the_old_data() -> None:
    fitted = posterior(4, 3, VARIANCES["all differ"])
    fitted.fit(statistics(*data(seed=1)))
    fitted.fit(statistics(*data(seed=2)))
    once = posterior(4, 3, VARIANCES["all differ"])
    once.fit(statistics(*data(seed=2)))
    assert torch.equal(fitted.mean, once.mean)
    np.testing.assert_array_equal(draw_many(fitted, 2), draw_many(once, 2))


def test_rule_mean_never_samples() -> None:
    phi, targets = data()
    fitted = posterior(4, 3, (1.0, 2.0, 0.1, 0.2), "mean")
    fitted.fit(statistics(phi, targets))
    np.testing.assert_array_equal(draw_many(fitted, 3), fitted.mean.expand(3, -1, -1).numpy())


def test_released_rule() -> None:
    """mu = (Phi^T Phi + 100 I)^-1 Phi^T t, w = mu + eps C, C = 1e-3 (Phi^T Phi + 100 I)^-1: covariance C^2."""
    phi, targets = data(rows=200, k=3)
    fitted = posterior(3, 3, VARIANCES["all differ"], rule="released")
    metrics = fitted.fit(statistics(phi, targets))
    inverse = np.linalg.inv(phi.T @ phi + 100 * np.eye(3))
    means = [inverse @ phi.T @ targets[:, j] for j in range(3)]
    np.testing.assert_allclose(fitted.mean.numpy(), np.stack(means), rtol=1e-10)
    scaled = 1e-3 * inverse
    assert float(metrics["trace_latent"]) == pytest.approx(np.trace(scaled @ scaled), rel=1e-9)
    assert float(metrics["logdet_reward"]) == pytest.approx(np.linalg.slogdet(scaled @ scaled)[1], rel=1e-9)
    check_draws(draw_many(fitted, 6000), means, [scaled @ scaled] * 3)


@pytest.mark.parametrize("settings", [{"posterior": {"rule": "none"}}, {"algo": "egreedy-exploit"}], ids=str)
def test_no_sampling_uses_the_trained_output_layer(settings: dict) -> None:
    agent = small_agent(**settings)
    output = agent.models.forward_model.output
    for mean in (False, True):
        assert torch.equal(agent.draw(mean=mean).weight, output.weight)
        assert torch.equal(agent.draw(mean=mean).bias, output.bias)
    add_episode(agent.replay, np.random.default_rng(0), 12)
    metrics = agent.update()
    assert torch.equal(agent.model.weight, output.weight)
    assert torch.equal(agent.model.bias, output.bias)
    assert not any(name.startswith("posterior/") for name in metrics)


def test_a_draw_has_no_bias_and_differs_each_time() -> None:
    agent = small_agent()
    first, second = agent.draw(), agent.draw()
    assert not torch.equal(first.weight, second.weight)
    assert torch.count_nonzero(first.bias) == 0
    np.testing.assert_allclose(agent.draw(mean=True).weight.numpy(), 0)


def test_jitter_escalates_until_the_factor_exists() -> None:
    """Smallest eigenvalue -1e-6, mean diagonal 0.5: 5e-13, 5e-12, ... fail, 5e-6 is the first that succeeds."""
    precision = torch.diag(torch.tensor([1.0, -1e-6, 0.500001], dtype=torch.float64))
    one, identity = torch.ones(1, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    (factor,), jitter, info = posterior_factor(precision, one * torch.inf, one)  # no prior, noise 1
    assert info.item() == 0
    assert jitter.item() == pytest.approx(5e-6, rel=1e-9)
    torch.testing.assert_close(factor @ factor.T, precision + jitter * identity)
    assert posterior_factor(identity, one * torch.inf, one)[1].item() == 0


def test_rank_deficient_data_reports_its_jitter() -> None:
    """30 features of rank 2, a prior too wide for float64: the factorisation needs help, says so, and still fits."""
    rng = np.random.default_rng(0)
    phi = rng.normal(size=(50, 2)) @ rng.normal(size=(2, 30)) * 1e3
    targets = phi[:, :2] / 1e3
    fitted = posterior(30, 2, (1e15, 1e15, 1.0, 1.0))
    metrics = fitted.fit(statistics(phi, targets))
    assert metrics["jitter"] > 0
    assert torch.isfinite(fitted.draw(torch.Generator().manual_seed(0))).all()
    np.testing.assert_allclose(phi @ fitted.mean.numpy().T, targets, atol=1e-3)
    assert posterior(30, 2, VARIANCES["paper"]).fit(statistics(*data(50, 30, 2)))["jitter"] == 0


def test_divergence_is_a_clear_error() -> None:
    phi, targets = data()
    phi[3, 1] = np.nan
    with pytest.raises(UserError, match="diverged"):
        posterior(4, 3, VARIANCES["paper"]).fit(statistics(phi, targets))


def hand_statistics(models, replay: Replay) -> tuple[Array, Array]:
    """Features and targets of all stored transitions, one episode and one step at a time."""
    model, phis, targets = models.forward_model, [], []
    for start, length in replay.episodes:
        h = np.zeros((1, model.gru.hidden_size))
        for t in range(length):
            now, following = (start + t) % replay.num_slots, (start + t + 1) % replay.num_slots
            z = replay.observations[now].double().numpy()[None]
            action = replay.actions[now].numpy()[None]
            h = hand_hidden(model, z, action, h)
            phis.append(hand_features(model, h, z, action)[0])
            targets.append([*replay.observations[following].double().tolist(), replay.rewards[now].item()])
    return np.array(phis), np.array(targets)


@pytest.mark.parametrize("features", ["linear", "tanh+inputs"])
@pytest.mark.parametrize(
    ("lengths", "capacity"),
    [([6], 100), ([1], 100), ([3, 1, 7, 7, 2, 1], 100), ([9, 4, 8, 1, 6, 5, 3], 16)],
    ids=["one episode", "one step", "different lengths", "ring wrapped"],
)
def test_buffer_statistics_by_brute_force(lengths: list[int], capacity: int, features: str) -> None:
    replay = filled_replay(lengths, capacity, seed=5)
    if capacity == 16:
        assert any(start + length >= replay.num_slots for start, length in replay.episodes), "no episode wraps"
    models = small_models(small_config(forward={"features": features}), vector_spec())
    found = oracle.buffer_statistics(models, replay, oracle.EncodeOnUse(models, replay))
    phi, targets = hand_statistics(models, replay)
    assert isinstance(found, Statistics)
    assert found.rows == len(phi) == replay.transitions
    np.testing.assert_allclose(found.lower.tril().numpy(), np.tril(phi.T @ phi), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.cross.numpy(), phi.T @ targets, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.squares.numpy(), (targets**2).sum(0), rtol=1e-10)


@pytest.mark.parametrize("features", ["linear", "tanh", "tanh+inputs"])
def test_what_stays_and_what_actions_always_do_is_known_at_once(features: str) -> None:
    """z' = z + b_a, 40 episodes, no gradient step: seen only with the inputs among the features."""
    effects = np.array([[0.1, 0, 0], [0, 0, -0.1]])
    replay, rng = Replay(1000, 1, (3,), "float32"), np.random.default_rng(0)
    for _ in range(40):
        z = 3 * rng.normal(size=3)
        replay.start(0, z.astype(np.float32))
        for t in range(10):
            action = int(rng.integers(2))
            z = z + effects[action]
            replay.add(0, action, 0.0, z.astype(np.float32), t == 9, False)
    config = small_config(forward={"features": features}, posterior={"noise": (1e-6, 1.0)})
    models = small_models(config, vector_spec())
    data = oracle.buffer_statistics(models, replay, oracle.EncodeOnUse(models, replay))
    posterior = Posterior(config, models.forward_model.statistics(CPU))
    posterior.fit(data)
    model, both = models.forward_model, torch.arange(2)
    state = torch.full((2, 3), 2.0, dtype=torch.float64)
    hidden = model.next_hidden(state, both, state.new_zeros(2, model.gru.hidden_size))
    moved = model.features(hidden, state, both).detach() @ posterior.mean[:3].T - state
    error = float((moved - torch.tensor(effects)).abs().max())
    assert error < 0.01 if features == "tanh+inputs" else error > 0.1, error


@pytest.mark.parametrize("rule", ["exact", "released"])
def test_a_draw_that_lasts_keeps_its_noise_and_follows_the_data(rule: str) -> None:
    """With another posterior the same eps gives mu + L^-T eps (released: mu + eps C) of that posterior."""
    config = small_config(posterior={"rule": rule, "prior": (2.0, 5.0), "noise": (0.3, 0.3), "resample": 1e-9})
    lasting, generator = Posterior(config, Statistics.empty(4, 3, CPU)), torch.Generator().manual_seed(0)
    for seed in (1, 2):
        lasting.fit(statistics(*data(seed=seed)))
        weight = lasting.draw(generator)
        if seed == 1:
            eps = lasting.eps[0].clone()
    for j, group in enumerate((0, 0, len(lasting.groups) - 1)):
        factor = lasting.factors[group].numpy()
        noise = eps[j].numpy() @ (factor if rule == "released" else np.linalg.inv(factor))
        np.testing.assert_allclose((weight - lasting.mean)[j].numpy(), noise, rtol=1e-9)


def test_how_long_draws_last() -> None:
    """New noise with probability 0.25 in 4,000 draws, within 4.5 deviations; saved and loaded like the rest."""
    config = small_config(posterior={"resample": 0.25})
    lasting, generator = Posterior(config, Statistics.empty(2, 2, CPU)), torch.Generator().manual_seed(0)
    draws = torch.stack([lasting.draw(generator) for _ in range(4000)])
    changed = (draws[1:] != draws[:-1]).flatten(1).any(1)
    assert abs(int(changed.sum()) - 1000) < 4.5 * np.sqrt(4000 * 0.25 * 0.75)
    check_draws(draws[1:][changed].numpy(), [np.zeros(2)] * 2, [1e3 * np.eye(2)] * 2)
    other = Posterior(config, Statistics.empty(2, 2, CPU))
    other.load_state_dict(lasting.state_dict())
    state = generator.get_state()
    assert torch.equal(lasting.draw(generator), other.draw(generator.set_state(state)))


@pytest.mark.parametrize("resample", [0.0, 1.5])
def test_a_probability_of_new_noise(resample: float) -> None:
    with pytest.raises(UserError, match=r"--posterior\.resample"):
        small_config(posterior={"resample": resample}).check()
