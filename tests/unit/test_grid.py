"""Networks that treat every cell of a grid alike, against sums and regressions by brute force."""

from itertools import product

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from psdrl import configure, make_env
from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.agents.psdrl.grid import Grid
from psdrl.agents.psdrl.grid_model import GridFeatures, GridFolded, GridModel, GridStatistics, GridTermination
from psdrl.agents.psdrl.lookahead import predict
from psdrl.agents.psdrl.posterior import RELEASED_RIDGE
from psdrl.agents.psdrl.settings import TerminationConfig
from psdrl.agents.psdrl.synthetic import debug_agent
from psdrl.agents.psdrl.work import PsdrlWorkload
from psdrl.envs.vector import EnvSpec
from psdrl.errors import UserError
from tests.helpers import GRID_INPUTS, INPUTS, Allocations, filled_replay, largest_tensor

GRIDS = {"channels-last": Grid(4, 5, 3, True), "planes": Grid(4, 5, 3, False), "one-cell": Grid(1, 1, 2, True)}


def image(grid, latents):
    """The grid as convolutions want it (n, C, h, w)."""
    n = len(latents)
    if grid.channels_last:
        return latents.view(n, grid.height, grid.width, grid.channels).permute(0, 3, 1, 2)
    return latents.view(n, grid.channels, grid.height, grid.width)


def convolved(grid, latents, weight):
    """What the layer makes of every cell (n, P, U): each neighbourhood, cell by cell, times its weights."""
    picture = image(grid, latents).permute(0, 2, 3, 1)
    seen = latents.new_zeros(len(latents), grid.count, 3, 3, grid.channels)
    for cell, (i, j) in enumerate(product(range(grid.height), range(grid.width))):
        for di, dj in product((-1, 0, 1), repeat=2):
            if 0 <= i + di < grid.height and 0 <= j + dj < grid.width:
                seen[:, cell, di + 1, dj + 1] = picture[:, i + di, j + dj]
    return seen.flatten(2) @ weight.T


def parameters(module):
    torch.manual_seed(1)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn_like(p) / p.shape[-1] ** 0.5)
    return module.double()


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS.keys())
def test_a_cell_sees_its_neighbourhood(grid):
    z = torch.randn(3, grid.count * grid.channels, dtype=torch.float64)
    weight = torch.randn(7, grid.seen, dtype=torch.float64)
    torch.testing.assert_close(grid.look(z, weight), convolved(grid, z, weight))
    torch.testing.assert_close(grid.flat(grid.own(z)), z)
    torch.testing.assert_close(grid.own(z), image(grid, z).flatten(2).transpose(1, 2))
    joint = torch.cat([z, z], 1)[:, : z.shape[1]]  # a part of wider rows, as planning has them
    torch.testing.assert_close(grid.look(joint, weight), grid.look(z, weight))


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS.keys())
@pytest.mark.parametrize("features", ["tanh", "tanh+inputs"])
def test_forward_model_is_a_convolution_with_a_maximum(grid, features):
    config = configure(env="synthetic", preset="debug", forward={"features": features, "layers": 3}).forward
    model = parameters(GridModel(grid, 2, config))
    z, h = torch.randn(5, model.latent_size).double(), torch.randn(5, config.hidden).double()
    actions = torch.tensor([0, 1, 1, 0, 1])
    prediction, following = model(z, actions, h)
    torch.testing.assert_close(following, model.next_hidden(z, actions, h))
    onehot = F.one_hot(actions, 2).double()
    first, second = model.linear_layers()
    of_hidden, of_seen, of_action = model.parts(first.weight)
    state = following @ of_hidden.T + onehot @ of_action.T + first.bias
    gates = model.gates[actions]  # a factor per unit for what it sees
    x = torch.tanh(convolved(grid, z, of_seen) * gates[:, None] + state[:, None] + model.cell_bias)
    x = torch.tanh(x @ second.weight.T + second.bias)
    if features == "tanh+inputs":
        own = image(grid, z).flatten(2).transpose(1, 2)
        x = torch.stack([torch.cat([x[:, p], own[:, p], following, onehot], 1) for p in range(grid.count)], 1)
    weight, bias = model.output.weight, model.output.bias
    planes = (x @ weight[:-1].T + bias[:-1]).transpose(1, 2).reshape(5, grid.channels, grid.height, grid.width)
    torch.testing.assert_close(image(grid, prediction[:, :-1]), planes)
    most = x.max(1).values
    if features == "tanh+inputs":
        most[:, config.units : config.units + grid.channels] = 0  # the reward sees units and [h', a] only
    torch.testing.assert_close(prediction[:, -1], most @ weight[-1] + bias[-1])


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS.keys())
def test_tanh_net_is_a_convolution_with_a_maximum(grid):
    net = parameters(GridTermination(grid, TerminationConfig(layers=4, units=6)))
    z = torch.randn(3, grid.count * grid.channels, dtype=torch.float64)
    first, second, third, last = net.linear_layers()
    x = torch.tanh(convolved(grid, z, first.weight) + first.bias + net.cell_bias)
    for layer in (second, third):
        x = torch.tanh(x @ layer.weight.T + layer.bias)
    wanted = (x.max(1).values @ last.weight.T + last.bias).squeeze(1)
    torch.testing.assert_close(net(z), wanted)
    torch.testing.assert_close(net.fast(z).detach(), wanted)


@pytest.mark.parametrize("rule", ["exact", "released"])
def test_posterior_is_two_regressions(rule):
    """Cells: 3 channels of all cells as rows; reward: the maxima. By brute force, one row at a time."""
    settings = {"rule": rule, "prior": (2.0, 5.0), "noise": (0.1, 0.3)}
    agent = debug_agent("fast", torch.float64, kind="grid", **GRID_INPUTS, posterior=settings)
    agent.update()
    model, replay = agent.models.forward_model, agent.replay
    assert isinstance(model, GridModel)
    grid = model.grid
    own, most, following, rewards = [], [], [], []
    with torch.no_grad():
        for episode in replay.episodes:
            h = torch.zeros(1, model.gru.hidden_size, dtype=torch.float64)
            for t in range(episode.length):
                slot, after = (episode.start + t) % replay.num_slots, (episode.start + t + 1) % replay.num_slots
                z, action = replay.observations[slot][None].double(), replay.actions[slot][None]
                h = model.next_hidden(z, action, h)
                phi = model.features(h, z, action)
                assert isinstance(phi, GridFeatures)
                everywhere = phi.everywhere.expand(grid.count, -1)
                own.append(torch.cat([phi.units[0], phi.own[0], everywhere], 1))
                most.append(torch.cat([phi.units.amax(1), torch.zeros_like(phi.own[:, 0]), phi.everywhere], 1))
                following.append(grid.own(replay.observations[after][None].double())[0])
                rewards.append(replay.rewards[slot].double().view(1, 1))
    for outputs, phi, targets, prior, noise in (
        (slice(0, -1), torch.cat(own), torch.cat(following), 2.0, 0.1),
        (slice(-1, None), torch.cat(most), torch.cat(rewards), 5.0, 0.3),
    ):
        ridge = noise / prior if rule == "exact" else RELEASED_RIDGE
        wanted = torch.linalg.solve(phi.T @ phi + ridge * torch.eye(phi.shape[1]), phi.T @ targets).T
        torch.testing.assert_close(agent.posterior.mean[outputs], wanted, rtol=1e-6, atol=1e-8)
    draws = agent.posterior.draws(20_000, agent.generator)
    for g, row in ((0, 1), (1, -1)):
        factor = agent.posterior.factors[g]
        wanted = torch.linalg.inv(factor @ factor.T) if rule == "exact" else factor @ factor
        found = torch.cov(draws[:, row].T)
        assert float((found - wanted).norm() / wanted.norm()) < 0.1


def test_a_rule_seen_in_one_corner_is_known_everywhere():
    """A dot moves right; seen in the upper rows only, predicted in the lowest."""
    agent = PsdrlAgent(
        configure(
            env="synthetic", preset="debug", grid=True, device="cpu",
            forward={**INPUTS, "units": 24, "gain": 2.0}, posterior={"noise": (1e-4,)},
        ),
        EnvSpec("synthetic", "vector", (36,), "float32", 2, "none", (6, 6, 1)),
    )  # fmt: skip
    rng = np.random.default_rng(0)

    def picture(row, column):
        grid = np.zeros((6, 6), np.float32)
        grid[row, column] = 1
        return grid.ravel()

    for _ in range(30):
        row, column = rng.integers(0, 3), rng.integers(0, 3)
        agent.replay.start(0, picture(row, column))
        for t in range(3):
            agent.replay.add(0, int(rng.integers(2)), 0.0, picture(row, column + t + 1), t == 2, False)
    agent.update()
    model = agent.models.forward_model
    z = torch.from_numpy(picture(4, 2))[None]
    h = torch.zeros(1, model.gru.hidden_size)
    with torch.no_grad():
        ahead = predict(model.fold(agent.draw(mean=True)), agent.models.termination, z, h)
    shown = ahead.latents_hidden[0, 0, :36].view(6, 6)
    assert int(shown.argmax()) == 4 * 6 + 3, shown
    assert float(shown[4, 3]) > 0.7
    assert float(shown[4, 2].abs()) < 0.3


def test_minatar_is_a_grid_and_others_are_refused():
    config = configure(env="minatar/asterix", forward={"units": 4})
    env = make_env(config)
    assert env.spec.grid == (10, 10, 3 * 4)
    agent = PsdrlAgent(config, env.spec)
    assert isinstance(agent.models.forward_model, GridModel)
    assert agent.posterior.mean.shape[0] == 3 * 4 + 1
    env.close()
    config = configure(env="CartPole-v1", grid=True)
    env = make_env(config)
    with pytest.raises(UserError, match="no grid of cells"):
        PsdrlAgent(config, env.spec)
    env.close()
    with pytest.raises(UserError, match="features tanh or"):
        debug_agent("fast", torch.float32, kind="grid", grid=True, forward={"features": "linear"})


def test_one_scale_for_all_cells():
    """Each channel is standardised over all states and cells; a reward weighs as much as all cells together."""
    forward = {"features": "tanh", "reward_weight": 0}
    agent = debug_agent("fast", torch.float64, kind="grid", grid=True, forward=forward, standardise=True)
    encoder, model = agent.models.autoencoder, agent.models.forward_model
    assert isinstance(model, GridModel)
    grid, replay = model.grid, filled_replay([16])
    z = torch.randn(50, grid.count, grid.channels).double() * torch.tensor([3.0, 1.0]) + torch.tensor([5.0, -2.0])
    encoder.renew_scale(lambda: z.flatten(1), model)
    scaled = encoder.scaled(z.flatten(1)).view_as(z).flatten(0, 1)
    torch.testing.assert_close(scaled.mean(0), torch.zeros(2).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(scaled.std(0, correction=0), torch.ones(2).double())
    assert len(encoder.latent_scale.unique()) == 2
    replay.rewards[replay.transition_slots()] = torch.tensor([0.0, 1.0]).repeat(8)
    model.renew(replay)
    assert float(model.reward_weight) == pytest.approx(grid.count / 0.25)
    z[..., 1] = -2.0
    encoder.renew_scale(lambda: z.flatten(1), model)
    scales = encoder.latent_scale.view_as(z[0])
    torch.testing.assert_close(scales[:, 1], scales[:, 0])  # never seen to change: that of the largest, 1 / 3 or so
    encoder.renew_scale(lambda: z.flatten(1) / 10, model)
    assert set(encoder.latent_scale.view_as(z[0])[:, 1].tolist()) == {1.0}  # or its own


def test_what_never_appeared_is_no_treasure():
    """A plane that was empty in all that is stored lights up: rewards of draws must not jump. MinAtar Freeway has such
    planes, one per speed of its cars, and an agent that took a new speed for riches or ruin learned nothing."""
    agent = PsdrlAgent(
        configure(
            env="synthetic", preset="debug", grid=True, forward={**INPUTS, "units": 16}, device="cpu",
            standardise=True, posterior={"prior": (1e3, 0.1), "noise": (1.0, 1e-4)},
        ),
        EnvSpec("synthetic", "vector", (50,), "float32", 2, "none", (5, 5, 2)),
    )  # fmt: skip
    rng = np.random.default_rng(0)

    def picture():
        grid = np.zeros((25, 2), np.float32)
        grid[rng.integers(25), 0] = 1
        return grid.ravel()

    for _ in range(30):
        agent.replay.start(0, picture())
        for t in range(5):
            agent.replay.add(0, int(rng.integers(2)), 0.0, picture(), t == 4, False)
    agent.update()
    model, z = agent.models.forward_model, torch.from_numpy(np.stack([picture() for _ in range(20)]))
    z[:, 1::2] = (torch.arange(25) == 7).float()
    latents, actions = agent.models.autoencoder.encode(z), torch.zeros(20, dtype=torch.long)
    hidden = torch.zeros(20, model.gru.hidden_size)
    with torch.no_grad():
        features = model.features(model.next_hidden(latents, actions, hidden), latents, actions)
        rewards = [
            model.predicted(features, sample, torch.zeros(3))[:, -1]
            for sample in agent.posterior.draws(50, agent.generator).float()
        ]
    assert float(torch.stack(rewards).std(0).mean()) < 0.05


@pytest.mark.parametrize("features", ["tanh", "tanh+inputs"])
def test_cost_model_counts_cells(features):
    agent = debug_agent("fast", torch.float32, kind="grid", grid=True, forward={"features": features})
    work, models = PsdrlWorkload(agent.config, agent.spec), agent.models
    model = models.forward_model.fold(agent.model)
    assert isinstance(model, GridFolded)
    cells, inner = model.grid.count, sum(weight.numel() for weight, _ in model.hidden)
    per_state = model.gru.numel() + model.recurrent.numel() + cells * (model.seen.numel() + model.own.numel())
    per_action = model.first.numel() + model.direct.numel() + cells * (inner + model.output[:-1].numel())
    per_action += model.output[-1:].numel()
    assert work.ahead == per_state + agent.spec.num_actions * per_action
    first, *hidden, last = (layer.weight.numel() for layer in models.termination.layers)
    assert work.termination == cells * (first + sum(hidden)) + last
    read = per_state + per_action - (cells - 1) * (model.seen.numel() + model.own.numel() + inner)
    read += first + sum(hidden) + last - (cells - 1) * model.output[:-1].numel()
    read += sum(layer.weight.numel() for layer in models.value[0].layers)
    assert work.act(1).parts[0].weights == read, "every weight once, however many cells"
    agent.update()
    with Allocations() as allocations:
        agent.update()
    assert allocations.largest <= largest_tensor(agent.config, agent.spec)


def test_statistics_have_a_row_per_cell_and_one_per_reward():
    data = GridStatistics(GRIDS["planes"], 4, 1, torch.device("cpu"))
    phi, targets = GridFeatures(torch.randn(3, 20, 2), torch.randn(3, 20, 1), torch.randn(3, 1)), torch.randn(3, 61)
    data.add(phi, targets)
    assert (data.rows, data.near.rows) == (3, 60)
