"""Networks: convolutions by products against ATen's, the paper's architecture, the value network's gradient."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from psdrl import configure
from psdrl.agents.psdrl import learning
from psdrl.agents.psdrl.autoencoder import Autoencoder, layers
from psdrl.agents.psdrl.networks import TanhNet, plain_tanh
from psdrl.agents.psdrl.planning import value_gradient
from psdrl.agents.psdrl.settings import AutoencoderConfig
from psdrl.errors import UserError
from psdrl.kernels.convolution import GemmConv2d, GemmConvTranspose2d, from_tiles, tiles, to_tiles
from tests.helpers import filled_replay, small_config, small_models, vector_spec


def grads(output, tensors):
    return torch.autograd.grad(output.square().sum(), tensors)


@pytest.mark.parametrize(
    ("kernel", "stride", "size"), [(4, 2, 6), (4, 4, 8), (4, 4, 11), (5, 2, 9), (3, 1, 3), (1, 1, 1)]
)
def test_convolution_by_products_is_atens(kernel, stride, size):
    layer = GemmConv2d(3, 5, kernel, stride).double()
    x = torch.randn(2, 3, size, size, dtype=torch.float64, requires_grad=True)
    expected = F.conv2d(x, layer.weight, layer.bias, stride=stride)
    torch.testing.assert_close(layer(x), expected)
    tensors = (x, layer.weight, layer.bias)
    for gradient, other in zip(grads(layer(x), tensors), grads(expected, tensors), strict=True):
        torch.testing.assert_close(gradient, other)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(4, 2, 0), (4, 4, 0), (5, 2, 1), (4, 4, 2), (3, 1, 0)], ids=str
)
def test_transposed_convolution_by_products_is_atens(kernel, stride, padding):
    layer = GemmConvTranspose2d(6, 2, kernel, stride, output_padding=padding).double()
    x = torch.randn(3, 6, 5, 4, dtype=torch.float64, requires_grad=True)
    expected = F.conv_transpose2d(x, layer.weight, layer.bias, stride=stride, output_padding=padding)
    torch.testing.assert_close(layer(x), expected)
    tensors = (x, layer.weight, layer.bias)
    for gradient, other in zip(grads(layer(x), tensors), grads(expected, tensors), strict=True):
        torch.testing.assert_close(gradient, other)


def test_layers_on_tiles_are_atens():
    images = torch.randn(2, 3, 12, 8, dtype=torch.float64)
    down, up = nn.Conv2d(3, 5, 4, 4).double(), nn.ConvTranspose2d(5, 3, 4, 4).double()
    assert down.bias is not None
    assert up.bias is not None
    x = from_tiles(tiles(images, 4), down.weight, down.bias)
    torch.testing.assert_close(x, down(images))
    torch.testing.assert_close(to_tiles(x, up.weight, up.bias), tiles(up(x), 4))


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("standardise", [False, True])
def test_reconstruction_in_tiles(reduction, channels, standardise):
    """The fast path's autoencoder and the oracle's: latent states, loss and gradient."""
    config = configure(game="Pong", preset="cpu", device="cpu").autoencoder
    autoencoder = Autoencoder((channels, 64, 64), config, standardise, reduction)
    assert autoencoder.double().patch == 4
    frames = torch.randint(0, 256, (3, channels, 64, 64), dtype=torch.uint8)
    autoencoder.renew([frames[:1], frames[1:]])
    images = autoencoder.images(frames)
    if standardise:
        torch.testing.assert_close(images.mean(0), torch.zeros_like(images[0]))
        torch.testing.assert_close(images.square().mean(), images.new_ones(()))
    else:
        torch.testing.assert_close(images, frames.double() / 255)
    torch.testing.assert_close(autoencoder.encode(frames), autoencoder.encoder(autoencoder.images(frames)))
    losses = [autoencoder.loss(frames), autoencoder.plain_loss(frames)]
    torch.testing.assert_close(*losses)
    parameters = list(autoencoder.parameters())
    for gradient, expected in zip(*(grads(loss, parameters) for loss in losses), strict=True):
        torch.testing.assert_close(gradient, expected)


@torch.no_grad()
def test_pixels_are_divided_by_255_exactly():
    """An encoder that gives back the first pixel of each tile: csrc/ rounds each of the 256 as a division does."""
    autoencoder = Autoencoder((1, 32, 32), AutoencoderConfig(channels=(1,)))
    assert autoencoder.patch == 4
    for parameter in autoencoder.parameters():
        parameter.zero_()
    next(autoencoder.encoder.parameters())[0, 0, 0, 0] = 1
    frames = torch.arange(256, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 32, 32)
    assert torch.equal(autoencoder.latents(frames)[:, 0], torch.arange(256) / 255)


def test_a_loaded_autoencoder_encodes_as_the_saved_one():
    """Mean frame and contrast come from the checkpoint, and with them what is derived for the patches."""
    config = configure(game="Pong", preset="cpu", device="cpu").autoencoder
    saved, loaded = (Autoencoder((1, 64, 64), config, standardise=True) for _ in range(2))
    frames = torch.randint(0, 256, (5, 1, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        saved.renew([frames])
        loaded.load_state_dict(saved.state_dict())
        assert torch.equal(loaded.encode(frames), saved.encode(frames))
        expected = loaded.encoder(loaded.images(frames))
        torch.testing.assert_close(loaded.encode(frames), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("latent", [0, 24])
@pytest.mark.parametrize(("planes", "dtype"), [(2, torch.float64), (1, torch.float64), (1, torch.float32)])
@pytest.mark.parametrize(("side", "channels"), [(120, (4, 6, 8)), (64, (16, 6)), (120, (19, 7, 13)), (64, (33, 5))])
@pytest.mark.parametrize("count", [1, 19])
def test_patches_are_encoded_as_images(count, side, channels, planes, dtype, latent):
    """Products of patches, and csrc's pass over one plane of float32, against the layers themselves."""
    settings = {"channels": channels, "latent": latent}
    config = configure(game="Pong", preset="cpu", device="cpu", autoencoder=settings).autoencoder
    autoencoder = Autoencoder((planes, side, side), config, standardise=True).to(dtype)
    assert autoencoder.patch == 4
    frames = torch.randint(0, 256, (20, planes, side, side), dtype=torch.uint8)
    autoencoder.renew([frames])
    frames = frames[:count]
    with torch.no_grad():
        found, plain = autoencoder.latents(frames), autoencoder.plain_latents(frames)
        exact = autoencoder.double().plain_latents(frames)
    allowed = 1e-12 if dtype == torch.float64 else 2 * float((plain - exact).norm() / exact.norm())
    assert float((found - exact).norm() / exact.norm()) <= allowed


def test_linear_tanh_gradient():
    x, weight, bias = (torch.randn(*shape, dtype=torch.float64).requires_grad_() for shape in ((5, 3), (4, 3), (4,)))
    assert torch.autograd.gradcheck(learning.fused_tanh, (x, weight, bias))
    torch.testing.assert_close(learning.fused_tanh(x, weight, bias), plain_tanh(x, weight, bias))


def test_the_papers_autoencoder():
    """64 -> 31 -> 14 -> 6 -> 2 and back 2 -> 6 -> 14 -> 30 -> 64, latent 1536, ReLU also after the last convolution."""
    autoencoder = Autoencoder((1, 64, 64), configure(game="Pong", preset="paper", device="cpu").autoencoder)
    frames = torch.randint(0, 256, (2, 1, 64, 64), dtype=torch.uint8)
    x, sizes = autoencoder.images(frames), []
    for layer in autoencoder.encoder:
        x = layer(x)
        if isinstance(layer, nn.Conv2d):
            sizes.append(tuple(x.shape[1:]))
    assert sizes == [(48, 31, 31), (96, 14, 14), (192, 6, 6), (384, 2, 2)]
    assert x.shape == (2, 1536)
    assert (x >= 0).all()
    sizes = []
    for layer in autoencoder.decoder:
        x = layer(x)
        if isinstance(layer, nn.ConvTranspose2d):
            sizes.append(tuple(x.shape[1:]))
    assert sizes == [(192, 6, 6), (96, 14, 14), (48, 30, 30), (1, 64, 64)]


@pytest.mark.parametrize("height", [10, 44, 63, 64, 84, 97, 210])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_any_image_is_encoded_to_few_cells_and_decoded_to_its_size(count, height):
    if (height, count) in {(10, 3), (10, 4), (44, 4)}:
        with pytest.raises(UserError, match=rf"to nothing \(sizes \[{height}, "):
            layers(1, height, (5,) * count)
        return
    forth, back = layers(1, height, tuple(range(5, 5 + count)))
    assert 1 <= forth[-1].size <= 8
    config = AutoencoderConfig(channels=tuple(layer.outputs for layer in forth))
    images, decoded = Autoencoder((1, height, height), config).reconstruct(torch.zeros(1, 1, height, height))
    assert decoded.shape == images.shape
    assert back[-1].size == height
    assert back[-1].padding < back[-1].stride


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_value_gradient_is_autograds(depth):
    value = TanhNet(7, 11, depth).double()
    states, targets = torch.randn(9, 7, dtype=torch.float64), torch.randn(9, dtype=torch.float64)
    expected = (value(states) - targets).square().mean()
    gradients = torch.autograd.grad(expected, list(value.parameters()))
    torch.testing.assert_close(value_gradient(value, states, targets)[0], expected.detach())
    for parameter, gradient in zip(value.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_scales_come_from_the_buffer():
    models = small_models(small_config(standardise=True), vector_spec(3))
    seen = torch.randn(500, 3, dtype=torch.float64) * torch.tensor([2.0, 0.5, 1e-6]) + 7
    models.autoencoder.renew_scale(lambda: seen, models.forward_model)
    scaled = models.autoencoder.encode(seen)
    torch.testing.assert_close(scaled.mean(0), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(scaled.std(0, correction=0)[:2], torch.ones(2, dtype=torch.float64))
    assert float(scaled[:, 2].abs().max()) < 1e-3, "a dimension that hardly changes is not blown up"


@pytest.mark.parametrize(
    ("rewards", "weight"), [([0.0, 1.0], 12.0), ([0.0, 0.0], 1000.0), ([0.0, 100.0], 1.0)], ids=str
)
@pytest.mark.parametrize("automatic", [True, False])
def test_the_automatic_reward_weight_is_3_by_the_variance_within_bounds(rewards, weight, automatic):
    models = small_models(small_config(forward={"reward_weight": 0 if automatic else 2.5}), vector_spec(3))
    replay = filled_replay([2])
    replay.rewards[replay.transition_slots()] = torch.tensor(rewards)
    models.forward_model.renew(replay)
    assert float(models.forward_model.reward_weight) == pytest.approx(weight if automatic else 2.5)


def test_the_paper_has_no_scales():
    models = small_models(small_config(), vector_spec(3))
    z = torch.randn(4, 3, dtype=torch.float64)
    models.autoencoder.renew_scale(lambda: z, models.forward_model)
    assert torch.equal(models.autoencoder.encode(z), z)
