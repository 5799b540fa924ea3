"""Bootstrapped DQN with randomised priors: networks against single heads, losses and masks by hand, acting."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from psdrl.agents.bootstrap.acting import HeadActor, VoteActor, vote
from psdrl.agents.bootstrap.learning import bootstrap_loss, make_step, masked_loss, targets
from psdrl.agents.bootstrap.network import Heads, Networks, QNetwork
from psdrl.agents.bootstrap.settings import LearningConfig, NetworkConfig
from psdrl.agents.stacks import Stacks
from psdrl.agents.transitions import make_optimiser
from psdrl.envs.vector import EnvSpec
from psdrl.runtime.execution import EAGER, Execution

IMAGE = EnvSpec("test", "image", (1, 20, 20), "uint8", 3, "test")
VECTOR = EnvSpec("test", "vector", (4,), "float32", 3, "test")
GRID = EnvSpec("test", "vector", (5 * 6 * 2,), "uint8", 3, "test", grid=(5, 6, 2))
SMALL: dict[str, Any] = {"heads": 4, "units": 5, "prior_scale": 3.0}
CONVOLUTIONS: dict[str, Any] = {"channels": (3, 4), "kernels": (4, 3), "strides": (2, 1)}
CASES = {
    "image": (IMAGE, NetworkConfig(**SMALL, **CONVOLUTIONS)),
    "vector": (VECTOR, NetworkConfig(**SMALL, torso=(7, 6))),
    "vector, no torso": (VECTOR, NetworkConfig(**SMALL)),
    "grid": (GRID, NetworkConfig(**SMALL, grid_channels=3, torso=(7,))),
    "grid as a vector": (GRID, NetworkConfig(**SMALL, grid_channels=0, torso=(7,))),
}
STACK = 2
Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def networks_of(case: str, seed: int = 0) -> Networks:
    """Networks in float64, with a target network that differs from the trained one."""
    spec, config = CASES[case]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        networks = Networks(config, spec, STACK).double()
        for p in networks.target.parameters():
            p.add_(0.3 * torch.randn_like(p))
        return networks


def stacks_of(case: str, count: int, frames: int = STACK, seed: int = 1) -> Tensor:
    spec, _ = CASES[case]
    generator = torch.Generator().manual_seed(seed)
    if spec.dtype == "uint8":
        return torch.randint(0, 256 if spec.kind == "image" else 2, (count, frames, *spec.shape), generator=generator)
    return torch.randn(count, frames, *spec.shape, generator=generator, dtype=torch.float64)


def batch_of(case: str, count: int, heads: int = 4) -> Batch:
    """Frames, actions, rewards, terminations and masks; the second head's mask is empty."""
    rng = np.random.default_rng(5)
    masks = rng.random((count, heads)) < 0.6
    masks[:, 1] = False
    actions, rewards = torch.from_numpy(rng.integers(3, size=count)), torch.from_numpy(4 * rng.normal(size=count))
    terminated = torch.from_numpy(rng.random(count) < 0.4).double()
    return stacks_of(case, count, STACK + 1), actions, rewards, terminated, torch.from_numpy(masks).double()


class SingleHead(nn.Module):
    """The oracle: one head on the shared torso, as separate linear layers."""

    def __init__(self, network: QNetwork, head: int) -> None:
        super().__init__()
        heads, rows = network.heads, slice(head * 2 * network.heads.units, (head + 1) * 2 * network.heads.units)
        self.network, self.units = [network], heads.units  # in a list: its parameters are not this head's
        self.hidden = nn.Linear(network.torso.size, 2 * heads.units).double()
        self.value = nn.Linear(heads.units, 1).double()
        self.advantage = nn.Linear(heads.units, heads.advantage_weight.shape[2]).double()
        with torch.no_grad():
            self.hidden.weight.copy_(heads.hidden.weight[rows])
            self.hidden.bias.copy_(heads.hidden.bias[rows])
            self.value.weight.copy_(heads.value_weight[head].T)
            self.value.bias.copy_(heads.value_bias[head, 0])
            self.advantage.weight.copy_(heads.advantage_weight[head].T)
            self.advantage.bias.copy_(heads.advantage_bias[head, 0])

    def forward(self, stacks: Tensor) -> Tensor:
        hidden = F.relu(self.hidden(features_by_hand(self.network[0], stacks)))
        value, advantage = self.value(hidden[:, : self.units]), self.advantage(hidden[:, self.units :])
        return value + advantage - advantage.mean(1, keepdim=True)


def features_by_hand(network: QNetwork, stacks: Tensor) -> Tensor:
    """The torso, row by row and layer by layer."""
    rows = []
    for stack in stacks.double():
        x = stack / 255 if stacks.shape[2:] == IMAGE.shape else stack
        if network.torso.grid:  # (stack, height, width, channels) -> one plane per frame and channel
            planes = [frame.view(network.torso.grid)[:, :, c] for frame in x for c in range(network.torso.grid[2])]
            x = torch.stack(planes)
        elif x.ndim == 4:
            x = torch.cat(list(x))
        for layer in network.torso.layers:
            if isinstance(layer, nn.Conv2d):
                x = F.conv2d(x[None], layer.weight, layer.bias, layer.stride)[0].relu()
            elif isinstance(layer, nn.Linear):
                x = (layer.weight @ x.flatten() + layer.bias).relu()
        rows.append(x.flatten())
    return torch.stack(rows)


@pytest.mark.parametrize("case", CASES)
def test_all_heads_equal_single_heads(case: str) -> None:
    networks, stacks = networks_of(case), stacks_of(case, 6)
    q = networks.q(stacks)
    assert q.shape == (4, 6, 3)
    for k in range(4):
        wanted = SingleHead(networks.online, k)(stacks) + 3.0 * SingleHead(networks.prior, k)(stacks)
        torch.testing.assert_close(q[k], wanted, rtol=1e-12, atol=1e-12, msg=f"head {k}")
    assert (q[0] - q[1]).abs().max() > 0.01


@pytest.mark.parametrize("count", [1, 3, 4, 9])
def test_chosen_heads_equal_all_heads(count: int) -> None:
    """Few rows gather their heads' weights, many compute all heads."""
    networks, stacks = networks_of("image"), stacks_of("image", count)
    heads = torch.from_numpy(np.random.default_rng(0).integers(4, size=count))
    wanted = torch.stack([networks.q(stacks)[k, i] for i, k in enumerate(heads.tolist())])
    torch.testing.assert_close(networks.chosen(stacks, heads), wanted, rtol=1e-12, atol=1e-12)


def test_paper_network() -> None:
    """3,136 features, two streams of 512 units, 29 million parameters with 18 actions."""
    with torch.device("meta"):
        network = QNetwork(NetworkConfig(), EnvSpec("test", "image", (1, 84, 84), "uint8", 18, "test"), 4)
    assert network.torso.size == 3136
    head = 3136 * 1024 + 1024 + 512 * 19 + 19
    torso = 4 * 32 * 64 + 32 + 32 * 64 * 16 + 64 + 64 * 64 * 9 + 64
    assert sum(p.numel() for p in network.parameters()) == torso + 9 * head == 29_076_299


def test_heads_start_as_pytorch_starts_linear_layers() -> None:
    """Uniform within one over the root of the inputs, the head's own: 64 here, not those of all heads."""
    torch.manual_seed(0)
    heads = Heads(9, 100, 64, 18)
    for name, p in heads.named_parameters():
        bound = 100**-0.5 if name.startswith("hidden") else 64**-0.5
        assert p.abs().max() <= bound
        if p.numel() > 100:
            assert p.abs().max() > 0.97 * bound, name
            assert float(p.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.1), name


def huber(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 1, 0.5 * x**2, np.abs(x) - 0.5)


@torch.no_grad()
def loss_by_hand(networks: Networks, batch: Batch, discount: float) -> tuple[float, np.ndarray]:
    """Head by head and transition by transition; also the targets (K, n)."""
    frames, actions, rewards, terminated, masks = batch
    losses, all_targets = [], []
    for k in range(masks.shape[1]):
        online, target, prior = (SingleHead(net, k) for net in (networks.online, networks.target, networks.prior))
        errors, head_targets = [], []
        for i in range(len(actions)):
            now, following = frames[i : i + 1, :-1], frames[i : i + 1, 1:]
            best = int((online(following) + networks.prior_scale * prior(following)).argmax())
            ahead = float((target(following) + networks.prior_scale * prior(following))[0, best])
            head_targets.append(float(rewards[i]) + (0.0 if terminated[i] else discount * ahead))
            q = float((online(now) + networks.prior_scale * prior(now))[0, actions[i]])
            if masks[i, k]:
                errors.append(float(huber(np.array(q - head_targets[-1]))))
        losses.append(float(np.mean(errors)) if errors else 0.0)
        all_targets.append(head_targets)
    return float(np.mean(losses)), np.array(all_targets)


@pytest.mark.parametrize("case", CASES)
def test_loss_by_hand(case: str) -> None:
    networks, batch = networks_of(case), batch_of(case, 12)
    wanted, wanted_targets = loss_by_hand(networks, batch, 0.9)
    following = batch[0][:, 1:]
    found = targets(networks, following, 3.0 * networks.prior(following), batch[2], batch[3], 0.9)
    np.testing.assert_allclose(found.numpy(), wanted_targets, rtol=1e-12, atol=1e-12)
    loss, q = bootstrap_loss(networks, *batch, discount=0.9)
    assert loss.item() == pytest.approx(wanted, rel=1e-12)
    chosen = networks.q(batch[0][:, :-1])[:, range(12), batch[1]]
    assert q.item() == pytest.approx(chosen.mean().item(), rel=1e-12)
    with torch.no_grad():
        errors = (chosen - found).abs().numpy()
    assert (errors < 1).any(), "the quadratic part of the Huber loss is not tested"
    assert (errors > 1).any(), "the linear part of the Huber loss is not tested"


def test_double_dqn_matters_here() -> None:
    """The trained and the target network prefer different actions somewhere, else the test above proves less."""
    networks, following = networks_of("vector"), stacks_of("vector", 12, STACK + 1)[:, 1:]
    prior = networks.prior_scale * networks.prior(following)
    assert ((networks.online(following) + prior).argmax(2) != (networks.target(following) + prior).argmax(2)).any()


def test_masks_by_hand() -> None:
    """Two heads, three transitions: errors 0.5 and 3 for head 0, which leaves out the 100; nothing for head 1."""
    q = torch.tensor([[0.5, 100.0, 3.0], [7.0, 7.0, 7.0]])
    masks = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    loss = masked_loss(q, torch.zeros(2, 3), masks)
    assert loss.item() == pytest.approx(((0.125 + 2.5) / 2 + 0.0) / 2)


def test_full_masks_give_the_released_loss() -> None:
    """The released code averages each head's loss, multiplies it by the mask and divides by the mask's sum: the mean
    over all transitions, whatever the mask. So mask probability 1 is its loss."""
    networks, (frames, actions, rewards, terminated, masks) = networks_of("vector"), batch_of("vector", 12)
    masks[0] = 1  # the released code divides by 0 where a head has nothing
    with torch.no_grad():
        prior = networks.scaled_prior(frames[:, 1:])
        target = targets(networks, frames[:, 1:], prior, rewards, terminated, 0.9)
        q = networks.q(frames[:, :-1])[:, range(12), actions]
    released = []
    for k in range(4):
        full_loss = F.smooth_l1_loss(q[k], target[k])
        released.append((masks[:, k] * full_loss / masks[:, k].sum()).sum())
    ours, _ = bootstrap_loss(networks, frames, actions, rewards, terminated, torch.ones_like(masks), 0.9)
    assert ours.item() == pytest.approx(torch.stack(released).mean().item(), rel=1e-12)


def gradients(networks: Networks, batch: Batch) -> dict[str, Tensor]:
    loss, _ = bootstrap_loss(networks, *batch, discount=0.9)
    names, parameters = zip(*networks.online.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def test_only_the_trained_network_learns() -> None:
    """Neither the prior nor the target network has gradients or moves; every trained parameter does."""
    networks, batch = networks_of("image"), batch_of("image", 12)
    batch[4][:] = 1
    before = copy.deepcopy(networks.state_dict())
    step = make_step(networks, make_optimiser(networks.online, 1e-3), LearningConfig())
    step(*batch)
    for name, p in networks.named_parameters():
        trained = name.startswith("online.")
        assert (p.grad is not None) == p.requires_grad == trained, name
        assert torch.equal(p, before[name]) != trained, name


def test_step_divides_the_torso_clips_and_takes_adams_step() -> None:
    """By hand from the loss's gradients: torso over K, then all over their norm, then Adam's first step."""
    networks, batch = networks_of("image"), batch_of("image", 12)
    plain = gradients(networks, batch)
    wanted = {name: g / 4 if name.startswith("torso.") else g for name, g in plain.items()}
    norm = torch.stack([g.square().sum() for g in wanted.values()]).sum().sqrt()
    before = copy.deepcopy(networks.online.state_dict())
    limit = 0.5 * float(norm)
    step = make_step(networks, make_optimiser(networks.online, 1e-3), LearningConfig(discount=0.9, clip=limit))
    loss, q, found, rejected = step(*batch)
    assert not rejected
    assert found.item() == pytest.approx(norm.item(), rel=1e-12)
    wanted_loss, wanted_q = bootstrap_loss_before(before, networks, batch)
    assert (loss.item(), q.item()) == pytest.approx((wanted_loss, wanted_q), rel=1e-12)
    for name, p in networks.online.named_parameters():
        gradient = wanted[name] * limit / (norm + 1e-6)
        assert p.grad is not None
        torch.testing.assert_close(p.grad, gradient, rtol=1e-12, atol=1e-15, msg=name)
        moved = before[name] - 1e-3 * gradient / (gradient.abs() + 1e-8)  # Adam's first step
        torch.testing.assert_close(p.detach(), moved, rtol=1e-10, atol=1e-12, msg=name)


def bootstrap_loss_before(before: dict[str, Any], networks: Networks, batch: Batch) -> tuple[float, float]:
    old = copy.deepcopy(networks)
    old.online.load_state_dict(before)
    loss, q = bootstrap_loss(old, *batch, discount=0.9)
    return loss.item(), q.item()


def test_small_gradients_are_not_clipped() -> None:
    networks, batch = networks_of("vector"), batch_of("vector", 12)
    plain = gradients(networks, batch)
    optimiser = make_optimiser(networks.online, 1e-3)
    _, _, norm, _ = make_step(networks, optimiser, LearningConfig(discount=0.9, clip=1e6))(*batch)
    assert 0 < norm < 1e6
    for name, p in networks.online.heads.named_parameters():
        assert p.grad is not None
        torch.testing.assert_close(p.grad, plain[f"heads.{name}"], rtol=1e-12, atol=1e-15, msg=name)


def test_bfloat16_is_close() -> None:
    """Products in bfloat16, everything else in float32: loss, Q and gradient within a few roundings of 2^-8."""
    execution = Execution(torch.device("cpu"), precision="bf16")
    found = []
    for how in (EAGER, execution):
        networks = networks_of("image").float()
        frames, actions, *rest = batch_of("image", 12)
        step = make_step(networks, make_optimiser(networks.online, 1e-3), LearningConfig(), how)
        found.append(torch.stack(step(frames, actions, *(x.float() for x in rest))))
        assert all(p.dtype == torch.float32 for p in networks.parameters())
    torch.testing.assert_close(found[1], found[0], rtol=0.03, atol=0.03)
    assert not torch.equal(found[1], found[0]), "nothing was cast"


def test_mixed_precision_lowers_the_torso_only() -> None:
    """Features are those of autocast, cast back; the heads compute in float32."""
    network = networks_of("image").float().online
    frames = batch_of("image", 12)[0][:, :-1]
    full = network.features(frames)
    with torch.autocast("cpu", torch.bfloat16):
        low = network.features(frames).float()
    network.torso.bf16 = True
    mixed = network.features(frames)
    assert mixed.dtype == torch.float32
    assert torch.equal(mixed, low)
    assert not torch.equal(mixed, full)
    torch.testing.assert_close(network(frames), network.heads(low))


def test_target_is_a_copy_in_place() -> None:
    networks = networks_of("vector")
    where = [p.data_ptr() for p in networks.target.parameters()]
    networks.update_target()
    for old, new in zip(networks.target.parameters(), networks.online.parameters(), strict=True):
        assert torch.equal(old, new)
    assert [p.data_ptr() for p in networks.target.parameters()] == where
    assert not set(where) & {p.data_ptr() for p in networks.online.parameters()}


@pytest.mark.parametrize(
    ("preferred", "action"),
    [([2, 1, 1], 1), ([0, 2, 2, 0], 0), ([2, 0, 0, 2], 2), ([1, 2, 0], 1), ([0, 1, 2, 2], 2), ([2], 2)],
)
def test_vote(preferred: list[int], action: int) -> None:
    """A majority wins; ties go to the lowest-numbered head that votes for one of the tied."""
    q = F.one_hot(torch.tensor(preferred), 3).float()[:, None]
    assert vote(q).tolist() == [action]


def test_vote_row_by_row() -> None:
    q = torch.randn(9, 200, 4, generator=torch.Generator().manual_seed(0))
    wanted = []
    for row in range(200):
        preferred = [int(q[k, row].argmax()) for k in range(9)]
        most = max(preferred.count(a) for a in range(4))
        wanted.append(next(a for a in preferred if preferred.count(a) == most))
    assert vote(q).tolist() == wanted


def head_actor(num_envs: int = 1, share: float = 0.0, seed: int = 0, networks: Networks | None = None) -> HeadActor:
    networks = networks or networks_of("vector").float()
    stacks = Stacks(num_envs, STACK, VECTOR, torch.device("cpu"))
    return HeadActor(networks, stacks, num_envs, 3, lambda: share, np.random.default_rng(seed), EAGER)


def test_a_head_per_episode() -> None:
    """Drawn where an episode starts and kept until the next one; all heads equally often."""
    actor = head_actor(2)
    actor.start(np.array([True, True]))
    drawn = []
    for _ in range(800):
        old = actor.heads.copy()
        actor.act(np.zeros((2, 4), np.float32))
        assert (actor.heads == old).all(), "a head changes within an episode"
        actor.start(np.array([True, False]))
        assert actor.heads[1] == old[1]
        drawn.append(int(actor.heads[0]))
    counts = np.bincount(drawn, minlength=4)
    assert (abs(counts - 200) < 4 * np.sqrt(800 * 0.25 * 0.75)).all(), counts


def test_acts_greedily_by_its_head_on_its_stack() -> None:
    """Against the networks asked directly, over episodes of two environments that end at different steps."""
    networks = networks_of("vector").float()
    actor, rng = head_actor(2, networks=networks), np.random.default_rng(0)
    actor.start(np.array([True, True]))
    last = np.zeros((2, 4), np.float32)
    heads_seen = set()
    for t in range(200):
        now = 20 * rng.normal(size=(2, 4)).astype(np.float32)  # so that the earlier frame counts
        stacks = torch.from_numpy(np.stack([last, now], 1))
        q = networks.q(stacks)
        wanted = [int(q[k, i].argmax()) for i, k in enumerate(actor.heads)]
        assert actor.act(now).tolist() == wanted, f"step {t}"
        heads_seen.update(actor.heads.tolist())
        started = np.array([t % 5 == 4, t % 7 == 6])
        actor.start(started)
        last = np.where(started[:, None], 0, now)
    assert heads_seen == {0, 1, 2, 3}


def test_votes_on_its_stack() -> None:
    networks, rng = networks_of("vector, no torso").float(), np.random.default_rng(0)
    actor = VoteActor(networks, Stacks(1, STACK, VECTOR, torch.device("cpu")), 3, lambda: 0.0, rng, EAGER)
    actor.start(np.array([True]))
    last = np.zeros((1, 4), np.float32)
    for t in range(200):
        now = 20 * rng.normal(size=(1, 4)).astype(np.float32)
        wanted = vote(networks.q(torch.from_numpy(np.stack([last, now], 1))))
        assert actor.act(now).tolist() == wanted.tolist(), f"step {t}"
        started = np.array([t % 5 == 4])
        actor.start(started)
        last = np.where(started[:, None], 0, now)


def test_random_actions() -> None:
    """All of them at share 1, which asks no network; some at share 0.5, uniform among the actions."""
    networks = networks_of("vector").float()
    observations = np.random.default_rng(1).normal(size=(4000, 4)).astype(np.float32)
    greedy = head_actor(4000, 0.0, networks=networks).act(observations)
    mixed = head_actor(4000, 0.5, networks=networks).act(observations)
    assert (mixed == greedy).mean() == pytest.approx(0.5 + 0.5 / 3, abs=0.04)
    actor = head_actor(4000, 1.0, networks=networks)
    networks.online.torso.register_forward_hook(lambda *_: pytest.fail("the network is asked for nothing"))
    random = actor.act(observations)
    np.testing.assert_allclose(np.bincount(random) / 4000, 1 / 3, atol=0.04)
