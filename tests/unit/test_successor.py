"""Successor Uncertainties: features and posterior by hand, losses transition by transition, draws, acting."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from psdrl.agents.stacks import Stacks
from psdrl.agents.successor.acting import ThompsonActor, make_choice
from psdrl.agents.successor.learning import (
    best_probabilities,
    expected_successors,
    make_step,
    noise_shape,
    released_values,
    sampled_values,
    successor_losses,
)
from psdrl.agents.successor.network import FeatureNetwork, Networks
from psdrl.agents.successor.posterior import RewardPosterior
from psdrl.agents.successor.recent import RecentReplay
from psdrl.agents.successor.settings import LearningConfig, NetworkConfig, PosteriorConfig
from psdrl.agents.transitions import make_optimiser
from psdrl.envs.vector import EnvSpec
from psdrl.errors import Diverged
from psdrl.runtime.execution import EAGER, Execution

IMAGE = EnvSpec("test", "image", (1, 20, 20), "uint8", 3, "test")
VECTOR = EnvSpec("test", "vector", (4,), "float32", 3, "test")
GRID = EnvSpec("test", "vector", (5 * 6 * 2,), "uint8", 3, "test", grid=(5, 6, 2))
CONVOLUTIONS: dict[str, Any] = {"channels": (3, 4), "kernels": (4, 3), "strides": (2, 1)}
CASES = {
    "image": (IMAGE, NetworkConfig(5, torso=(9,), **CONVOLUTIONS)),
    "vector": (VECTOR, NetworkConfig(5, torso=(7, 6))),
    "vector, joint": (VECTOR, NetworkConfig(5, joint_normalisation=True, torso=(7,))),
    "vector, residual": (VECTOR, NetworkConfig(5, residual=True, torso=(7,))),
    "grid": (GRID, NetworkConfig(5, grid_channels=3, torso=(7,))),
}
STACK, ROWS, DISCOUNT, DRAWS = 2, 24, 0.9, 40
Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
Numbers = np.ndarray


def networks_of(case: str) -> Networks:
    """Networks in float64, with a target network that differs from the trained one."""
    spec, config = CASES[case]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        networks = Networks(config, spec, STACK).double()
        with torch.no_grad():
            if config.residual:
                networks.online.psi.weight.copy_(0.3 * torch.randn_like(networks.online.psi.weight))
        networks.update_target()
        for p in networks.target.parameters():
            p.add_(0.3 * torch.randn_like(p))
        return networks


def stacks_of(case: str, count: int, frames: int = STACK) -> Tensor:
    spec, _ = CASES[case]
    generator = torch.Generator().manual_seed(1)
    if spec.dtype == "uint8":
        return torch.randint(0, 256 if spec.kind == "image" else 2, (count, frames, *spec.shape), generator=generator)
    return torch.randn(count, frames, *spec.shape, generator=generator, dtype=torch.float64)


def batch_of(case: str, how: str = "posterior") -> Batch:
    """Frames, actions, rewards, terminations and noise."""
    rng = np.random.default_rng(5)
    actions, rewards = torch.from_numpy(rng.integers(3, size=ROWS)), torch.from_numpy(2 * rng.normal(size=ROWS))
    terminated = torch.from_numpy(rng.random(ROWS) < 0.4).double()
    shape = noise_shape(LearningConfig(batch=ROWS, draws=DRAWS, next_action=how), 5, 3)  # type: ignore[arg-type]
    return stacks_of(case, ROWS, STACK + 1), actions, rewards, terminated, torch.from_numpy(rng.normal(size=shape))


def root_of(k: int = 5) -> Tensor:
    """A root of some covariance, lower triangular like L^-1."""
    generator = torch.Generator().manual_seed(2)
    return torch.randn(k, k, generator=generator, dtype=torch.float64).tril()


def by_hand(network: FeatureNetwork, stack: Tensor) -> tuple[Numbers, Numbers]:
    """phi and psi (A, k) of one stack, number by number from the outputs of the torso."""
    hidden = network.hidden(stack[None])[0].detach().numpy()
    outputs = {
        name: layer.weight.detach().numpy() @ hidden + layer.bias.detach().numpy()
        for name, layer in (("phi", network.phi), ("psi", network.psi))
    }
    k = network.features
    phi = [np.maximum(outputs["phi"][a * k : (a + 1) * k], 0) for a in range(3)]
    lengths = [np.sqrt((block**2).sum()) for block in phi]
    if network.joint:
        lengths = [np.sqrt(sum(length**2 for length in lengths))] * 3
    phi = [block / (length + 1e-6) for block, length in zip(phi, lengths, strict=True)]
    blocks = [outputs["psi"][a * k : (a + 1) * k] for a in range(4)]
    if network.residual:
        return np.array(phi), np.array([phi[a] + blocks[0] + blocks[1 + a] for a in range(3)])
    return np.array(phi), np.array([np.maximum(blocks[0], 0) + np.maximum(blocks[1 + a], 0) for a in range(3)])


@pytest.mark.parametrize("case", CASES)
def test_features_by_hand(case: str) -> None:
    """All actions, and those of the actions taken."""
    networks, stacks = networks_of(case), stacks_of(case, 6)
    online, actions = networks.online, torch.tensor([0, 1, 2, 2, 1, 0])
    hidden = online.hidden(stacks)
    wanted = [by_hand(online, stack) for stack in stacks]
    phi, psi = online.local(hidden), online.successors(hidden)
    for i, both in enumerate(wanted):
        np.testing.assert_allclose(phi[i].detach().numpy(), both[0], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(psi[i].detach().numpy(), both[1], rtol=1e-12, atol=1e-14)
    rows = range(6)
    local = online.local_of(hidden, actions)
    torch.testing.assert_close(local, phi[rows, actions], rtol=1e-12, atol=1e-14)
    successors = online.successors_of(hidden, actions, local)
    torch.testing.assert_close(successors, psi[rows, actions], rtol=1e-12, atol=1e-14)
    norms = phi.norm(dim=2)
    if case == "vector, joint":
        torch.testing.assert_close(norms.square().sum(1), norms.new_ones(6), rtol=1e-4, atol=0)
        assert norms.min() < 0.7
    else:
        live = norms > 0.5  # a ReLU may leave nothing
        assert live.float().mean() > 0.8
        assert norms[live].min() > 0.99


def test_paper_network() -> None:
    """3,136 features, 1,024 units, 64 numbers per action: 5.7 million parameters with 18 actions."""
    with torch.device("meta"):
        network = FeatureNetwork(NetworkConfig(), EnvSpec("test", "image", (1, 84, 84), "uint8", 18, "test"), 4)
    torso = 4 * 32 * 64 + 32 + 32 * 64 * 16 + 64 + 64 * 64 * 9 + 64 + 3136 * 1024 + 1024
    outputs = 1025 * 64 * 18 + 1025 * 64 * 19 + 64
    assert sum(p.numel() for p in network.parameters()) == torso + outputs == 5_717_536


def test_weights_start_xavier_uniform() -> None:
    torch.manual_seed(0)
    network = FeatureNetwork(NetworkConfig(16, torso=(50,)), VECTOR, STACK)
    sizes = {"torso.layers.1.weight": (8, 50), "phi.weight": (50, 48), "psi.weight": (50, 64), "w": (16, 1)}
    for name, (inputs, outputs) in sizes.items():
        p, bound = network.get_parameter(name).detach(), (6 / (inputs + outputs)) ** 0.5
        assert 0.85 * bound < p.abs().max() <= bound, name
        if p.numel() > 100:
            assert float(p.std()) == pytest.approx(bound / 3**0.5, rel=0.1), name


def test_what_small_problems_start_with() -> None:
    """residual: psi is phi. initial_w: a factor. fixed_phi: its layer is not trained."""
    network = FeatureNetwork(NetworkConfig(5, residual=True, initial_w=0.0, fixed_phi=True, torso=()), VECTOR, STACK)
    hidden = network.hidden(stacks_of("vector", 6))
    assert torch.equal(network.local(hidden), network.successors(hidden))
    assert not network.w.any()
    assert [name for name, p in network.named_parameters() if not p.requires_grad] == ["phi.weight", "phi.bias"]


def precision_by_hand(rows: Numbers, forgetting: float, ridge: float) -> Numbers:
    precision = ridge * np.eye(rows.shape[1])
    for phi in rows:
        precision = (1 - forgetting) * precision + np.outer(phi, phi)
    return precision


@pytest.mark.parametrize(("forgetting", "ridge"), [(0.0, 1.0), (0.1, 1.0), (0.1, 0.2)])
def test_posterior_by_hand(forgetting: float, ridge: float) -> None:
    """Row by row, in two parts, against (precision / beta^2)^-1."""
    rows = np.random.default_rng(0).normal(size=(9, 4))
    posterior = RewardPosterior(PosteriorConfig(0.3, ridge, forgetting), 4, torch.device("cpu"))
    np.testing.assert_allclose(posterior.root.numpy(), 0.3 * np.eye(4) / ridge**0.5, rtol=1e-6)
    for part in (rows[:5], rows[5:]):
        posterior.absorb(torch.from_numpy(part))
    covariance = 0.3**2 * np.linalg.inv(precision_by_hand(rows, forgetting, ridge))
    np.testing.assert_allclose((posterior.root.T @ posterior.root).numpy(), covariance, rtol=1e-5, atol=1e-8)
    factor = posterior.factor[0].tril().numpy()
    np.testing.assert_allclose(np.linalg.inv(factor @ factor.T), covariance, rtol=1e-12, atol=1e-14)
    assert posterior.deviation() == pytest.approx(np.sqrt(np.trace(covariance) / 4), rel=1e-6)


def test_draws_have_the_posterior_covariance() -> None:
    posterior = RewardPosterior(PosteriorConfig(0.3, forgetting=0.0), 3, torch.device("cpu"))
    rows = torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0], [0.5, 0.0, 2.0]])
    posterior.absorb(rows)
    count = 20_000
    draws = posterior.draw(count, torch.Generator().manual_seed(0)).double()
    covariance = 0.09 * torch.linalg.inv(torch.eye(3) + rows.T @ rows).double()
    scale = covariance.diagonal().sqrt()
    deviations = (draws.T @ draws / count - covariance) / (scale[:, None] * scale)
    assert deviations.abs().max() < 5 * (2 / count) ** 0.5
    assert (draws.mean(0) / scale).abs().max() < 5 / count**0.5


def test_beta_is_a_standard_deviation() -> None:
    """Before any data a draw's numbers have deviation beta."""
    posterior = RewardPosterior(PosteriorConfig(1e-3), 64, torch.device("cpu"))
    draws = posterior.draw(2000, torch.Generator().manual_seed(0))
    assert float(draws.std()) == pytest.approx(1e-3, rel=0.02)


def test_posterior_refuses_what_is_not_finite() -> None:
    posterior = RewardPosterior(PosteriorConfig(), 3, torch.device("cpu"))
    before = {"gram": posterior.gram.clone(), "root": posterior.root.clone()}
    with pytest.raises(Diverged, match="not finite"):
        posterior.absorb(torch.tensor([[1.0, torch.nan, 0.0]]))
    assert torch.equal(posterior.gram, before["gram"])
    assert torch.equal(posterior.root, before["root"])
    assert posterior.ridge == 1


@pytest.mark.parametrize("ridge", [0.0, -1.0, 2.0, float("nan")])
def test_posterior_refuses_a_state_that_cannot_be(ridge: float) -> None:
    posterior = RewardPosterior(PosteriorConfig(), 3, torch.device("cpu"))
    with pytest.raises(ValueError, match="began with 1"):
        posterior.load_state_dict({"gram": posterior.gram, "ridge": ridge})
    with pytest.raises(ValueError, match="not finite"):
        posterior.load_state_dict({"gram": torch.nan * posterior.gram, "ridge": 1.0})


def test_values_by_hand() -> None:
    """Two actions, two draws. posterior: w is drawn. released: the variance multiplies the noise."""
    psi = torch.tensor([[[1.0, 2.0], [0.0, 1.0]]])
    w, root = torch.tensor([[0.5, -1.0]]), torch.tensor([[2.0, 0.0], [1.0, 3.0]])
    noise = torch.tensor([[1.0, 0.0], [-1.0, 2.0]])
    # Draws of w: R^T noise is (2, 0), and (-2 + 2, 6); Q is -1.5 and -1.
    wanted = torch.tensor([[[-1.5 + 2.0, -1.5 + 12.0], [-1.0 + 0.0, -1.0 + 6.0]]])
    torch.testing.assert_close(sampled_values(psi, w, root, noise), wanted)
    # R psi is (2, 7) and (0, 3): variances 53 and 9.
    wanted = torch.tensor([[[-1.5 + 53.0, -1.5 - 53.0], [-1.0, -1.0 + 18.0]]])
    noise = torch.tensor([[[1.0, -1.0], [0.0, 2.0]]])
    torch.testing.assert_close(released_values(psi, w, root, noise), wanted)


def test_probabilities_by_hand() -> None:
    values = torch.tensor([[[1.0, 0.0, 5.0, 2.0], [2.0, -1.0, 3.0, 3.0], [0.0, -2.0, 4.0, 0.0]]])
    torch.testing.assert_close(best_probabilities(values), torch.tensor([[0.5, 0.5, 0.0]]))


def test_released_draws_are_nearly_greedy() -> None:
    """At beta 1e-3 the released rule takes the best mean where the posterior hesitates: Q differs by half of the
    standard deviation of that difference."""
    generator, beta = torch.Generator().manual_seed(0), 1e-3
    psi = torch.eye(2)[None]
    w, root = torch.tensor([[0.5 * 2**0.5 * beta, 0.0]]), beta * torch.eye(2)
    joint = best_probabilities(sampled_values(psi, w, root, torch.randn(20_000, 2, generator=generator)))
    released = best_probabilities(released_values(psi, w, root, torch.randn(1, 2, 20_000, generator=generator)))
    assert joint[0, 0].item() == pytest.approx(0.6915, abs=0.015), "Phi(0.5)"
    assert released[0, 0].item() == 1


@torch.no_grad()
def losses_by_hand(networks: Networks, batch: Batch, how: str) -> tuple[list[float], Numbers]:
    """Transition by transition, action by action, draw by draw; also the expected psi' (n, k)."""
    frames, actions, rewards, terminated, noise = batch
    root, w = root_of().numpy(), networks.online.w[0].numpy()
    errors: dict[str, list[float]] = {"reward": [], "successor": [], "q": []}
    expected = []
    for i in range(ROWS):
        _, ahead = by_hand(networks.target, frames[i, 1:])
        chosen = np.zeros(3)
        for s in range(DRAWS):
            if how == "posterior":
                values = [psi @ (w + root.T @ noise[s].numpy()) for psi in ahead]
            else:
                values = [psi @ w + psi @ root.T @ root @ psi * noise[i, a, s].item() for a, psi in enumerate(ahead)]
            chosen[int(np.argmax(values))] += 1 / DRAWS
        expected.append(sum(share * psi for share, psi in zip(chosen, ahead, strict=True)))
        follows = 0 if terminated[i] else DISCOUNT * expected[-1]
        phi, psi = (of_all[actions[i]] for of_all in by_hand(networks.online, frames[i, :-1]))
        errors["reward"].append(phi @ w - rewards[i].item())
        errors["successor"] += list(psi - phi - follows)
        errors["q"].append(psi @ w - rewards[i].item() - np.sum(follows * w))
    for name in ("reward", "q"):
        sizes = np.abs(errors[name])
        assert sizes.min() < 1 < sizes.max(), f"one part of the Huber loss is not tested: {name}"
    losses = [np.mean([0.5 * e**2 if abs(e) < 1 else abs(e) - 0.5 for e in found]) for found in errors.values()]
    return [float(loss) for loss in losses], np.array(expected)


@pytest.mark.parametrize("how", ["posterior", "released"])
@pytest.mark.parametrize("case", CASES)
def test_losses_by_hand(case: str, how: str) -> None:
    networks, batch = networks_of(case), batch_of(case, how)
    config = LearningConfig(discount=DISCOUNT, next_action=how)  # type: ignore[arg-type]
    wanted, expected = losses_by_hand(networks, batch, how)
    found = expected_successors(networks, batch[0][:, 1:], root_of(), batch[4], how)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12)
    losses = successor_losses(networks, root_of(), *batch, config)
    assert [loss.item() for loss in losses[:3]] == pytest.approx(wanted, rel=1e-12)
    w = networks.online.w[0].detach().numpy()
    q = [by_hand(networks.online, s)[1][a] @ w for s, a in zip(batch[0][:, :-1], batch[1], strict=True)]
    assert losses.mean_q.item() == pytest.approx(np.mean(q), rel=1e-12)


def gradients(networks: Networks, batch: Batch) -> dict[str, Tensor]:
    """Of the sum of the losses, by automatic differentiation."""
    losses = successor_losses(networks, root_of(), *batch, LearningConfig(discount=DISCOUNT))
    named = dict(networks.online.named_parameters())
    found = torch.autograd.grad(losses.reward + losses.successor + losses.q, list(named.values()))
    return dict(zip(named, found, strict=True))


@pytest.mark.parametrize("case", ["vector", "vector, joint", "vector, residual"])
def test_gradients_by_differences(case: str) -> None:
    """Targets stay fixed: the expected psi', and w in them. phi in the successor loss does not, unless psi contains
    it: then psi's losses leave it as it is."""
    networks, batch = networks_of(case), batch_of(case)
    frames, actions, rewards, terminated, noise = batch
    found = gradients(networks, batch)
    ahead = expected_successors(networks, frames[:, 1:], root_of(), noise, "posterior")
    ahead = DISCOUNT * (1 - terminated)[:, None] * ahead
    online = networks.online
    target = rewards + ahead @ online.w[0].detach()
    before = online.local(online.hidden(frames[:, :-1])).detach()[range(ROWS), actions]

    @torch.no_grad()
    def loss() -> float:
        hidden = online.hidden(frames[:, :-1])
        phi, psi, w = online.local(hidden)[range(ROWS), actions], online.successors(hidden), online.w[0]
        psi = psi[range(ROWS), actions] + (before - phi if online.residual else 0)
        within = before if online.residual else phi
        parts = (F.huber_loss(phi @ w, rewards), F.huber_loss(psi, within + ahead), F.huber_loss(psi @ w, target))
        return float(sum(parts))

    rng = np.random.default_rng(0)
    for name, p in online.named_parameters():
        for _ in range(4):
            flat, place = p.data.view(-1), int(rng.integers(p.numel()))
            old, step, ends = float(flat[place]), 1e-6, []
            for sign in (1, -1):
                flat[place] = old + sign * step
                ends.append(loss())
            flat[place] = old
            slope = (ends[0] - ends[1]) / (2 * step)
            assert found[name].view(-1)[place].item() == pytest.approx(slope, rel=1e-4, abs=1e-8), (name, place)


def test_step_clips_and_takes_adams_step() -> None:
    networks, batch = networks_of("image"), batch_of("image")
    wanted = gradients(networks, batch)
    norm = torch.stack([g.square().sum() for g in wanted.values()]).sum().sqrt()
    before, limit = copy.deepcopy(networks.state_dict()), 0.5 * float(norm)
    old = [loss.item() for loss in successor_losses(networks, root_of(), *batch, LearningConfig(discount=DISCOUNT))]
    optimiser = make_optimiser(networks.online, 1e-3)
    step = make_step(networks, root_of(), optimiser, LearningConfig(discount=DISCOUNT, clip=limit))
    *found, rejected = (x.item() for x in step(*batch))
    assert not rejected
    assert found == pytest.approx([*old, float(norm)], rel=1e-12)
    for name, p in networks.online.named_parameters():
        gradient = wanted[name] * limit / (norm + 1e-6)
        moved = before[f"online.{name}"] - 1e-3 * gradient / (gradient.abs() + 1e-8)  # Adam's first step
        torch.testing.assert_close(p.detach(), moved, rtol=1e-10, atol=1e-12, msg=name)
    for name, p in networks.target.named_parameters():
        assert p.grad is None
        assert torch.equal(p, before[f"target.{name}"]), name


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    networks, batch = networks_of("vector"), batch_of("vector")
    batch[2][3] = torch.inf
    before, optimiser = copy.deepcopy(networks.state_dict()), make_optimiser(networks.online, 1e-3)
    with torch.no_grad():
        networks.online.w[0, 0] = torch.nan
        before["online.w"][0, 0] = torch.nan
    found = [x.item() for x in make_step(networks, root_of(), optimiser, LearningConfig(discount=DISCOUNT))(*batch)]
    assert found == [0, 0, 0, 0, 0, 1]
    for name, x in networks.state_dict().items():
        assert torch.equal(x.nan_to_num(7), before[name].nan_to_num(7)), name


def test_bfloat16_is_close() -> None:
    """Products in bfloat16, everything else in float32: within a few roundings of 2^-8."""
    found = []
    for how in (EAGER, Execution(torch.device("cpu"), precision="bf16")):
        networks, (frames, actions, *rest) = networks_of("image").float(), batch_of("image")
        step = make_step(networks, root_of().float(), make_optimiser(networks.online, 1e-3), LearningConfig(), how)
        rest[-1] *= 0  # else a rounding may turn draws over
        found.append(torch.stack(step(frames, actions, *(x.float() for x in rest))))
        assert all(p.dtype == torch.float32 for p in networks.parameters())
    torch.testing.assert_close(found[1], found[0], rtol=0.05, atol=0.05)
    assert not torch.equal(found[1], found[0]), "nothing was cast"


def actor_of(networks: Networks, count: int, share: float = 0.0, noise: float = 0.0, **more: Any) -> ThompsonActor:
    generator = torch.Generator().manual_seed(3)
    perturbations = torch.randn(count, 5, generator=generator)
    stacks = Stacks(count, STACK, VECTOR, torch.device("cpu"))
    choose, rng = make_choice(networks, EAGER), np.random.default_rng(0)
    return ThompsonActor(choose, stacks, perturbations, 3, lambda: share, noise, rng, **more)


def test_acts_greedily_by_its_draw_on_its_stack() -> None:
    """Against the features by hand, over episodes of two environments that end at different steps."""
    networks = networks_of("vector").float()
    exact = copy.deepcopy(networks).double()
    actor, rng = actor_of(networks, 2), np.random.default_rng(0)
    actor.start(np.array([True, True]))
    last, seen = np.zeros((2, 4), np.float32), set()
    for t in range(100):
        now = 20 * rng.normal(size=(2, 4)).astype(np.float32)  # so that the earlier frame counts
        wanted = []
        for stack, perturbation in zip(np.stack([last, now], 1), actor.perturbations.numpy(), strict=True):
            _, psi = by_hand(exact.online, torch.from_numpy(stack).double())
            wanted.append(int(np.argmax(psi @ (exact.online.w[0].detach().numpy() + perturbation))))
        assert actor.act(now).tolist() == wanted, f"step {t}"
        seen.update(wanted)
        started = np.array([t % 5 == 4, t % 7 == 6])
        actor.start(started)
        last = np.where(started[:, None], 0, now)
    assert seen == {0, 1, 2}


def test_noise_per_action() -> None:
    """With much of it actions are uniform, with none always the same."""
    networks, observations = networks_of("vector").float(), np.ones((4000, 4), np.float32)
    for noise, expected in ((0.0, [0, 1]), (1e6, [1 / 3])):
        actor = actor_of(networks, 4000, noise=noise)
        actor.perturbations.zero_()
        shares = np.bincount(actor.act(observations), minlength=3) / 4000
        assert all(min(abs(share - e) for e in expected) < 0.04 for share in shares)


def test_random_actions_ask_no_network() -> None:
    networks = networks_of("vector").float()
    networks.online.torso.register_forward_hook(lambda *_: pytest.fail("the network is asked for nothing"))
    random = actor_of(networks, 4000, 1.0).act(np.ones((4000, 4), np.float32))
    np.testing.assert_allclose(np.bincount(random) / 4000, 1 / 3, atol=0.04)


def test_new_draws_where_episodes_start() -> None:
    actor = actor_of(networks_of("vector").float(), 3, redraw=lambda count: torch.full((count, 5), 7.0))
    before = actor.perturbations.clone()
    actor.start(np.array([False, True, False]))
    assert torch.equal(actor.perturbations[1], torch.full((5,), 7.0))
    assert torch.equal(actor.perturbations[::2], before[::2])


def filled_replay(episodes: list[int], capacity: int = 100) -> RecentReplay:
    """Two environments; each transition's action is its number in its environment."""
    replay = RecentReplay(capacity, 2, (1,), "float32", 1)
    for env in range(2):
        number = 0
        for length in episodes:
            replay.start(env, np.zeros(1))
            for t in range(length):
                replay.add(env, number, 0.0, np.full(1, t + 1.0), t == length - 1)
                number += 1
    return replay


def test_what_was_stored_since() -> None:
    """Each transition once, final frames left out, the newest frame not complete."""
    replay = filled_replay([3, 2])
    known = np.zeros(2, np.int64)
    assert replay.transitions_at(replay.since(known)).actions.tolist() == [0, 1, 2, 3, 4] * 2
    known = replay.complete()
    assert len(replay.since(known)) == 0
    replay.start(0, np.zeros(1))
    replay.add(0, 77, 0.0, np.ones(1), False)
    assert replay.transitions_at(replay.since(known)).actions.tolist() == [77]
    known = replay.complete()
    replay.add(0, 78, 0.0, np.ones(1), False)
    replay.add(1, 79, 0.0, np.ones(1), False)
    assert replay.transitions_at(replay.since(known)).actions.tolist() == [78, 79]


def test_what_has_left_or_failed_is_not_read() -> None:
    replay = filled_replay([5, 4], capacity=8)  # 4 transitions each
    assert replay.transitions_at(replay.since(np.zeros(2, np.int64))).actions.tolist() == [5, 6, 7, 8] * 2
    replay.discard(1)
    assert replay.transitions_at(replay.since(np.zeros(2, np.int64))).actions.tolist() == [5, 6, 7, 8]
