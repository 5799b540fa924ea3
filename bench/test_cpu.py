"""Every CPU operation against plain ATen, at acting, training and planning sizes; one that loses by over 10 % fails.

    pytest bench/test_cpu.py --benchmark-enable -s
    PSDRL_CPU=avx2 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 pytest ... (the same)

Both are timed in turn in this process, and the best of many calls counts. Products are those of `kernels.choice`, whose
measurements are made first; `PSDRL_CACHE` moves its file.
"""

import time
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from psdrl.agents.psdrl.autoencoder import Autoencoder
from psdrl.agents.psdrl.learning import make_optimisers
from psdrl.agents.psdrl.models import Models
from psdrl.agents.psdrl.networks import TanhNet
from psdrl.agents.psdrl.synthetic import atari_spec
from psdrl.agents.registry import configure
from psdrl.kernels import choice
from psdrl.kernels.autoencoder_steps import autoencoder_steps_
from psdrl.kernels.autoencoder_steps import reference as plain_autoencoder
from psdrl.kernels.gru_actions import aten as gru
from psdrl.kernels.gru_actions import reference as plain_gru
from psdrl.kernels.linear_tanh import aten, reference
from psdrl.kernels.tanh_actions import reference as plain_actions
from psdrl.kernels.tanh_actions import tanh_actions
from psdrl.kernels.tanh_net_steps import reference as plain_net
from psdrl.kernels.tanh_net_steps import tanh_net_steps_
from psdrl.kernels.window_steps import reference as plain_windows
from psdrl.kernels.window_steps import window_steps_

# rows, inputs, units: acting, gradient steps and planning of the cpu and of the paper preset
SIZES = [
    *[(6, 358, 256), (6, 256, 256), (64, 358, 256), (256, 364, 128), (3840, 358, 256), (4096, 294, 128)],
    *[(1, 2292, 2292), (6, 2292, 2292), (18, 2292, 2292), (125, 2292, 2292), (1500, 2292, 2292)],
]
SECONDS, MOST = 1.0, 1.1
Pair = tuple[Callable[[], object], Callable[[], object]]  # ours, ATen's


def layer(rows: int, inner: int, units: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(rows, inner), torch.randn(units, inner) / inner**0.5, torch.randn(units)


def products(size: tuple[int, int, int]) -> dict[str, Pair]:
    x, weight, bias = layer(*size)
    delta = torch.randn(len(x), len(weight))
    return {
        "linear": (lambda: aten.linear(x, weight, bias), lambda: F.linear(x, weight, bias)),
        "linear_tanh": (
            lambda: aten.linear_tanh(x, weight, bias),
            lambda: reference.linear_tanh(x, weight, bias),
        ),
        "gradient of x": (lambda: aten.product(delta, weight), lambda: delta @ weight),
        "gradient of W": (lambda: aten.product(delta.T, x), lambda: delta.T @ x),
    }


def others() -> dict[str, Pair]:
    net, x = TanhNet(358, 256, 3), torch.randn(6, 358)
    gates = {
        n: (torch.randn(n, 192), torch.randn(n, 192), torch.randn(6, 192), torch.randn(n, 64).tanh()) for n in (1, 640)
    }
    encoder = Autoencoder((1, 64, 64), configure(game="Pong", preset="cpu", device="cpu").autoencoder, True)
    frames = torch.randint(0, 256, (256, 1, 64, 64), dtype=torch.uint8)
    pairs: dict[str, Pair] = {"value network, 6 rows": (lambda: net.fast(x), lambda: net(x))}
    for n, inputs in gates.items():
        pairs[f"GRU over 6 actions, {n} states"] = (
            partial(gru.gru_actions, *inputs),
            partial(plain_gru.gru_actions, *inputs),
        )
    for n in (1, 256):
        pairs[f"encoder, {n} frames"] = (
            partial(encoder.latents, frames[:n]),
            partial(encoder.plain_latents, frames[:n]),
        )
    return pairs


def steps() -> dict[str, Pair]:
    """Gradient steps in one call, of the cpu preset's networks and batches, against autograd and Adam's fused step."""
    config = configure(game="Pong", preset="cpu", device="cpu")
    models = Models(config, atari_spec(6))
    optimisers = make_optimisers(models, config)
    z, actions = torch.randn(5, 64, models.autoencoder.latent_size), torch.randint(6, (4, 64))
    net, pictures = models.forward_model.window_net(), models.autoencoder.pictures()
    assert net is not None
    assert pictures is not None
    frames = torch.randint(0, 256, (1, 40, 1, 64, 64), dtype=torch.uint8)
    value: list[torch.Tensor] = list(models.value.parameters())
    states, targets = torch.randn(10, 64, value[0].shape[1]), torch.randn(10, 64)
    given = (z, actions, torch.randn(4, 64), optimisers["forward"], net, 4)
    code, weight, layers = torch.randn(3840, 192), torch.randn(256, 192) / 14, [(torch.randn(256, 256) / 16, value[1])]
    terms = torch.randn(640, 256), torch.randn(6, 256)
    taken: dict[str, tuple[Callable, Callable, tuple]] = {
        "window of the forward model": (window_steps_, plain_windows.window_steps_, given),
        "autoencoder, 40 frames": (
            *(autoencoder_steps_, plain_autoencoder.autoencoder_steps_),
            (frames, optimisers["autoencoder"], pictures),
        ),
        "10 steps of the value network": (
            *(tanh_net_steps_, plain_net.tanh_net_steps_),
            (states, targets, optimisers["value"], value, 1),
        ),
        "values of 640 states' actions": (
            *(tanh_actions, plain_actions.tanh_actions),
            (code, weight, *terms, [*layers, (torch.randn(1, 256), torch.randn(1))], True),
        ),
    }
    return {name: (partial(ours, *x), partial(plain, *x)) for name, (ours, plain, x) in taken.items()}


def ratio(ours: Callable[[], object], plain: Callable[[], object]) -> tuple[float, float]:
    """Shortest times of both, called in turn."""
    best, began = [float("inf"), float("inf")], time.perf_counter()
    ours(), plain()
    while time.perf_counter() - began < SECONDS or float("inf") in best:
        for i, call in enumerate((ours, plain)):
            start = time.perf_counter()
            call()
            best[i] = min(best[i], time.perf_counter() - start)
    return best[0], best[1]


# Gradient steps have 64 rows or more.
CASES = {
    f"{name}, {'x'.join(map(str, size))}": (size, name)
    for size in SIZES
    for name in products((1, 1, 1))
    if size[0] >= 64 or not name.startswith("gradient")
}
OTHERS = [*others(), *steps()]


@pytest.mark.parametrize("case", [*CASES, *OTHERS])
@torch.no_grad()
def test_no_operation_loses_to_aten(case: str, benchmark) -> None:
    if benchmark.disabled:
        pytest.skip("times are taken with --benchmark-enable")
    if case in CASES:
        size, name = CASES[case]
        pair = products(size)[name]
    else:
        pair = (others() | steps())[case]
    ours, plain = ratio(*pair)
    print(f"\n{case}: {1e6 * ours:.1f} us, ATen {1e6 * plain:.1f} us, {plain / ours:.2f}x ({choice.machine()})")
    benchmark.extra_info["against ATen"] = plain / ours
    benchmark.pedantic(pair[0], rounds=3)
    assert ours <= MOST * plain, f"{ours / plain:.2f} times ATen's time"
