"""What a GPU does otherwise than a CPU, as far as a CPU can show it: the same functions of the same weights."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from psdrl import configure
from psdrl.agents.psdrl.acting import Actor
from psdrl.agents.psdrl.autoencoder import Autoencoder
from psdrl.agents.psdrl.kernel_calls import KernelCalls, of_products
from psdrl.agents.psdrl.learning import chunks, encode_buffer
from psdrl.agents.psdrl.settings import AutoencoderConfig
from psdrl.agents.psdrl.synthetic import atari_spec, debug_agent
from psdrl.kernels.convolution import shuffles
from psdrl.runtime.device import bf16_on_cpu
from psdrl.runtime.execution import Execution

CPU = torch.device("cpu")
needs_bf16 = pytest.mark.skipif(bf16_on_cpu() is not None, reason=str(bf16_on_cpu()))


@pytest.mark.parametrize(("channels", "shape"), [((6, 5, 4, 3), (1, 64, 64)), ((5, 6, 7, 8), (3, 84, 84))])
def test_blocks_of_pixels_are_the_same_function(channels, shape, monkeypatch):
    """Loss, gradients and latent states of the paper's geometry, in float64."""
    torch.manual_seed(0)
    encoder = Autoencoder(shape, AutoencoderConfig(channels=channels), standardise=True).double()
    frames = torch.randint(0, 256, (3, *shape), dtype=torch.uint8)
    encoder.renew([frames])

    def found() -> list[torch.Tensor]:
        loss = encoder.loss(frames)
        return [loss, encoder.latents(frames), *torch.autograd.grad(loss, list(encoder.parameters()))]

    assert not encoder.shuffled(frames)
    usual = found()
    monkeypatch.setattr(Autoencoder, "shuffled", lambda self, _: True)
    for x, y in zip(found(), usual, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-12)


def test_blocks_must_fit():
    """The kernel in whole blocks, the picture too, and the last kernel with its padding."""
    first, last = nn.Conv2d(1, 2, 4, 2), nn.ConvTranspose2d(2, 1, 5, 2, output_padding=1)
    assert shuffles(first, last, 64)
    assert not shuffles(first, last, 63)
    assert not shuffles(nn.Conv2d(1, 2, 5, 2), last, 64)
    assert not shuffles(first, nn.ConvTranspose2d(2, 1, 5, 2), 64)
    assert not shuffles(nn.Conv2d(1, 2, 4, 1), nn.ConvTranspose2d(2, 1, 4, 1), 64)


def test_a_gpu_encodes_full_chunks_only():
    slots = torch.arange(5000) + 7
    gpu: Any = SimpleNamespace(device=torch.device("cuda"), chunk_rows=32768)
    found = chunks(slots, gpu)
    assert [len(part) for part in found] == [2048, 2048, 2048]
    assert torch.equal(torch.cat(found).unique(), slots)
    assert [len(part) for part in chunks(slots[:300], Execution(CPU))] == [256, 44]
    assert sum(map(len, chunks(slots[:0], gpu))) == 0


def test_a_gpu_sees_eight_times_the_rows():
    config = configure(game="Pong", preset="paper", device="cpu")
    assert (config.rows_at_once(False), config.rows_at_once(True)) == (4096, 32768)
    rows = [max(call.rows for call in KernelCalls.of(config, atari_spec(6), gpu).calls) for gpu in (False, True)]
    assert rows == [4096, 32768]


def test_what_mixed_precision_is_of():
    gpu = torch.device("cuda")
    assert [of_products(gpu, p) for p in ("fp32", "tf32", "mixed", "bf16")] == ["fp32", "tf32", "tf32", "bf16"]
    assert [of_products(CPU, p) for p in ("fp32", "tf32", "mixed", "bf16")] == ["fp32", "fp32", "fp32", "bf16"]
    config = configure(game="Pong", preset="debug", device="cpu", precision="mixed")
    assert Execution.of(config, CPU).precision == "fp32", "a CPU computes float32"


@needs_bf16
def test_mixed_precision_lowers_images_only():
    agent = debug_agent("fast", torch.float32, kind="image")
    mixed, full, low = (Execution(CPU, precision=p) for p in ("mixed", "fp32", "bf16"))
    tables = [encode_buffer(agent.models, agent.replay, e)[agent.replay.stored_slots()] for e in (mixed, full, low)]
    assert torch.equal(tables[0], tables[2])
    assert not torch.equal(tables[0], tables[1])
    torch.testing.assert_close(tables[0], tables[1], rtol=0.05, atol=0.02)
    with mixed.autocast():
        assert not torch.is_autocast_enabled("cpu")
    assert (mixed.made(tables[0]), low.made(tables[0])) == (torch.float32, torch.bfloat16)


@needs_bf16
@pytest.mark.parametrize("kind", ["vector", "grid"])
def test_weights_cast_once_per_model_act_alike(kind, monkeypatch):
    """In bf16 an actor keeps its weights in bfloat16; autocast, given the float32 ones, comes to the same bits."""
    agent = debug_agent("fast", torch.float32, kind=kind)
    agent.execution = Execution(CPU, precision="bf16")
    frames = agent.replay.observations[:6].numpy()

    def hidden() -> list[torch.Tensor]:
        actor, found = Actor(agent, 1, 3), []
        for frame in frames:
            actor.act(frame[None], 0.0)
            found.append(actor.hidden)
        return found

    cast_once = hidden()
    monkeypatch.setattr("psdrl.agents.psdrl.acting.Folded", type(None))
    assert all(torch.equal(x, y) for x, y in zip(cast_once, hidden(), strict=True))
    agent.update()
    assert not np.array_equal(cast_once[-1], hidden()[-1]), "a new model, a new update: new weights"


def test_cudnn_measures_only_on_a_gpu_and_not_in_deterministic_mode(monkeypatch):
    seen = []
    for device, autotune in (("cpu", "1"), ("cuda", "1"), ("cuda", "0")):
        monkeypatch.setenv("PSDRL_AUTOTUNE", autotune)
        execution = Execution(CPU)
        execution.device = torch.device(device)
        with execution.fixed_shapes():
            seen.append(torch.backends.cudnn.benchmark)
    assert seen == [False, True, False]
    assert not torch.backends.cudnn.benchmark
