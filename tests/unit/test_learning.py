"""World-model learning: Eq. 1 to 3 and truncated backpropagation through time, against computations by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from psdrl.agents.psdrl.agent import PATHS, Path
from psdrl.agents.psdrl.autoencoder import Autoencoder
from psdrl.agents.psdrl.flat_model import FlatModel
from psdrl.agents.psdrl.learning import make_optimisers
from psdrl.agents.psdrl.models import Models
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.agents.psdrl.synthetic import add_episode
from psdrl.envs.vector import EnvSpec
from psdrl.replay.episodes import Batch, Replay
from tests.helpers import (
    Array,
    count_steps,
    filled_replay,
    hand_features,
    hand_hidden,
    hand_net,
    parameters_of,
    small_config,
    small_models,
    vector_spec,
)

REDUCTIONS = ["sum", "mean"]


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> Path:
    """The oracle and the fast path: each is compared with computations by hand, not only with the other."""
    return PATHS[request.param]


def convolution(x: Array, weight: Array, bias: Array, stride: int) -> Array:
    """(c, h, h) -> (o, h', h'), one output pixel at a time."""
    kernel = weight.shape[2]
    size = (x.shape[1] - kernel) // stride + 1
    out = np.zeros((len(weight), size, size))
    for o in range(len(weight)):
        for i in range(size):
            for j in range(size):
                patch = x[:, i * stride : i * stride + kernel, j * stride : j * stride + kernel]
                out[o, i, j] = (patch * weight[o]).sum() + bias[o]
    return out


def transposed_convolution(x: Array, weight: Array, bias: Array, stride: int, padding: int) -> Array:
    """(c, h, h) -> (o, h', h'): every input pixel adds its kernel to the output; `padding` more rows at the end."""
    kernel = weight.shape[2]
    size = (x.shape[1] - 1) * stride + kernel + padding
    out = np.zeros((weight.shape[1], size, size)) + bias[:, None, None]
    for c in range(len(x)):
        for i in range(x.shape[1]):
            for j in range(x.shape[2]):
                out[:, i * stride : i * stride + kernel, j * stride : j * stride + kernel] += x[c, i, j] * weight[c]
    return out


@pytest.mark.parametrize("loss_of", [Autoencoder.loss, Autoencoder.plain_loss], ids=["fast", "plain"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_equation_1_autoencoder(reduction: str, loss_of: Any) -> None:
    config = small_config(autoencoder={"channels": (2, 3), "latent": 0})
    torch.manual_seed(0)
    autoencoder = Autoencoder((1, 12, 12), config.autoencoder, reduction=reduction).double()
    observations = np.random.default_rng(1).integers(0, 256, (5, 1, 12, 12)).astype(np.uint8)
    e, d = parameters_of(autoencoder.encoder), parameters_of(autoencoder.decoder)
    total = 0.0
    for observation in observations:
        image = observation / 255
        x = np.maximum(convolution(image, e["0.weight"], e["0.bias"], 2), 0)
        z = np.maximum(convolution(x, e["2.weight"], e["2.bias"], 2), 0)
        assert z.shape == (3, 1, 1)
        y = np.maximum(transposed_convolution(z, d["1.weight"], d["1.bias"], 2, 0), 0)
        y = transposed_convolution(y, d["3.weight"], d["3.bias"], 2, 1)
        assert (d["1.weight"].shape[2], d["3.weight"].shape[2]) == (4, 5)
        squares = (y - image) ** 2
        total += squares.sum() if reduction == "sum" else squares.mean()
    loss = loss_of(autoencoder, torch.from_numpy(observations))
    assert loss.item() == pytest.approx(total / 5, rel=1e-12)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("reward_weight", [1.0, 7.5])
def test_equation_2_error_of_one_step(reduction: str, reward_weight: float) -> None:
    rng = np.random.default_rng(2)
    prediction, target = rng.normal(size=(4, 3)), rng.normal(size=(4, 3))
    total = 0.0
    for i in range(4):
        latent = (prediction[i, 0] - target[i, 0]) ** 2 + (prediction[i, 1] - target[i, 1]) ** 2
        step = latent + reward_weight * (prediction[i, 2] - target[i, 2]) ** 2
        total += step if reduction == "sum" else step / 3
    model = FlatModel(2, 2, small_config(forward={"reward_weight": reward_weight}).forward, reduction)
    loss = model.loss(torch.from_numpy(prediction), torch.from_numpy(target))
    assert loss.item() == pytest.approx(total / 4, rel=1e-12)


def learning_setup(**settings: object) -> tuple[PsdrlConfig, Models, Replay, Batch]:
    """A buffer, a batch of 3 sequences of L = 5 from it, and small float64 networks."""
    replay = filled_replay([7, 5, 9], seed=3)
    config = small_config(replay={"batch": 3, "length": 5}, **settings)
    batch = replay.sample(3, 5, np.random.default_rng(4))
    return config, small_models(config, vector_spec()), replay, batch


@pytest.mark.parametrize("weight", [1.0, 6.0], ids=lambda w: f"ends weigh {w:.0f}")
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_equations_2_and_3_of_a_whole_batch(reduction: str, weight: float, path: Path) -> None:
    config, models, replay, batch = learning_setup(
        released=("mean-loss",) if reduction == "mean" else (),
        forward={"window": 5, "iterations": 1, "reward_weight": 3.0},
        termination={"weight": weight},
    )
    assert 0 < batch.terminated.sum() < batch.terminated.numel()
    forward_total = termination_total = 0.0
    z = replay.frames(batch.slots).double().numpy()
    output = parameters_of(models.forward_model.output)
    h = np.zeros((3, config.forward.hidden))
    for t in range(5):
        action = batch.actions[:, t].numpy()
        h = hand_hidden(models.forward_model, z[:, t], action, h)
        phi = hand_features(models.forward_model, h, z[:, t], action)
        prediction = phi @ output["weight"].T + output["bias"]
        latent = ((prediction[:, :-1] - z[:, t + 1]) ** 2).sum(1)
        reward = (prediction[:, -1] - batch.rewards[:, t].double().numpy()) ** 2
        forward_total += (latent + 3.0 * reward).sum() / (1 if reduction == "sum" else 4)
        omega = hand_net(models.termination, z[:, t + 1])
        delta = batch.terminated[:, t].double().numpy()
        termination_total += (np.where(delta > 0, weight, 1.0) * (omega - delta) ** 2).sum()
    losses = path.train_forward(
        models, make_optimisers(models, config), path.encode_buffer(models, replay), lambda: batch, config
    )
    assert losses["forward"].item() == pytest.approx(forward_total / 15, rel=1e-9)
    assert losses["termination"].item() == pytest.approx(termination_total / 15, rel=1e-9)


def hand_trained(models: Models, replay: Replay, batch: Batch, window: int, lr: float, cut: bool) -> dict:
    """Parameters of the forward model after gradient descent on Eq. 2, window by window; h carried, cut or not."""
    p = {name: q.detach().clone().requires_grad_() for name, q in models.forward_model.named_parameters()}
    names = list(p)
    z = replay.frames(batch.slots).double()
    length, recurrent = batch.actions.shape[1], models.forward_model.gru.hidden_size
    carried = torch.zeros(len(z), recurrent, dtype=torch.float64)

    def step(z: torch.Tensor, action: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = torch.eye(2, dtype=torch.float64)[action]
        i = (torch.cat([z, a], 1) @ p["gru.weight_ih"].T + p["gru.bias_ih"]).chunk(3, 1)
        j = (h @ p["gru.weight_hh"].T + p["gru.bias_hh"]).chunk(3, 1)
        reset, update = torch.sigmoid(i[0] + j[0]), torch.sigmoid(i[1] + j[1])
        h = (1 - update) * torch.tanh(i[2] + reset * j[2]) + update * h
        x = torch.tanh(torch.cat([h, z, a], 1) @ p["layers.0.weight"].T + p["layers.0.bias"])
        x = x @ p["layers.1.weight"].T + p["layers.1.bias"]
        return x @ p["output.weight"].T + p["output.bias"], h

    for start in range(0, length, window):
        h = carried
        if not cut:  # backpropagate to the beginning, with the parameters of now
            h = torch.zeros_like(carried)
            for t in range(start):
                _, h = step(z[:, t], batch.actions[:, t], h)
        total, steps = torch.zeros((), dtype=torch.float64), 0
        for t in range(start, min(start + window, length)):
            prediction, h = step(z[:, t], batch.actions[:, t], h)
            target = torch.cat([z[:, t + 1], batch.rewards[:, t, None].double()], 1)
            total, steps = total + ((prediction - target) ** 2).sum(), steps + 1
        gradients = torch.autograd.grad(total / (len(z) * steps), list(p.values()))
        carried = h.detach()
        for name, gradient in zip(names, gradients, strict=True):
            p[name] = (p[name] - lr * gradient).detach().requires_grad_()
    return p


@pytest.mark.parametrize("window", [1, 2, 4, 5], ids=lambda w: f"window {w} of 5")
def test_truncated_windows(window: int, path: Path) -> None:
    """Every window's gradient step, the last (shorter) one included; the hidden state is carried over detached."""
    config, models, replay, batch = learning_setup(forward={"window": window, "iterations": 1})
    expected = hand_trained(models, replay, batch, window, 0.05, cut=True)
    whole = hand_trained(models, replay, batch, window, 0.05, cut=False)
    optimisers: dict[str, torch.optim.Optimizer] = {
        "forward": torch.optim.SGD(models.forward_model.parameters(), 0.05),
        "termination": torch.optim.SGD(models.termination.parameters(), 0.05),
    }
    path.train_forward(models, optimisers, path.encode_buffer(models, replay), lambda: batch, config)
    for name, parameter in models.forward_model.named_parameters():
        torch.testing.assert_close(parameter.data, expected[name].data, rtol=1e-10, atol=1e-12, msg=name)
    moved = max((expected[name] - whole[name]).abs().max().item() for name in expected)
    assert (moved > 1e-5) == (window < 5), "cutting the gradient must matter, or this test proves nothing"


def test_termination_model_steps(path: Path) -> None:
    """Two windows of gradient descent on Eq. 3, by finite differences of the loss written out."""
    config, models, replay, batch = learning_setup(forward={"window": 3, "iterations": 1})
    z = replay.frames(batch.slots).double().numpy()
    delta = batch.terminated.double().numpy()
    expected = small_models(config, vector_spec()).termination
    for steps in (range(3), range(3, 5)):

        def loss(steps: range = steps) -> float:
            errors = [hand_net(expected, z[:, t + 1]) - delta[:, t] for t in steps]
            return float(np.mean(np.square(errors)))

        gradients = []
        for parameter in expected.parameters():
            gradient = torch.zeros_like(parameter)
            flat = parameter.data.view(-1)
            for i in range(len(flat)):
                old = flat[i].item()
                flat[i] = old + 1e-5
                up = loss()
                flat[i] = old - 1e-5
                gradient.view(-1)[i] = (up - loss()) / 2e-5
                flat[i] = old
            gradients.append(gradient)
        for parameter, gradient in zip(expected.parameters(), gradients, strict=True):
            parameter.data -= 0.1 * gradient
    optimisers: dict[str, torch.optim.Optimizer] = {
        "forward": torch.optim.SGD(models.forward_model.parameters(), 0.1),
        "termination": torch.optim.SGD(models.termination.parameters(), 0.1),
    }
    path.train_forward(models, optimisers, path.encode_buffer(models, replay), lambda: batch, config)
    for (name, found), wanted in zip(models.termination.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found.data, wanted.data, rtol=1e-6, atol=1e-8, msg=name)


@pytest.mark.parametrize(("length", "window"), [(9, 4), (8, 4), (3, 4), (250, 4), (6, 1)])
def test_number_of_windows(length: int, window: int, path: Path) -> None:
    """ceil(L/l) gradient steps per iteration for both models, and one fresh batch per iteration."""
    config = small_config(forward={"window": window, "iterations": 3}, replay={"batch": 2, "length": length})
    replay = filled_replay([length + 1])
    models = small_models(config, vector_spec())
    optimisers = make_optimisers(models, config)
    counts = {name: count_steps(optimisers[name]) for name in ("forward", "termination")}
    rng, batches = np.random.default_rng(0), []

    def sample() -> Batch:
        batches.append(replay.sample(2, length, rng))
        return batches[-1]

    path.train_forward(models, optimisers, path.encode_buffer(models, replay), sample, config)
    assert len(batches) == 3
    assert {name: len(steps) for name, steps in counts.items()} == dict.fromkeys(counts, 3 * math.ceil(length / window))


def test_autoencoder_takes_b_steps_with_inner_batch_l(path: Path) -> None:
    """Per iteration a step on the L observations of each of the B sequences, in their order: parameters agree with
    gradient descent on Eq. 1, written out."""
    config = small_config(autoencoder={"iterations": 2}, replay={"batch": 3, "length": 5})
    spec = EnvSpec("test", "image", (1, 64, 64), "uint8", 2, "test")
    models, by_hand = small_models(config, spec), small_models(config, spec).autoencoder
    assert isinstance(by_hand, Autoencoder)
    replay = Replay(100, 1, spec.shape, "uint8")
    add_episode(replay, np.random.default_rng(0), 8)
    optimiser = torch.optim.SGD(models.autoencoder.parameters(), 1e-4)
    steps, rng, batches = count_steps(optimiser), np.random.default_rng(0), []

    def sample() -> Batch:
        batches.append(replay.sample(3, 5, rng))
        return batches[-1]

    losses = path.train_autoencoder(models, {"autoencoder": optimiser}, replay, sample, config)
    assert len(batches) == 2
    assert len(steps) == 2 * 3
    errors, start = [], {name: p.copy() for name, p in parameters_of(by_hand).items()}
    for slots in torch.cat([batch.slots[:, :-1] for batch in batches]):
        images = replay.frames(slots).double() / 255
        assert len(images) == 5
        loss = (by_hand.decoder(by_hand.encoder(images)) - images).square().sum() / 5
        gradients = torch.autograd.grad(loss, list(by_hand.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(by_hand.parameters(), gradients, strict=True):
                parameter.sub_(gradient, alpha=1e-4)
        errors.append(loss.item())
    assert losses["autoencoder"].item() == pytest.approx(np.mean(errors), rel=1e-9)
    wanted = parameters_of(by_hand)
    for name, found in parameters_of(models.autoencoder).items():
        np.testing.assert_allclose(found, wanted[name], rtol=1e-9, atol=1e-11, err_msg=name)
        assert np.abs(found - start[name]).max() > 1e-6, f"{name} does not move"


def test_vector_observations_have_no_autoencoder(path: Path) -> None:
    config, models, replay, batch = learning_setup()
    assert not isinstance(models.autoencoder, Autoencoder)
    optimisers = make_optimisers(models, config)
    assert set(optimisers) == {"forward", "termination", "value"}
    assert path.train_autoencoder(models, optimisers, replay, lambda: batch, config) == {}
    slots = batch.slots[:, 0]
    latents = path.encode_buffer(models, replay)[slots]
    assert torch.equal(latents, replay.frames(slots).double()), "the observation is its own latent state"
