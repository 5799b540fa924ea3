"""Planning: value targets (Eq. 5 to 7), target copies and the sweep through a batch, against computations by hand."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from psdrl.agents.psdrl.agent import PATHS, Path
from psdrl.agents.psdrl.learning import make_optimisers
from psdrl.agents.psdrl.models import Models
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.agents.psdrl.synthetic import add_episode
from psdrl.agents.psdrl.world_model import SampledModel
from psdrl.replay.episodes import Batch, Replay
from tests.helpers import (
    Array,
    count_steps,
    filled_replay,
    hand_hidden,
    hand_net,
    hand_returns,
    parameters_of,
    small_agent,
    small_config,
    small_models,
    vector_spec,
)


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> Path:
    """The oracle and the fast path: each is compared with computations by hand, not only with the other."""
    return PATHS[request.param]


def sampled(models: Models, seed: int = 0) -> SampledModel:
    """A random output layer, large enough that some next states count as terminal and some do not."""
    weight = models.forward_model.output.weight
    return SampledModel(
        torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64),
        torch.zeros(len(weight), dtype=torch.float64),
    )


def weight_of(network: torch.nn.Module, layer: int) -> torch.Tensor:
    layers = network.layers
    assert isinstance(layers, torch.nn.ModuleList)
    weight = layers[layer].weight
    assert isinstance(weight, torch.Tensor)
    return weight


def known_models(
    value: float, rewards: tuple[float, float], next_latents: tuple[float, float], **settings: Any
) -> tuple:
    """One latent, two actions: action a gives rewards[a] and next_latents[a], V is `value` everywhere and omega(z) is
    exactly 0 at z = 0 and close to 1 at z = 5."""
    config = small_config(
        forward={"layers": 2, "units": 2, "recurrent": 1},
        termination={"layers": 2, "units": 1},
        value={"layers": 2, "units": 1, "iterations": 1, "discount": 0.9} | settings,
    )
    models = small_models(config, vector_spec(size=1))
    with torch.no_grad():
        for parameter in models.parameters():
            parameter.zero_()
        # phi = onehot(a): the inputs of the feature layer are [h', z, onehot(a)].
        weight_of(models.forward_model, 0).copy_(torch.tensor([[0.0, 0, 1, 0], [0, 0, 0, 1]]))
        weight_of(models.termination, 0).fill_(1.0)
        weight_of(models.termination, 1).fill_(1.0)
        dict(models.value.named_parameters())["0.layers.1.bias"].fill_(value)
    model = SampledModel(torch.tensor([next_latents, rewards], dtype=torch.float64), torch.zeros(2).double())
    return config, models, model


@pytest.mark.parametrize(
    ("value", "rewards", "next_latents", "target"),
    [
        (10.0, (1.0, 2.0), (0.0, 0.0), 2 + 0.9 * 10),
        (10.0, (1.0, 2.0), (0.0, 5.0), 1 + 0.9 * 10),  # action 1 ends the episode: its value is 2, not 11
        (10.0, (1.0, 50.0), (0.0, 5.0), 50.0),  # terminating, and still the better action
        (-10.0, (1.0, 2.0), (0.0, 5.0), 2.0),  # ending is better than a bad future
        (10.0, (1.0, 2.0), (5.0, 5.0), 2.0),
        (10.0, (1.0, 2.0), (np.arctanh(0.5) - 1e-6, 5.0), 1 + 0.9 * 10),  # omega just below 0.5
        (10.0, (1.0, 2.0), (np.arctanh(0.5) + 1e-6, 5.0), 2.0),  # omega just above 0.5
    ],
    ids=["none ends", "one ends", "end pays", "end is a relief", "both end", "below threshold", "above threshold"],
)
def test_value_target(value: float, rewards: tuple, next_latents: tuple, target: float, path: Path) -> None:
    config, models, model = known_models(value, rewards, next_latents)
    replay = filled_replay([1], size=1)
    batch = replay.sample(2, 1, np.random.default_rng(0))
    latents = path.encode_buffer(models, replay)
    losses = path.train_value(models, make_optimisers(models, config), replay, latents, lambda: batch, model, config)
    assert losses["value"].item() == pytest.approx((value - target) ** 2, rel=1e-12)


@pytest.mark.parametrize(("trace", "ended"), [(0.5, False), (1.0, False), (0.5, True)], ids=["half", "all", "end"])
def test_value_target_with_traces(trace: float, ended: bool, path: Path) -> None:
    """V is 10 and planning says 2 + 0.9 * 10 = 11 everywhere. Rewards 4 and 6 were found; the last target of a sequence
    is planning's alone, so an end behind it is not asked for, one within it is."""
    config, models, model = known_models(10.0, (1.0, 2.0), (0.0, 0.0), trace=trace)
    replay = Replay(10, 1, (1,), "float32")
    replay.start(0, np.zeros(1))
    replay.add(0, 0, 4.0, np.zeros(1), False, False)
    replay.add(0, 0, 6.0, np.zeros(1), False, True)
    replay.terminated[0] = float(ended)
    batch = replay.sample(3, 2, np.random.default_rng(0))
    optimisers = make_optimisers(models, config)
    for group in optimisers["value"].param_groups:
        group["lr"] = 0.0  # both losses are of V = 10
    latents = path.encode_buffer(models, replay)
    losses = path.train_value(models, optimisers, replay, latents, lambda: batch, model, config)
    first = (1 - trace) * 11 + trace * (4 + (0 if ended else 0.9 * 11))
    assert losses["value"].item() == pytest.approx(((10 - first) ** 2 + (10 - 11) ** 2) / 2, rel=1e-12)


def loss_in_hindsight(next_latents: tuple, happened: tuple[int, float, float, bool], path: Path) -> float:
    """Of V = 10 everywhere, where rewards 1 and 2 are predicted, at one transition: action, reward, z' and its end."""
    config, models, model = known_models(10.0, (1.0, 2.0), next_latents, hindsight=True)
    action, reward, following, ended = happened
    replay = Replay(10, 1, (1,), "float32")
    replay.start(0, np.zeros(1))
    replay.add(0, action, reward, np.array([following]), ended, not ended)
    batch = replay.sample(2, 1, np.random.default_rng(0))
    latents = path.encode_buffer(models, replay)
    losses = path.train_value(models, make_optimisers(models, config), replay, latents, lambda: batch, model, config)
    return losses["value"].item()


@pytest.mark.parametrize(
    ("taken", "reward", "following", "ended", "target"),
    [
        (0, 4.0, 0.0, False, 5 + 0.9 * 10),  # better than predicted, and so would action 1 have been
        (1, 4.0, 0.0, False, 4 + 0.9 * 10),
        (1, 4.0, -5.0, False, 4 + 0.9 * 10),
        (0, 4.0, 0.0, True, 5.0),  # the network did not see that end: it would have come anyway
        (0, 4.0, 5.0, False, 5 + 0.9 * 10),  # the network saw an end that was none
    ],
    ids=["first taken", "second taken", "elsewhere", "unseen end", "false end"],
)
def test_value_target_in_hindsight(
    taken: int, reward: float, following: float, ended: bool, target: float, path: Path
) -> None:
    """The model predicts rewards 1 and 2 and z' = 0 of both actions; what happened moves both."""
    loss = loss_in_hindsight((0.0, 0.0), (taken, reward, following, ended), path)
    assert loss == pytest.approx((10.0 - target) ** 2, rel=1e-12)


@pytest.mark.parametrize(
    ("following", "target"), [(0.0, 1 + 0.9 * 10), (5.0, 2 + 0.9 * 10)], ids=["as predicted", "further on"]
)
def test_in_hindsight_ends_are_sought_from_where_it_led(following: float, target: float, path: Path) -> None:
    """Action 1 leads 5 further than action 0, which was taken. From 0 that is an end; at 5 there was none, and omega is
    no larger at 10."""
    loss = loss_in_hindsight((0.0, 5.0), (0, 1.0, following, False), path)
    assert loss == pytest.approx((10.0 - target) ** 2, rel=1e-12, abs=1e-12)


def planning_setup(**value: float | str) -> tuple[PsdrlConfig, Models, Replay, list[Batch], SampledModel]:
    """Two batches of 4 sequences of L = 6 steps."""
    config = small_config(value={"iterations": 2, **value}, replay={"batch": 4, "length": 6})
    replay = filled_replay([6, 11, 8], seed=1)
    rng = np.random.default_rng(2)
    models = small_models(config, vector_spec(), seed=3)
    with torch.no_grad():  # spread the termination estimates around the threshold
        weight_of(models.termination, -1).mul_(8)
    return config, models, replay, [replay.sample(4, 6, rng) for _ in range(2)], sampled(models)


def hand_start(models: Models, replay: Replay, batch: Batch) -> Array:
    """The hidden states (B, H) that the episodes lead to before the sequences of a batch start."""
    starts = []
    for slot in batch.slots[:, 0].tolist():
        before = next(range(start, slot) for start, length in replay.episodes if start <= slot <= start + length)
        h = np.zeros((1, models.forward_model.hidden_size))
        for now in before:
            z = replay.frames(torch.tensor([now])).double().numpy()
            h = hand_hidden(models.forward_model, z, replay.actions[[now]].numpy(), h)
        starts.append(h)
    return np.concatenate(starts)


def hand_plan(
    config: PsdrlConfig, models: Models, replay: Replay, batches: list[Batch], model: SampledModel, variant: str = ""
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Value parameters and losses after gradient descent at rate 0.05; targets in NumPy. Variants break the rule."""
    work = small_models(config, vector_spec())
    work.load_state_dict(models.state_dict())
    value, target = work.value, work.target
    losses, count = [], 0
    for batch in batches:
        z = replay.frames(batch.slots).double()
        steps, discount = range(batch.actions.shape[1]), config.value.discount
        weight, bias = model.weight.numpy(), model.bias.numpy()
        along: list[Array] = [np.zeros((len(z), config.forward.hidden))]
        if config.value.sweep != "paper" and variant != "sequences start with zero":
            along = [hand_start(models, replay, batch)]
        for t in steps:
            returns, following = hand_returns(work, weight, bias, z[:, t].numpy(), along[t], discount, target)
            greedy = variant == "hidden follows the greedy action"
            along.append(following[np.arange(len(z)), returns.argmax(1) if greedy else batch.actions[:, t].numpy()])
        backward = config.value.sweep == "backward" and variant != "always with time"
        for done, t in enumerate(reversed(steps) if backward else steps):
            copy_now = count % 4 == 0 if variant == "copies do not restart" else done % config.value.target_every == 0
            if copy_now:
                target.load_state_dict(value.state_dict())
            h = along[t]
            returns, _ = hand_returns(work, weight, bias, z[:, t].numpy(), h, discount, target)
            share = 0.0 if variant == "random actions are forgotten" else config.value.random_share
            goal = torch.from_numpy((1 - share) * returns.max(1) + share * returns.mean(1))
            loss = torch.zeros(())
            for network in value.networks():
                x = torch.cat([z[:, t], torch.from_numpy(h)], 1)
                *hidden, last = network.linear_layers()
                for layer in hidden:
                    x = torch.tanh(x @ layer.weight.T + layer.bias)
                v = (x @ last.weight.T + last.bias)[:, 0]
                loss = loss + ((v - goal) ** 2).sum() / len(z)
            gradients = torch.autograd.grad(loss, list(value.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(value.parameters(), gradients, strict=True):
                    parameter.sub_(gradient, alpha=0.05)
            losses.append(loss.item() / len(value))
            count += 1
    return {name: p.detach() for name, p in value.named_parameters()}, losses


def run_plan(
    path: Path, config: PsdrlConfig, models: Models, replay: Replay, batches: list[Batch], model: SampledModel
) -> torch.Tensor:
    optimisers: dict[str, torch.optim.Optimizer] = {"value": torch.optim.SGD(models.value.parameters(), 0.05)}
    queue: Iterator[Batch] = iter(batches)
    latents = path.encode_buffer(models, replay)
    return path.train_value(models, optimisers, replay, latents, lambda: next(queue), model, config)["value"]


@pytest.mark.parametrize(
    "value",
    [
        {"target_every": 1},
        {"target_every": 4},
        {"target_every": 6},
        {"networks": 3},
        {"random_share": 0.3},
        {"sweep": "episode", "target_every": 4},
        {"sweep": "backward", "target_every": 4},
    ],
    ids=[
        *("copy every 1", "copy every 4", "copy every 6", "three networks", "random actions"),
        *("within episodes", "against time"),
    ],
)
def test_whole_sweep(value: dict, path: Path) -> None:
    """Targets, copies at t = 0, 4, 8, ... of each batch, hidden states along the data's actions: parameters agree."""
    config, models, replay, batches, model = planning_setup(**value)
    expected, losses = hand_plan(config, models, replay, batches, model)
    loss = run_plan(path, config, models, replay, batches, model)
    assert loss.item() == pytest.approx(np.mean(losses), rel=1e-9)
    for name, parameter in models.value.named_parameters():
        torch.testing.assert_close(parameter.data, expected[name], rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize(
    "variant",
    [
        *("copies do not restart", "hidden follows the greedy action", "random actions are forgotten"),
        *("always with time", "sequences start with zero"),
    ],
)
def test_sweep_would_notice(variant: str, path: Path) -> None:
    """The comparison above distinguishes these mistakes."""
    config, models, replay, batches, model = planning_setup(target_every=4, random_share=0.3, sweep="backward")
    wrong, _ = hand_plan(config, models, replay, batches, model, variant)
    run_plan(path, config, models, replay, batches, model)
    assert max((wrong[name] - p).abs().max().item() for name, p in models.value.named_parameters()) > 1e-4


def test_both_kinds_of_action_occur_in_the_sweep() -> None:
    _, models, replay, batches, model = planning_setup()
    z = replay.frames(batches[0].slots[:, 0]).double().numpy()
    free, _ = hand_returns(models, model.weight.numpy(), model.bias.numpy(), z, np.zeros((4, 8)), 0.0, models.target)
    full, _ = hand_returns(models, model.weight.numpy(), model.bias.numpy(), z, np.zeros((4, 8)), 0.9, models.target)
    ends = np.isclose(free, full)
    assert ends.any(), "no action terminates"
    assert not ends.all(), "every action terminates"


def test_target_network_is_the_copy_of_step_4(path: Path) -> None:
    """After one batch of 6 steps the target holds the value network as it was after 4 of them."""
    config, models, replay, batches, model = planning_setup(target_every=4, iterations=1)
    optimisers = make_optimisers(models, config)
    history = [parameters_of(models.value)]
    history[0] = {name: p.copy() for name, p in history[0].items()}
    optimisers["value"].register_step_post_hook(
        lambda *_: history.append({name: p.copy() for name, p in parameters_of(models.value).items()})
    )
    latents = path.encode_buffer(models, replay)
    path.train_value(models, optimisers, replay, latents, lambda: batches[0], model, config)
    assert len(history) == 7
    for name, found in parameters_of(models.target).items():
        np.testing.assert_array_equal(found, history[4][name], err_msg=name)
        assert not np.array_equal(found, history[5][name]), name


def test_target_network_goes_part_of_the_way(path: Path) -> None:
    """With rate 0.25 the target moves by a quarter of the way at steps 0 and 4 of a batch."""
    config, models, replay, batches, model = planning_setup(target_every=4, iterations=1, target_rate=0.25)
    optimisers = make_optimisers(models, config)
    start = {name: p.copy() for name, p in parameters_of(models.target).items()}
    history = [{name: p.copy() for name, p in parameters_of(models.value).items()}]
    optimisers["value"].register_step_post_hook(
        lambda *_: history.append({name: p.copy() for name, p in parameters_of(models.value).items()})
    )
    latents = path.encode_buffer(models, replay)
    path.train_value(models, optimisers, replay, latents, lambda: batches[0], model, config)
    for name, found in parameters_of(models.target).items():
        expected = 0.75 * (0.75 * start[name] + 0.25 * history[0][name]) + 0.25 * history[4][name]
        np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize(
    ("algo", "factor"), [("psdrl", 1), ("egreedy-exploit", 1), ("egreedy-explore", 1), ("fresh-value", 4)]
)
def test_number_of_gradient_steps(algo: str, factor: int, path: Path) -> None:
    """kappa L per update, four times as many for fresh-value, with a fresh batch per iteration."""
    config = small_config(algo=algo, value={"iterations": 3}, replay={"batch": 2, "length": 5})
    replay = filled_replay([9])
    models = small_models(config, vector_spec())
    optimisers = make_optimisers(models, config)
    steps, rng, batches = count_steps(optimisers["value"]), np.random.default_rng(0), []

    def sample() -> Batch:
        batches.append(replay.sample(2, 5, rng))
        return batches[-1]

    latents = path.encode_buffer(models, replay)
    path.train_value(models, optimisers, replay, latents, sample, sampled(models), config)
    assert len(batches) == 3 * factor
    assert len(steps) == 3 * factor * 5


def test_planning_changes_only_the_value_network(path: Path) -> None:
    config, models, replay, batches, model = planning_setup()
    before = {name: p.clone() for name, p in models.state_dict().items()}
    run_plan(path, config, models, replay, batches, model)
    changed = {name.split(".")[0] for name, p in models.state_dict().items() if not torch.equal(p, before[name])}
    assert changed == {"value", "target"}


@pytest.mark.parametrize("update_path", PATHS)
@pytest.mark.parametrize("algo", ["psdrl", "fresh-value"])
def test_fresh_value_forgets_the_old_network(algo: str, update_path: str) -> None:
    """With no planning iterations an update leaves the value network alone, and fresh-value replaces it."""
    agent = small_agent(algo=algo, update_path=update_path, value={"iterations": 1})
    add_episode(agent.replay, np.random.default_rng(0), 12)
    agent.update()
    assert agent.optimisers["value"].state_dict()["state"]
    idle = small_agent(algo=algo, update_path=update_path, value={"iterations": 0})
    idle.load_state_dict(agent.state_dict())
    idle.replay.load_state_dict(agent.replay.state_dict())
    seen = []
    for _ in range(2):
        idle.update()
        seen.append({name: p.copy() for name, p in parameters_of(idle.models.value).items()})
    old = parameters_of(agent.models.value)
    fresh = algo == "fresh-value"
    for name in old:
        assert np.array_equal(old[name], seen[0][name]) != fresh, name
        assert np.array_equal(seen[0][name], seen[1][name]) != fresh, name
    moments = [entry["exp_avg_sq"].abs().sum() for entry in idle.optimisers["value"].state.values()]
    assert bool(sum(moments) > 0) != fresh, "Adam's moments belong to the old network"


def test_hand_net_is_not_constant() -> None:
    """The targets of the sweep depend on state and hidden state, or the comparison would be empty."""
    _, models, _, _, _ = planning_setup()
    x = np.random.default_rng(0).normal(size=(5, 3 + 8))
    assert np.std(hand_net(models.value, x)) > 1e-2
