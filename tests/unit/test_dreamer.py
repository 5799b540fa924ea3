"""DreamerV2's equations by hand, and its losses against their oracles."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from psdrl.agents.dreamer import learning, oracle
from psdrl.agents.dreamer.categorical import balanced, divergence, draw, log_probability, one_hot, sample
from psdrl.agents.dreamer.networks import Networks, RecurrentModel, States
from psdrl.agents.dreamer.sequences import Moments, draw_sequences, drawn_slots, enough
from psdrl.agents.dreamer.settings import DreamerConfig, ModelConfig
from psdrl.agents.registry import configure
from psdrl.envs.vector import EnvSpec
from psdrl.errors import UserError
from psdrl.replay.episodes import Replay
from tests.helpers import filled_replay, parameters_of, sigmoid, vector_spec

IMAGE = EnvSpec("test", "image", (2, 64, 64), "uint8", 3, "test")
SPECS = {"image": IMAGE, "vector": vector_spec(5, 3)}


def small(**settings: Any) -> DreamerConfig:
    return configure(algo="dreamer", env="deepsea-4", preset="debug", device="cpu", **settings)


def networks_of(spec: EnvSpec, config: DreamerConfig, seed: int = 0) -> Networks:
    """In float64; all biases and the slow critic differ from what they start with."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        networks = Networks(config, spec).double()
        for p in networks.parameters():
            p.data += 0.1 * torch.randn_like(p)
        return networks


def batch_of(spec: EnvSpec, config: DreamerConfig, seed: int = 1) -> tuple[Tensor, ...]:
    rng = np.random.default_rng(seed)
    shape = config.learning.length, config.learning.batch
    high = 256 if spec.kind == "image" else 3
    frames = torch.from_numpy(rng.integers(high, size=(*shape, *spec.shape)).astype(spec.dtype))
    actions = torch.from_numpy(rng.integers(spec.num_actions, size=shape))
    rewards, noise = torch.from_numpy(rng.normal(size=shape)), rng.random((*shape, config.model.latents))
    terminated, first = (torch.from_numpy(rng.random(shape) < 0.3).double() for _ in range(2))
    first[0] = 1
    return frames, actions, rewards, terminated, first, torch.from_numpy(noise)


# Categorical variables


def test_the_class_drawn_is_the_first_whose_cumulative_probability_exceeds_the_noise() -> None:
    p = torch.tensor([0.2, 0.0, 0.5, 0.3]).expand(6, 4)
    noise = torch.tensor([0.0, 0.19, 0.2, 0.69, 0.71, 0.9999999])
    assert draw(p, noise).tolist() == [0, 0, 2, 2, 3, 3]
    assert draw(torch.full((1, 3), 0.3), torch.tensor([0.95])).tolist() == [2], "a sum below 1 leaves no gap"


def test_draws_have_their_probabilities() -> None:
    p = torch.tensor([0.1, 0.6, 0.3])
    noise = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    counts = draw(p.expand(20_000, 3), noise).bincount(minlength=3) / 20_000
    assert (counts - p).abs().max() < 4 * np.sqrt(0.24 / 20_000)


def test_straight_through_gradients() -> None:
    """Forward a sample; backward sample + p - stop(p): sum_i g_i dp_i/dl_j = p_j (g_j - sum_i p_i g_i)."""
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 3, 5, generator=rng, dtype=torch.float64, requires_grad=True)
    noise, g = torch.rand(4, 3, generator=rng), torch.randn(4, 3, 5, generator=rng, dtype=torch.float64)
    drawn = sample(logits, noise)
    p = logits.detach().softmax(-1)
    assert drawn.equal(F.one_hot(draw(p, noise), 5).double())
    (found,) = torch.autograd.grad(drawn, logits, g)
    torch.testing.assert_close(found, p * (g - (p * g).sum(-1, keepdim=True)), rtol=1e-12, atol=1e-14)
    (wanted,) = torch.autograd.grad(oracle.straight_through(logits, noise), logits, g.flatten(1))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)


def test_kl_divergence_by_hand() -> None:
    """Two variables: KL([1/2, 1/2] || [1/4, 3/4]) + KL([1/4, 3/4] || [1/4, 3/4])."""
    p = torch.tensor([[0.5, 0.5], [0.25, 0.75]], dtype=torch.float64).log() + 3  # logits may be shifted
    q = torch.tensor([[0.25, 0.75], [0.25, 0.75]], dtype=torch.float64).log()
    wanted = 0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)
    assert float(divergence(p, q)) == pytest.approx(wanted, rel=1e-12)
    assert float(divergence(p, p)) == pytest.approx(0, abs=1e-15)


def test_kl_balancing() -> None:
    """The value is KL whatever the balance; of its gradient 0.8 go to the prior and 0.2 to the posterior."""
    rng = torch.Generator().manual_seed(0)
    q, p = (torch.randn(6, 2, 4, generator=rng, dtype=torch.float64, requires_grad=True) for _ in range(2))
    plain = divergence(q, p).mean()
    whole = torch.autograd.grad(plain, (q, p))
    loss, value = balanced(q, p, 0.8)
    assert float(loss) == pytest.approx(float(plain), rel=1e-12)
    assert float(value) == pytest.approx(float(plain), rel=1e-12)
    found = torch.autograd.grad(loss, (q, p))
    for name, x, y, share in zip(("posterior", "prior"), found, whole, (0.2, 0.8), strict=True):
        torch.testing.assert_close(x, share * y, rtol=1e-12, atol=1e-14, msg=name)


def test_log_probability_and_entropy_by_hand() -> None:
    logits = torch.tensor([[0.1, 0.9], [0.5, 0.5]], dtype=torch.float64).log()
    logs, entropy = log_probability(logits, torch.tensor([1, 0]))
    assert logs.tolist() == pytest.approx([np.log(0.9), np.log(0.5)])
    assert entropy.tolist() == pytest.approx([-0.1 * np.log(0.1) - 0.9 * np.log(0.9), np.log(2)])


# Networks


def test_the_recurrent_cell_by_hand() -> None:
    """In NumPy: elu(W [z, a]), one linear layer of [x, h], normalised over all gates; reset on the candidate, update
    bias -1."""
    torch.manual_seed(0)
    model = RecurrentModel(ModelConfig(latents=2, classes=3, recurrent=4, units=5), 7, 3).double()
    for p in model.parameters():
        p.data += 0.3 * torch.randn_like(p)
    p, rng = parameters_of(model), np.random.default_rng(0)
    z, a, h = rng.normal(size=(2, 6)), np.array([2, 0]), rng.normal(size=(2, 4))
    x = np.concatenate([z, np.eye(3)[a]], 1)
    x = x @ np.concatenate([p["from_sample.weight"], p["from_action.weight"]], 1).T + p["from_sample.bias"]
    x = np.where(x > 0, x, np.exp(x) - 1)
    gates = np.concatenate([x, h], 1) @ p["gates.weight"].T + p["gates.bias"]
    gates = (gates - gates.mean(1, keepdims=True)) / np.sqrt(gates.var(1, keepdims=True) + 1e-5)
    reset, candidate, update = np.split(gates * p["norm.weight"] + p["norm.bias"], 3, axis=1)
    update = sigmoid(update - 1)
    wanted = update * np.tanh(sigmoid(reset) * candidate) + (1 - update) * h
    state = States(torch.from_numpy(h), torch.from_numpy(z))
    found = model.advance(state, model.action_inputs(torch.from_numpy(a))).detach().numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    plain = oracle.advance(model, state, F.one_hot(torch.from_numpy(a), 3).double()).detach().numpy()
    np.testing.assert_allclose(plain, wanted, rtol=1e-12)


def test_paper_networks() -> None:
    """64 x 64 to 1,536 numbers and back; 20 million parameters in the world model, 1.1 in actor and critic each."""
    config = configure(algo="dreamer", game="Pong", preset="paper", device="cpu")
    with torch.device("meta"):
        networks = Networks(config, EnvSpec("Pong", "image", (1, 64, 64), "uint8", 18, "test"))
        world = networks.world
        embedding = world.encoder(torch.empty(2, 1, 64, 64))
        picture = world.decoder(torch.empty(2, 1024 + 600))
    assert (embedding.shape, picture.shape) == ((2, 1536), (2, 1, 64, 64))
    count = lambda part: sum(p.numel() for p in part.parameters())  # noqa: E731
    assert count(world) == pytest.approx(20e6, rel=0.03)
    assert count(networks.actor) == pytest.approx(1.1e6, rel=0.05)
    assert count(networks.critic) == pytest.approx(1.1e6, rel=0.05)


def test_what_the_encoder_sees() -> None:
    config = small()
    image = Networks(config, IMAGE).world.inputs(torch.tensor([[[0, 255]]], dtype=torch.uint8))
    assert image.flatten().tolist() == [-0.5, 0.5]
    vector = Networks(config, SPECS["vector"]).world
    vector.mean += 2
    vector.deviation *= 4
    assert vector.inputs(torch.tensor([[0.0, 2, 4, 6, 10]])).tolist() == [[-0.5, 0, 0.5, 1, 2]]


def test_images_of_another_size_are_refused() -> None:
    with pytest.raises(UserError, match="64 x 64"):
        Networks(small(), EnvSpec("test", "image", (1, 84, 84), "uint8", 3, "test"))


# Losses


@pytest.mark.parametrize("kind", SPECS)
def test_the_world_models_loss_is_the_oracles(kind: str) -> None:
    """Value, parts, states and the gradient of every parameter."""
    config, spec = small(), SPECS[kind]
    networks, batch = networks_of(spec, config), batch_of(spec, config)
    world = networks.world
    fast, plain = learning.model_loss(world, *batch, config), oracle.model_loss(world, *batch, config)  # type: ignore[arg-type, call-arg, misc]
    torch.testing.assert_close(fast.total, plain.total, rtol=1e-11, atol=0)
    torch.testing.assert_close(fast.parts, plain.parts, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(tuple(fast.states), tuple(plain.states), rtol=1e-11, atol=1e-13)
    parameters = dict(world.named_parameters())
    found = torch.autograd.grad(fast.total, list(parameters.values()))
    wanted = torch.autograd.grad(plain.total, list(parameters.values()))
    for name, x, y in zip(parameters, found, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-10, msg=name)
        assert y.abs().max() > 0, name


def test_the_parts_are_weighted() -> None:
    config = small(model={"kl_weight": 0.7, "discount_weight": 3.0, "kl_balance": 0.6})
    networks, batch = networks_of(SPECS["vector"], config), batch_of(SPECS["vector"], config)
    loss = learning.model_loss(networks.world, *batch, config)  # type: ignore[arg-type, call-arg, misc]
    image, reward, discount, kl = loss.parts.tolist()
    assert float(loss.total) == pytest.approx(image + reward + 3 * discount + 0.7 * kl)


def test_the_discounts_target_is_soft() -> None:
    """Of a logit of 0 the loss is log 2 whatever the target; its gradient is 1/2 - gamma (1 - terminated)."""
    config = small(behaviour={"discount": 0.9}, model={"discount_weight": 1.0})
    networks, (*rest, first, noise) = networks_of(SPECS["vector"], config), batch_of(SPECS["vector"], config)
    last = networks.world.discount[-1]
    last.weight.data.zero_()
    last.bias.data.zero_()
    loss = learning.model_loss(networks.world, *rest, first, noise, config)  # type: ignore[arg-type, call-arg, misc]
    assert float(loss.parts[2]) == pytest.approx(np.log(2))
    (found,) = torch.autograd.grad(loss.total, last.bias)
    assert float(found) == pytest.approx(0.5 - 0.9 * (1 - float(rest[3].mean())))


def test_lambda_returns_by_hand() -> None:
    """r = 1, 2, 3; v = 10, 20, 30, 40; d = 1/2, 1/4, 1/2; lambda 1/2, from the end backwards."""
    column = lambda *x: torch.tensor(x, dtype=torch.float64)[:, None]  # noqa: E731
    last = 3 + 0.5 * 40
    middle = 2 + 0.25 * (0.5 * 30 + 0.5 * last)
    first = 1 + 0.5 * (0.5 * 20 + 0.5 * middle)
    arguments = column(1, 2, 3), column(10, 20, 30, 40), column(0.5, 0.25, 0.5)
    assert learning.lambda_returns(*arguments, 0.5)[:, 0].tolist() == pytest.approx([first, middle, last])
    assert learning.lambda_returns(*arguments, 0.0)[:, 0].tolist() == [1 + 10, 2 + 7.5, 3 + 20]
    whole = 1 + 0.5 * (2 + 0.25 * (3 + 0.5 * 40))
    assert float(learning.lambda_returns(*arguments, 1.0)[0]) == pytest.approx(whole)


def test_step_weights_by_hand() -> None:
    """The discount of a state weighs all that come after it; after an absorbing one nothing counts."""
    discounts = torch.tensor([[0.5, 0.0], [0.8, 0.9], [0.1, 0.9]])
    torch.testing.assert_close(learning.step_weights(discounts), torch.tensor([[1.0, 1], [0.5, 0], [0.4, 0]]))


def test_reinforce_by_hand() -> None:
    """Two actions in two states: -w (log p(a) (R_{t+1} - v_t) + eta H), and d/dlogits = w (A (p - onehot) - eta dH)."""
    logits = torch.tensor([[0.2, 0.8], [0.5, 0.5]], dtype=torch.float64).log()[:, None].requires_grad_()
    column = lambda *x: torch.tensor(x, dtype=torch.float64)[:, None]  # noqa: E731
    actions, weights = torch.tensor([[1], [0]]), column(1.0, 0.5)
    returns, baseline = column(100.0, 5.0, 7.0), column(2.0, 8.0)  # the first return is that of the given state
    loss, entropy = learning.actor_loss(logits, actions, returns, baseline, weights, 0.1)
    entropies = [-0.2 * np.log(0.2) - 0.8 * np.log(0.8), np.log(2)]
    objective = np.log(0.8) * (5 - 2) + 0.1 * entropies[0], np.log(0.5) * (7 - 8) + 0.1 * entropies[1]
    assert float(loss) == pytest.approx(-(objective[0] + 0.5 * objective[1]) / 2)
    assert float(entropy) == pytest.approx(np.mean(entropies))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient[1, 0].tolist() == pytest.approx([0.5 / 2 * -1 * (0.5 - 1), 0.5 / 2 * -1 * 0.5])


def test_the_critics_loss_by_hand() -> None:
    values, returns = torch.tensor([[1.0], [2.0]]), torch.tensor([[4.0], [0.0]])
    assert float(learning.critic_loss(values, returns, torch.tensor([[1.0], [0.5]]))) == pytest.approx((4.5 + 1) / 2)


def test_behaviour_losses_are_the_oracles() -> None:
    """Both losses and all gradients, from states of which some are absorbing."""
    config, spec = small(behaviour={"horizon": 5}), SPECS["vector"]
    networks, rng = networks_of(spec, config), np.random.default_rng(2)
    recurrent, rows = networks.world.recurrent, 7
    hidden = torch.from_numpy(rng.normal(size=(rows, recurrent.hidden)))
    classes = torch.from_numpy(rng.integers(recurrent.classes, size=(rows, recurrent.groups)))
    start = States(hidden, one_hot(classes, recurrent.classes, torch.float64).flatten(1))
    terminated = torch.tensor([0.0, 1, 0, 0, 1, 0, 0], dtype=torch.float64)
    noise = torch.from_numpy(rng.random((5, rows))), torch.from_numpy(rng.random((5, rows, recurrent.groups)))
    plain = oracle.behaviour_losses(networks, start, terminated, *noise, config)
    imagined = learning.imagine(networks, start, *noise)
    actor, critic, numbers = learning.behaviour_losses(networks, imagined, terminated, config.behaviour)
    for name, network, x, y in zip(
        ("actor", "critic"), (networks.actor, networks.critic), (actor, critic), plain, strict=True
    ):
        torch.testing.assert_close(x, y, rtol=1e-11, atol=0, msg=name)
        parameters = list(network.parameters())
        found, wanted = torch.autograd.grad(x, parameters), torch.autograd.grad(y, parameters)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12, msg=name)
    assert numbers[:2].tolist() == [float(actor), float(critic)]
    both = sum(learning.behaviour_losses(networks, imagined, terminated, config.behaviour)[:2])
    others = [*networks.world.parameters()]
    assert torch.autograd.grad(both, others, allow_unused=True) == (None,) * len(others), (
        "the model learns from data only"
    )


def test_every_update_shrinks_all_parameters_by_the_decay() -> None:
    """Without a gradient, by a share of 1e-3, whatever the learning rates."""
    config = small(learning={"decay": 1e-3})
    networks = Networks(config, SPECS["vector"])
    for name, optimiser in learning.make_optimisers(networks, config).items():
        for group in optimiser.param_groups:
            before = [p.detach().clone() for p in group["params"]]
            for p in group["params"]:
                p.grad = torch.zeros_like(p)
            optimiser.step()
            for p, old in zip(group["params"], before, strict=True):
                torch.testing.assert_close(p.detach(), (1 - 1e-3) * old, rtol=1e-5, atol=0, msg=name)


# Sequences


def numbered(lengths: list[int], capacity: int = 1000) -> Replay:
    """Episodes whose observation t of episode e is [e, t]; its action t % 3, its reward 10 e + t; all but every second
    one end."""
    replay = Replay(capacity, 1, (2,), "float32")
    for e, length in enumerate(lengths):
        replay.start(0, np.array([e, 0]))
        for t in range(length):
            done = t == length - 1
            replay.add(0, t % 3, 10 * e + t, np.array([e, t + 1]), done and e % 2 == 0, done and e % 2 == 1)
    return replay


@pytest.mark.parametrize("kind", ["within", "across"])
def test_rewards_and_actions_belong_to_the_observation_that_they_lead_to(kind: Any) -> None:
    """The ring has wrapped around. Where an episode begins there is none; a sequence that begins within an episode
    knows its reward, and its state starts anew."""
    lengths = [4, 9, 6, 12, 7, 8, 11]
    replay = numbered(lengths, 40)
    assert replay._written > replay.num_slots
    found = draw_sequences(replay, 200, 5, kind, np.random.default_rng(0))
    episode, t = found.frames[..., 0], found.frames[..., 1].long()
    begins = t == 0
    assert found.first.bool().equal(begins | (torch.arange(5) == 0)[:, None])
    assert found.actions[~begins].equal((t[~begins] - 1) % 3)
    assert found.rewards[~begins].equal(10 * episode[~begins] + t[~begins] - 1)
    ends = (t == torch.tensor(lengths)[episode.long()]) & (episode % 2 == 0)
    assert found.terminated.bool().equal(ends)
    assert found.rewards[begins].abs().sum() == found.terminated[begins].sum() == 0
    same = episode[1:] == episode[:-1]
    assert (t[1:] - t[:-1])[same].eq(1).all()
    assert bool(same.all()) == (kind == "within")
    assert begins[1:][~same].all(), "episodes follow each other whole"


def test_within_draws_episodes_evenly_and_their_ends_more_often() -> None:
    """Observations 4, 6 and 11; sequences of 5. The episode of 6 has two starts, of which the last counts 6 of 7."""
    replay, rng = numbered([3, 5, 10]), np.random.default_rng(0)
    found = draw_sequences(replay, 30_000, 5, "within", rng).frames[0]
    starts = {(e, t): int(((found[:, 0] == e) & (found[:, 1] == t)).sum()) / 30_000 for e in range(3) for t in range(8)}
    wanted = dict.fromkeys(starts, 0.0) | {(1, 0): 0.5 / 7, (1, 1): 0.5 * 6 / 7, (2, 6): 0.5 * 6 / 12}
    wanted |= {(2, t): 0.5 / 12 for t in range(6)}
    assert starts == pytest.approx(wanted, abs=4 * np.sqrt(0.25 / 30_000))


def test_across_draws_observations_evenly() -> None:
    """Of 12 observations the first 8 start a sequence of 5 each with probability 1/12, the last five with 5/12."""
    replay = numbered([3, 7])
    slots, _ = drawn_slots(replay, 30_000, 5, "across", np.random.default_rng(0))
    shares = np.bincount(slots[:, 0], minlength=12) / 30_000
    np.testing.assert_allclose(shares, [1 / 12] * 7 + [5 / 12] + [0] * 4, atol=4 * np.sqrt(0.25 / 30_000))


def test_when_there_is_a_sequence() -> None:
    short = filled_replay([3, 3])
    assert [enough(short, n, "within") for n in (4, 5)] == [True, False]
    assert [enough(short, n, "across") for n in (8, 9)] == [True, False]
    assert not enough(filled_replay([]), 1, "within")


def test_moments_are_those_of_all_observations() -> None:
    rng, moments = np.random.default_rng(0), Moments((3,))
    parts = [rng.normal(5, (1e-6, 1, 100), size=(n, 3)).astype(np.float32) for n in (1, 4, 1, 30)]
    for part in parts:
        moments.see(part)
    every = np.concatenate(parts).astype(np.float64)
    np.testing.assert_allclose(moments.mean, every.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.deviation()[1:], every.std(0)[1:], rtol=1e-10)
    assert moments.deviation()[0] == 1, "a constant is not blown up"
    other = Moments((3,))
    other.load_state_dict(moments.state_dict())
    other.see(parts[0])
    moments.see(parts[0])
    np.testing.assert_array_equal(other.squares, moments.squares)
