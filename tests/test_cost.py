"""The arithmetic of the cost model."""

import pytest

from psdrl import configure
from psdrl.agent import Agent
from psdrl.cost import Device, Work, act_work, data_sheet, forecast, update_steps, update_work
from psdrl.envs.vector import EnvSpec
from psdrl.sizes import Sizes

PONG = EnvSpec("Pong", "image", (1, 64, 64), "uint8", 6, "none")
SLOW = Device("test", 1e9, 1e9, 1e9, 1e9, 1e9, 1e-6, measured=True)


@pytest.mark.parametrize("name", ["paper", "cpu", "debug"])
def test_parameters_are_those_of_the_networks(name):
    config = configure(game="Pong", preset=name, device="cpu")
    sizes = Sizes.of(config, PONG)
    models = Agent(config, PONG).models
    for part, module in {
        "autoencoder": models.autoencoder,
        "forward": models.forward_model,
        "termination": models.termination,
        "value": models.value,
    }.items():
        weights = sum(p.numel() for p in module.parameters() if p.ndim > 1)  # biases are left out
        assert sizes.parameters[part] == weights, part
    assert sizes.latent == models.autoencoder.latent_size


def test_multiply_adds_of_the_paper():
    """Millions per row: encoder 30.5, autoencoder 61, forward model 29.7, termination 7.1, value 21."""
    sizes = Sizes.of(configure(game="Pong", preset="paper", device="cpu"), PONG)
    counts = [sizes.encoder, sizes.autoencoder, sizes.forward, sizes.termination, sizes.value]
    assert [count / 1e6 for count in counts] == pytest.approx([30.5, 61, 29.7, 7.1, 21], rel=0.01)
    # Factored and folded: W4 (2292 x 2292) is gone, z enters the first layer once per state.
    assert sizes.action == 756 * 2292 + 2 * 2292 * 2292 + 2292 * 1537


def test_a_value_step_at_the_papers_size():
    """41.9 GMAC by hand: 125 states, 750 rows, a gradient step of 3 x 21M on 125 rows."""
    work = update_work(configure(game="Pong", preset="paper", device="cpu"), PONG, 0)["value"]
    rows = 125 * 8_718_768 + 750 * (15_762_084 + 7_079_424 + 21_015_348) + 3 * 125 * 21_015_348
    assert work.total / 750 == pytest.approx(2 * rows)


def test_work_is_linear_in_the_buffer_and_in_actions():
    config = configure(game="Pong", preset="paper", device="cpu")
    a, b, c = (update_work(config, PONG, n) for n in (0, 1000, 2000))
    for name in a:
        assert c[name].total - b[name].total == pytest.approx(b[name].total - a[name].total)
    one, two, three = (
        act_work(config, EnvSpec("Pong", "image", (1, 64, 64), "uint8", n, "none")).flops for n in (1, 2, 3)
    )
    assert three - two == pytest.approx(two - one, rel=1e-3)  # the action's own columns are the difference


def test_seconds_take_the_slower_of_arithmetic_and_memory():
    assert Work(flops=1e9, gradient=1e9, bytes=1e9).seconds(SLOW) == pytest.approx(2)
    assert Work(flops64=1e9, convolution=1e9, bytes=3e9).seconds(SLOW) == pytest.approx(3)
    assert Work(flops=1e9, launches=1e6).seconds(SLOW) == pytest.approx(2)  # a CPU pays launches on top
    gpu = SLOW._replace(measured=False)
    assert Work(flops=1e9, launches=5e5).seconds(gpu) == pytest.approx(1)  # a GPU hides them


def test_updates_of_a_paper_run():
    """400 updates of m = 250 in the first 100k steps, then one per 1000."""
    steps = list(update_steps(configure(game="Pong", preset="paper", device="cpu")))
    assert len(steps) == 399 + 900
    assert steps[0] == 250
    assert steps[398:401] == [99_750, 100_000, 101_000]


def test_forecast_adds_up():
    config = configure(game="Pong", preset="paper", device="cpu")
    both = forecast(config, PONG, data_sheet("a100"))
    assert both.hours == pytest.approx(sum(both.seconds.values()) / 3600)
    assert {"autoencoder", "forward", "posterior", "value", "acting", "evaluation"} <= both.seconds.keys()
    slower = forecast(config, PONG, data_sheet("a100", "fp32"))
    assert slower.hours > both.hours
