"""The arithmetic of the cost model."""

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from psdrl import configure
from psdrl.agents.bootstrap.work import BootstrapWorkload
from psdrl.agents.interface import Agent
from psdrl.agents.psdrl import autoencoder
from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.agents.psdrl.flat_model import Folded
from psdrl.agents.psdrl.work import CUDNN_SCAN, PsdrlWorkload
from psdrl.agents.registry import AGENTS, make_agent
from psdrl.cost import forecast as cost
from psdrl.cost.assumptions import ASSUMED, known_gpu
from psdrl.cost.devices import data_sheet, measure_here
from psdrl.cost.forecast import hours_table, measures_table, workload
from psdrl.doctor import calibration
from psdrl.envs.vector import EnvSpec
from psdrl.errors import UserError
from psdrl.kernels import dispatch
from psdrl.replay.episodes import Replay
from psdrl.runtime.work import Device, Loop, Measures, Trial, Work, count, weights

PRECISIONS = ("fp32", "tf32", "mixed", "bf16")
PONG = EnvSpec("Pong", "image", (1, 64, 64), "uint8", 6, "none")
SLOW = Device("test", 1e9, 1e9, 1e9, 1e9, 1e9, 1e-6, measured=True)


def update_work(config, spec, transitions):
    return workload(config, spec).update(transitions)


def act_work(config, spec):
    return workload(config, spec).act(config.num_envs // config.env_groups)


def interaction(config, spec, device):
    return cost.interaction(config, spec, device, act_work(config, spec))


def forecast(config, spec, device, **options):
    return cost.forecast(config, spec, device, workload(config, spec), **options)


def filled(config, spec, episodes=(40, 40)):
    """An agent with random episodes of these lengths in its buffer."""
    agent, rng = make_agent(config, spec), np.random.default_rng(0)
    replay: Any = agent.replay
    frame = lambda: rng.integers(0, 256, spec.shape).astype(spec.dtype)  # noqa: E731
    for length in episodes:
        replay.start(0, frame())
        for t in range(length):
            replay.add(0, int(rng.integers(spec.num_actions)), 1.0, frame(), t == length - 1, *EXTRA[config.algo])
    return agent


EXTRA = {"psdrl": (False,), "bootstrap": (), "successor": (), "dreamer": (False,)}


def real_flops(agent):
    """Floating-point operations of a real update by phase, counted by PyTorch while the oracles' products serve."""
    starts: dict[str, int] = {}
    aten_encodes = mock.patch.object(autoencoder, "encodes", return_value=False)
    with FlopCounterMode(display=False) as counter, dispatch.force("reference"), aten_encodes:
        agent.update(lambda phase: starts.setdefault(phase, counter.get_total_flops()))
        ends = [*list(starts.values())[1:], counter.get_total_flops()]
    return {phase: end - start for (phase, start), end in zip(starts.items(), ends, strict=True)}


@pytest.mark.parametrize("features", ["linear", "tanh+inputs"])
def test_a_real_update_has_the_operations_that_are_counted(features):
    """Backward is taken for twice forward: what enters a first layer needs no gradient, which the model ignores."""
    sizes = {
        "replay": {"batch": 5, "length": 8},
        "value": {"networks": 2, "iterations": 3},
        "autoencoder": {"latent": 7},
    }
    config = configure(game="Pong", preset="debug", device="cpu", forward={"window": 4, "features": features}, **sizes)
    agent, work = filled(config, PONG), PsdrlWorkload(config, PONG)
    found, models = real_flops(agent), agent.models
    model = {name: phase.total for name, phase in work.update(len(agent.replay.stored_slots())).items()}
    assert found["encoding"] == model["encoding"]
    first = models.autoencoder.encoder[0].to("meta")
    unneeded = 5 * config.autoencoder.iterations * count(first, torch.empty(8, 1, 64, 64, device="meta")).macs
    assert found["autoencoder"] == model["autoencoder"] - 2 * unneeded
    rows, gru = 5 * 8, models.forward_model.gru
    unneeded = rows * (gru.weight_ih.numel() + models.termination.layers[0].weight.numel())
    unneeded += 8 // 4 * 5 * gru.weight_hh.numel()  # a window's first hidden state is data, too
    assert found["forward"] == model["forward"] - 2 * config.forward.iterations * unneeded
    unneeded = rows * sum(network.layers[0].weight.numel() for network in models.value)
    unneeded += 5 * work.gru  # nobody asks for the hidden state after the last step
    last = models.forward_model.layers[-1].weight.numel()  # if it is linear it is folded into W~, once
    folded = 2 * work.outputs * last if features == "linear" else 0
    assert found["value"] == model["value"] - 2 * 3 * unneeded + folded


def test_planning_on_a_grid_has_the_operations_that_are_counted():
    spec = EnvSpec("test", "vector", (100,), "uint8", 3, "none", (5, 5, 4))
    config = configure(
        env="minatar/breakout", preset="debug", device="cpu", grid=True, forward={"features": "tanh+inputs"},
        replay={"batch": 5, "length": 8}, value={"iterations": 3},
    )  # fmt: skip
    agent, work = filled(config, spec), PsdrlWorkload(config, spec)
    unneeded = 5 * 8 * agent.models.value[0].layers[0].weight.numel() + 5 * work.gru
    assert real_flops(agent)["value"] == work.update(80)["value"].total - 2 * 3 * unneeded


def test_what_is_counted_of_a_network():
    """By hand: a convolution and a linear layer on 2 pictures, then the gradient, which pictures need none of."""
    with torch.device("meta"):
        convolution, linear = torch.nn.Conv2d(3, 4, 2), torch.nn.Linear(4 * 3 * 3, 5)
        pictures = torch.empty(2, 3, 4, 4)
    macs, weights_of = 2 * 9 * 4 * 3 * 4, 4 * 3 * 4
    found = count(lambda x: linear(convolution(x).flatten(1)).relu(), pictures)
    assert found == (macs + 2 * 5 * 36, macs, weights_of + 5 * 36, 2 * 4 * 9, 2 * 4 * 9 + 2 * 5 + 2 * 5, 3)
    learned = count(lambda x: linear(convolution(x).flatten(1)).sum().backward(), pictures)
    assert (learned.macs, learned.convolutions) == (2 * macs + 3 * 2 * 5 * 36, 2 * macs)
    assert learned.weights == 2 * (weights_of + 5 * 36), "forward and backward"
    assert (weights(convolution), weights(linear)) == (weights_of, 5 * 36)


@pytest.mark.parametrize("spec", [PONG, EnvSpec("test", "vector", (100,), "float32", 3, "none", (5, 5, 4))])
def test_a_real_step_of_bootstrap_has_the_operations_that_are_counted(spec):
    name = {"game": "Pong"} if spec is PONG else {"env": "minatar/breakout"}
    config = configure(algo="bootstrap", preset="debug", device="cpu", steps=5000, **name)
    agent, work = filled(config, spec), workload(config, spec)
    agent.step = agent.next_update
    phase = work.update(0)["learning"]
    assert real_flops(agent) == {"learning": phase.total}
    online = agent.networks.online  # read for s and s' and backward, its gradient written; target and prior read once
    biases = online.heads.value_bias.numel() + online.heads.advantage_bias.numel()  # not read backward
    assert phase.loops[0].parts[0].weights == 6 * weights(online) - biases
    assert work.updates()[0] == max(config.exploration.random_steps, config.learning.every)


@pytest.mark.parametrize("spec", [PONG, EnvSpec("test", "vector", (5,), "float32", 3, "none")])
def test_a_real_update_of_dreamer_has_the_operations_that_are_counted(spec):
    name = {"game": "Pong"} if spec is PONG else {"env": "CartPole-v1"}
    config = configure(algo="dreamer", preset="debug", device="cpu", steps=5000, **name)
    agent, work = filled(config, spec), workload(config, spec)
    agent.step = agent.next_update
    phases = work.update(0)
    assert real_flops(agent) == {name: phase.total for name, phase in phases.items()}
    size = weights(agent.networks.actor) + weights(agent.networks.critic)
    found = phases["behaviour"].loops[0].parts[0].weights
    assert found > 4 * size, "read forward and backward, the gradients written, and what the model reads besides"
    assert work.updates()[0] == max(config.exploration.random_steps, config.learning.every)
    assert work.act(1).times == pytest.approx(1 - 100 / 5000)


@pytest.mark.parametrize("spec", [PONG, EnvSpec("test", "vector", (100,), "float32", 3, "none", (5, 5, 4))])
@pytest.mark.parametrize("how", ["posterior", "released"])
def test_a_real_step_of_successor_has_the_operations_that_are_counted(spec, how):
    name = {"game": "Pong"} if spec is PONG else {"env": "minatar/breakout"}
    settings = {"learning": {"next_action": how}, "exploration": {"random_steps": 0}}
    config = configure(algo="successor", preset="debug", device="cpu", steps=5000, **settings, **name)
    agent, work = filled(config, spec, (30, 30)), workload(config, spec)
    agent.step = agent.next_update
    phases = work.update(0)
    found = real_flops(agent)
    assert found["learning"] == phases["learning"].total
    (loop,) = phases["posterior"].loops
    assert loop.times == config.learning.every / config.exploration.draw_every
    assert found["posterior"] >= 60 / 50 * loop.parts[0].total, "60 transitions, where a draw follows 50; sums besides"
    online = agent.networks.online
    read = 3 * weights(online) - weights(online.torso.layers[0])  # by s, s' and backward; inputs need no gradient
    moved = phases["learning"].loops[0].parts[0].weights
    assert 0.7 * (read + weights(online)) < moved < 1.1 * (read + weights(online))
    assert work.updates()[0] == config.learning.every


def test_successor_asks_its_network_only_after_the_random_steps():
    config = configure(algo="successor", game="Pong", preset="debug", device="cpu", steps=1000)
    config = replace(config, exploration=replace(config.exploration, random_steps=250))
    assert workload(config, PONG).act(1).times == 0.75


@pytest.mark.parametrize("features", ["linear", "tanh+inputs"])
def test_the_folded_lookahead_has_the_multiply_adds_that_are_counted(features):
    """Per row of a product with a matrix as many as it has entries; what an action adds to a sum is none."""
    agent = PsdrlAgent(
        configure(game="Pong", preset="debug", device="cpu", forward={"features": features, "layers": 4}), PONG
    )
    work, model = PsdrlWorkload(agent.config, PONG), agent.models.forward_model.fold(agent.model)
    assert isinstance(model, Folded)
    action = model.first.numel() + sum(weight.numel() for weight, _ in model.hidden)
    action += model.output.numel() + model.direct.numel()
    assert work.ahead == model.state.numel() + model.recurrent.numel() + 6 * action


def test_multiply_adds_of_the_paper():
    """Millions per row: encoder 30.5, autoencoder 61, forward model 29.7, termination 7.1, value 21."""
    work = PsdrlWorkload(configure(game="Pong", preset="paper", device="cpu"), PONG)
    counts = [work.encoder.macs, work.autoencoder.macs, work.forward, work.termination, work.value]
    assert [count / 1e6 for count in counts] == pytest.approx([30.5, 61, 29.7, 7.1, 21], rel=0.01)
    # Factored and folded: W4 (2292 x 2292) is gone, z enters the first layer once per state.
    assert work.ahead == 8_718_768 + 6 * (756 * 2292 + 2 * 2292 * 2292 + 2292 * 1537)


def test_a_value_step_at_the_papers_size():
    """42.5 GMAC by hand: the GRU's scan and lookahead for 125 states, 750 rows, a gradient step of 3 x 21M on 125."""
    work = update_work(configure(game="Pong", preset="paper", device="cpu"), PONG, 0)["value"]
    gru = 3 * 756 * (1536 + 6 + 756)
    rows = 125 * (gru + 8_718_768) + 750 * (15_762_084 + 7_079_424 + 21_015_348) + 3 * 125 * 21_015_348
    assert work.total / 750 == pytest.approx(2 * rows)


def test_work_is_linear_in_the_buffer_and_in_actions():
    config = configure(game="Pong", preset="paper", device="cpu")
    a, b, c = (update_work(config, PONG, n) for n in (0, 1000, 2000))
    for name in a:
        assert c[name].total - b[name].total == pytest.approx(b[name].total - a[name].total)
    one, two, three = (
        act_work(config, EnvSpec("Pong", "image", (1, 64, 64), "uint8", n, "none")).parts[0].flops for n in (1, 2, 3)
    )
    assert three - two == pytest.approx(two - one, rel=1e-3)  # the action's own columns are the difference


def seconds(*parts, device, count=1, captured=False):
    return Loop(parts, count, captured).seconds(device)


def test_a_cpu_takes_the_slower_of_arithmetic_and_memory_and_pays_launches_on_top():
    assert seconds(Work(flops=1e9, gradient=1e9, bytes=1e9), device=SLOW) == pytest.approx(2)
    assert seconds(Work(flops64=1e9, convolution=1e9, bytes=3e9), device=SLOW) == pytest.approx(3)
    assert seconds(Work(flops=1e9), Work(bytes=1e9), device=SLOW, count=3) == pytest.approx(3), "they overlap"
    assert seconds(Work(flops=1e9, launches=1e6), device=SLOW) == pytest.approx(2)
    assert seconds(Work(weights=1e9), device=SLOW) == pytest.approx(4), "four bytes each"
    assert seconds(Work(activations=1e9, casts=1e9), device=SLOW) == 0, "part of the measured rates; nothing to cast"


def test_a_gpu_runs_kernels_one_after_another_and_hides_launches():
    gpu = SLOW._replace(measured=False, gap=1e-7)
    assert seconds(Work(flops=1e9), Work(bytes=1e9), device=gpu) == pytest.approx(2)
    assert seconds(Work(flops=1e9, launches=5e5), device=gpu) == pytest.approx(1.05), "the gaps remain"
    assert seconds(Work(flops=1e9, launches=4e6), device=gpu, captured=True) == pytest.approx(4), "too many launches"
    graphs = gpu._replace(graphs=True)
    assert seconds(Work(flops=1e9, launches=4e6), device=graphs, captured=True) == pytest.approx(1.4)
    assert seconds(Work(flops=1e9, launches=4e6), device=graphs) == pytest.approx(4), "not captured"


def test_bfloat16_halves_what_products_move_and_casts():
    half = SLOW._replace(measured=False, item=2)
    assert seconds(Work(weights=1e9, activations=1e9, bytes=1e9), device=half) == pytest.approx(2 + 2 + 1)
    assert seconds(Work(weights=1e9, casts=1e9), device=half) == pytest.approx(2 + 6)


def paper_phase(name, device, transitions=0, **settings):
    config = configure(game="Pong", preset="paper", device="cpu", **settings)
    return update_work(config, PONG, transitions)[name].seconds(device)


# One thing slow at a time: the rest takes no time.
NEVER = float("inf")
FREE = Device("test", NEVER, NEVER, NEVER, NEVER, NEVER, 0.0, measured=False)
STREAM = FREE._replace(bandwidth=1.0)


def test_traffic_of_the_gradient_steps_at_the_papers_size():
    """Ten numbers per weight and step: read forward and backward, gradient written, Adam 4 read and 3 written."""
    value, termination = 21_015_348, 7_079_424
    forward = 3 * 756 * (1536 + 6 + 756) + (756 + 1536 + 6 + 3 * 2292) * 2292 + 2292 * 1537
    assert paper_phase("value", STREAM) == pytest.approx(750 * 4 * value * (10 + 2 / 4)), "and a copy every 4 steps"
    assert paper_phase("forward", STREAM) == pytest.approx(189 * 4 * (forward + termination) * 10)
    # bfloat16: 3 x 2 bytes in products, a cast of 6 there and one back, Adam in float32 as before.
    half = STREAM._replace(item=2)
    assert paper_phase("value", half) == pytest.approx(750 * value * (6 + 12 + 28 + 2))


def test_traffic_of_the_autoencoder_at_the_papers_size():
    """Activations per frame by hand; 14 crossings of memory, 11 if compiled, and ten numbers per weight."""
    encoder = 48 * 31**2 + 96 * 14**2 + 192 * 6**2 + 384 * 2**2
    decoder = 192 * 6**2 + 96 * 14**2 + 48 * 30**2 + 64**2
    weights = 16 * (48 + 48 * 96 + 96 * 192 + 192 * 384) + 16 * (384 * 192 + 192 * 96 + 96 * 48) + 25 * 48
    steps = 3 * 125
    for compiled, crossings in ((False, 14), (True, 11)):
        wanted = steps * 4 * (crossings * 250 * (encoder + decoder) + 10 * weights)
        assert paper_phase("autoencoder", STREAM, compile=compiled) == pytest.approx(wanted), compiled
    assert paper_phase("encoding", STREAM, 1000) == pytest.approx(1000 * 4 * 6 * encoder)


def test_launches_of_an_update_at_the_papers_size():
    """Per step: autoencoder 8 convolutions, a window 9 layers and 4 GRU steps, the value network 5 layers."""
    work = {
        compiled: update_work(configure(game="Pong", preset="paper", device="cpu", compile=compiled), PONG, 0)
        for compiled in (False, True)
    }
    assert work[False]["autoencoder"].launches == 375 * (5 * 8 + 16)
    assert work[True]["autoencoder"].launches == 375 * (4 * 8 + 16)
    assert work[False]["forward"].launches == 189 * (9 * 9 + 4 * 32 + 2 * 16)
    assert work[True]["forward"].launches == 189 * (6 * 9 + 4 * 32 + 2 * 16)
    predict, targets = 30 * 750 / 4096, 4 * 5 / 4
    assert work[False]["value"].launches == pytest.approx(750 * (14 + predict + targets + 9 * 5 + 16))
    assert work[True]["value"].launches == pytest.approx(750 * (14 + predict + targets + 6 * 5 + 16))


def test_the_posterior_in_float64():
    """Per transition k (k / 2 + 1537) multiply-adds for the sums; once 2 k^3 + 6 k^2 1537 operations; no capture."""
    k = 2292
    device = FREE._replace(flops64=1.0)
    wanted = 1000 * 2 * k * (k / 2 + 1537) + 2 * k**3 + 6 * k**2 * 1537
    assert paper_phase("posterior", device, 1000) == pytest.approx(wanted)
    assert data_sheet("a100").flops64 == 0.65 * 19.5e12, "on tensor cores"
    for graphs in (False, True):
        launching = FREE._replace(launch=1.0, graphs=graphs)
        assert paper_phase("posterior", launching, 5000) == pytest.approx(14 * 1000 + 50)


def test_acting_reads_every_weight():
    config = configure(game="Pong", preset="paper", device="cpu", num_envs=8, env_groups=2)
    weights = 8_718_768 + 15_762_084 + 7_079_424 + 21_015_348 + 16 * (48 + 48 * 96 + 96 * 192 + 192 * 384)
    act = act_work(config, PONG)
    assert act.seconds(STREAM) == pytest.approx(4 * weights)
    encoder = 16 * (48 + 48 * 96 + 96 * 192 + 192 * 384)  # cast in every action, the others once per model
    assert act.seconds(STREAM._replace(item=2)) == pytest.approx(2 * weights + 6 * encoder)
    assert act.parts[0].flops == 4 * act_work(replace(config, num_envs=1, env_groups=1), PONG).parts[0].flops


@pytest.mark.parametrize(
    ("num_envs", "groups", "act", "acting", "waiting"),
    [
        (1, 1, 0.25e-3, 0.25e-3, 1e-3),
        (8, 1, 0.25e-3, 0.25e-3, 1e-3),  # a core for each environment
        (8, 2, 0.25e-3, 0.5e-3, 0.75e-3),  # a group's step and the other's action overlap
        (8, 4, 0.5e-3, 2e-3, 0.0),  # the agent is never idle
    ],
)
def test_groups_hide_environments_behind_acting(num_envs, groups, act, acting, waiting):
    config = configure(game="Pong", preset="paper", device="cpu", num_envs=num_envs, env_groups=groups)
    assert interaction(config, PONG, FREE._replace(latency=act)) == pytest.approx((acting, waiting))


def test_other_environments_step_one_by_one():
    config = configure(env="deepsea-4", preset="debug", device="cpu", num_envs=6, env_groups=3)
    spec = EnvSpec("test", "vector", (16,), "uint8", 2, "none")
    assert interaction(config, spec, FREE._replace(latency=1e-3)) == pytest.approx((3e-3, 6 * 4e-5))


def test_cores_of_this_machine_bound_its_environments(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    config = configure(game="Pong", preset="paper", device="cpu", num_envs=5)
    assert interaction(config, PONG, FREE._replace(measured=True))[1] == pytest.approx(3e-3)


def test_measures_never_slow_a_prediction():
    config = configure(game="Pong", preset="paper", device="cpu")
    eager = forecast(config, PONG, data_sheet("a100")).hours
    graphs = forecast(config, PONG, data_sheet("a100", graphs=True)).hours
    compiled = forecast(replace(config, compile=True), PONG, data_sheet("a100")).hours
    both = forecast(replace(config, compile=True), PONG, data_sheet("a100", graphs=True)).hours
    assert both < min(graphs, compiled)
    assert max(graphs, compiled) < eager


def test_table_of_hours():
    """Four precisions for 6 and 18 actions, four columns; the numbers are the forecasts'."""
    config = configure(game="Pong", preset="paper", device="cpu")
    text = hours_table(config, PONG, "a100")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    assert rows[0] == ["precision", "actions", "eager", "compile", "CUDA graphs", "both"]
    assert [row[:2] for row in rows[2:]] == [[p, n] for n in ("6", "18") for p in PRECISIONS]
    assert float(rows[3][2]) == pytest.approx(forecast(config, PONG, data_sheet("a100")).hours, abs=0.005)
    best = forecast(replace(config, compile=True), replace(PONG, num_actions=18), data_sheet("a100", "fp32", True))
    assert float(rows[6][5]) == pytest.approx(best.hours, abs=0.005)
    assert "Predicted, not measured" in text


def test_updates_of_a_paper_run():
    """400 updates of m = 250 in the first 100k steps, then one per 1000."""
    steps = workload(configure(game="Pong", preset="paper", device="cpu"), PONG).updates()
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


@pytest.mark.parametrize("episodes", [1, 3])
def test_forecast_of_evaluation(episodes):
    """A million steps, evaluated every 10,000: 100 evaluations of episodes of 2,000 steps, 1 ms each in Pong. On this
    device acting takes no time."""
    config = configure(game="Pong", preset="paper", device="cpu", eval_episodes=episodes, num_envs=4, env_groups=2)
    assert forecast(config, PONG, FREE).seconds["evaluation"] == pytest.approx(100 * episodes * 2000 * 1e-3)
    assert forecast(config, PONG, FREE, episode=500).seconds["evaluation"] == pytest.approx(100 * episodes * 500e-3)
    assert "evaluation" not in forecast(replace(config, eval_every=0), PONG, FREE).seconds


def test_a_prediction_for_every_agent(cli_run):
    for algo in AGENTS:
        shown = cli_run("psdrl", "cost", "--algo", algo, "--env", "deepsea-8", "--device", "a100")
        assert (shown.code, f"{algo} on deepsea-8" in shown.out) == (0, True)
    unknown = cli_run("psdrl", "cost", "--env", "deepsea-8", "--preset", "fast")
    assert (unknown.code, "no preset 'fast'" in unknown.err) == (2, True)


def test_an_agent_that_nobody_described(monkeypatch):
    config = configure(game="Pong", preset="debug", device="cpu")
    monkeypatch.setattr(PsdrlAgent, "workload", Agent.workload)
    with pytest.raises(UserError, match="no cost model of psdrl"):
        workload(config, PONG)


def test_bootstrap_asks_its_networks_only_after_the_random_steps():
    config = configure(algo="bootstrap", game="Pong", preset="debug", device="cpu", steps=1000)
    config = replace(config, exploration=replace(config.exploration, random_steps=250, epsilon=0.0, epsilon_steps=0))
    assert workload(config, PONG).act(1).times == pytest.approx(0.75, abs=0.01)


def test_bootstrap_gathers_the_weights_of_the_head_that_acts():
    config = configure(algo="bootstrap", game="Pong", preset="paper", device="cpu")
    work = BootstrapWorkload(config, PONG)
    torso, heads = (2 * weights(part) for part in (work.networks.online.torso, work.networks.online.heads))
    assert work.play().parts[0].weights == pytest.approx(torso + heads, rel=0.03), "all vote"
    assert work.act(1).parts[0].weights == pytest.approx(torso + 3 * heads / 9, rel=0.06)
    assert work.act(9).parts[0].weights < work.act(8).parts[0].weights, "from 9 rows on nothing is gathered"


@pytest.mark.parametrize(("launches", "gradient"), [(0, 1e9), (50 * 34 / 2, 2e9), (1e9, 1e10)])
def test_rates_are_those_of_the_trials(launches, gradient, monkeypatch):
    """Launching is no part of a rate, nine tenths of the time at most; where there is no trial, products stand for it.
    Everything takes 20 ms, also 50 tiny steps of 34 operations."""
    monkeypatch.setattr("psdrl.cost.devices.best", lambda call: 0.02)
    device = measure_here({"flops": Trial(2e7, list), "gradient": Trial(2e7, list, launches)})
    assert device.flops == device.convolution == device.flops64 == pytest.approx(1e9)
    assert device.gradient == pytest.approx(gradient)
    assert device.launch == pytest.approx(0.02 / 50 / 34)


def test_command_line(cli_run):
    """Hours of one prediction, or the table; measures that only a GPU has are refused here."""
    paper = ("cost", "--game", "Pong", "--preset", "paper")
    one = cli_run("psdrl", *paper, "--device", "a100", "--precision", "bf16", "--compile", "--cuda-graphs")
    assert (one.code, "PREDICTION" in one.out, "35%" in one.out) == (0, True, True)
    groups = ("--num-envs", 8, "--env-groups", 2)
    table = cli_run("psdrl", *paper, "--device", "h100", "--table", *groups)
    assert table.code == 0
    assert "on h100, 8 environment(s) in 2 group(s)" in table.out
    assert sum(line.startswith("| ") for line in table.out.splitlines()) == 10
    gains = cli_run("psdrl", *paper, "--device", "h100", "--measures", *groups)
    assert (gains.code, "weight gradient and Adam in one kernel" in gains.out) == (0, True)
    refused = cli_run("psdrl", *paper, "--table")
    assert refused.code != 0
    assert "--table is about GPUs" in refused.err


@pytest.mark.parametrize("transitions", [300, 3000])
def test_states_drawn_again_are_not_predicted_again(transitions):
    """Of 20 batches of 16 x 10 states as many differ as the cost model says; it counts the lookahead only for those."""
    batches = {"batch": 16, "length": 10}
    kinds = {
        sweep: configure(game="Pong", preset="debug", value={"sweep": sweep, "iterations": 20}, replay=batches)
        for sweep in ("paper", "episode")
    }
    replay = Replay(transitions, 1, (1,), "float32")
    replay.start(0, np.zeros(1))
    for t in range(transitions):
        replay.add(0, 0, 0.0, np.zeros(1), t == transitions - 1, False)
    rng = np.random.default_rng(0)
    drawn = torch.stack([replay.sample(16, 10, rng).slots[:, :-1] for _ in range(20)])
    share = len(drawn.unique()) / drawn.numel()
    flops = {sweep: update_work(config, PONG, transitions)["value"].total for sweep, config in kinds.items()}
    work = PsdrlWorkload(kinds["paper"], PONG)
    lookahead = 2 * drawn.numel() * (work.ahead + 6 * work.termination)
    assert flops["paper"] - flops["episode"] == pytest.approx((1 - share) * lookahead, rel=0.05)


def test_without_memory_planning_is_within_episodes():
    """h is zero wherever a sequence starts, so both starts are the same work and take the same memory."""
    settings = [{"sweep": sweep, "iterations": 20} for sweep in ("paper", "episode")]
    zero, episode = (
        configure(game="Pong", preset="debug", value=value, forward={"recurrent": 0}) for value in settings
    )
    assert update_work(zero, PONG, 300) == update_work(episode, PONG, 300)
    bytes_of = [workload(config, PONG).memory()["predictions"] for config in (zero, episode)]
    assert bytes_of[0] == bytes_of[1] > 0


def on_a_gpu(**measures):
    """The paper's work on a GPU, with these measures instead of all."""
    work = PsdrlWorkload(configure(game="Pong", preset="paper", device="cuda"), PONG)
    work.measures = Measures()._replace(**measures)
    return work


def test_gradient_and_step_in_one_pass_move_fewer_bytes():
    """By hand, at the paper's sizes. Value: the last layer's 2292 weights go the old way, 10 numbers each; the others
    are read forward and (but the first layer) backward, then 3 are read and 3 written."""
    layer, last = 2292**2, 2292
    assert on_a_gpu().models.value[0].layers[0].weight.numel() == layer
    numbers = 4 * layer + 3 * layer + 6 * 4 * layer + 10 * last  # forward, backward, steps
    copies = 2 * (4 * layer + last) / 4
    assert on_a_gpu().update(0)["value"].seconds(STREAM) == pytest.approx(750 * 4 * (numbers + copies))
    usual = 4 * layer + 3 * layer + 8 * 4 * layer + 10 * last
    assert on_a_gpu(one_pass=False).update(0)["value"].seconds(STREAM) == pytest.approx(750 * 4 * (usual + copies))


def test_gradients_that_nobody_needs_are_not_counted_on_a_gpu():
    """As many operations as a real update has, see above; a measure changes no operation."""
    before, after = on_a_gpu(counted=False).update(0), on_a_gpu().update(0)
    assert before["value"].total - after["value"].total == pytest.approx(750 * 2 * 125 * 2292**2)
    windows = 3 * 63
    assert before["forward"].total - after["forward"].total == pytest.approx(
        2 * windows * 125 * 750 / windows * 1536**2
    )
    for name in ("one_pass", "library", "parts", "blocks", "chunks"):
        assert on_a_gpu(**{name: False}).update(0)["value"].total == after["value"].total


def test_images_have_their_own_precision():
    pictures = Work(activations=1e9, casts=1e9, images=True)
    gpu = SLOW._replace(measured=False)
    assert seconds(pictures, device=gpu) == pytest.approx(4)
    assert seconds(pictures, device=gpu._replace(image_item=2)) == pytest.approx(2 + 6)
    assert seconds(pictures._replace(images=False), device=gpu._replace(image_item=2)) == pytest.approx(4)
    mixed, tf32, bf16 = (data_sheet("a100", p) for p in ("mixed", "tf32", "bf16"))
    assert (mixed.flops, mixed.item, mixed.convolution, mixed.image_item) == (tf32.flops, 4, bf16.convolution, 2)


def test_no_more_than_the_agreed_part_of_the_peak_is_assumed():
    assert data_sheet("a100").flops == 0.6 * 156e12
    assert all(0 < a.value <= 1 for name, a in ASSUMED.items() if name.split()[0] in ("products", "convolutions"))
    assert all(a.what and a.source for a in ASSUMED.values())
    assert ASSUMED["scan"].value == CUDNN_SCAN


def test_each_measure_gains_or_costs_nothing():
    """One after another, ending where the plain forecast is; before all of them it is the old one, 1.3 h."""
    config = configure(game="Pong", preset="paper", device="cuda", num_envs=8, env_groups=2)
    rows = [line.strip("|").split("|") for line in measures_table(config, PONG, "a100").splitlines()[2:]]
    minutes = [float(row[1]) for row in rows]
    assert minutes == sorted(minutes, reverse=True)
    assert minutes[0] / 60 == pytest.approx(1.29, abs=0.02)
    now = forecast(replace(config, compile=True), PONG, data_sheet("a100", "mixed", True))
    assert minutes[-1] == pytest.approx(60 * now.hours, abs=0.06)


@pytest.mark.parametrize(
    ("name", "sheet"),
    [("NVIDIA A100-SXM4-40GB", "a100"), ("NVIDIA A100-SXM4-80GB", "a100-80gb"), ("NVIDIA H100 80GB HBM3", "h100"),
     ("NVIDIA L4", None)],
)  # fmt: skip
def test_which_data_sheet_is_a_devices(name, sheet):
    assert known_gpu(name) == sheet


def test_calibration_measures_the_trials_and_corrects_the_forecast(monkeypatch):
    """A CPU stands for the GPU. A rate is the trial's operations by its time; twice as fast everywhere, and the
    forecast's own work takes half as long."""
    clock = {"seconds": 0.02}
    monkeypatch.setattr("psdrl.cost.devices.best", lambda call: call() or clock["seconds"])
    config = configure(game="Pong", preset="debug", device="cpu", eval_every=0)
    slow, first, _ = calibration.calibrate(torch.device("cpu"), config, PONG)
    trials = PsdrlWorkload(config, PONG).trials()
    assert slow.data["flops"] == pytest.approx(trials["flops"].flops / 0.02)
    assert slow.data["gradient"] == pytest.approx(trials["gradient"].flops / 0.02)
    assert slow.data["launch"] == slow.data["gap"] == pytest.approx(0.02 / 200)
    assert slow.data["bandwidth"] == pytest.approx(2 * 2**24 / 0.02)
    clock["seconds"] = 0.01
    _, second, _ = calibration.calibrate(torch.device("cpu"), config, PONG)
    for phase in ("autoencoder", "forward", "value", "acting"):
        assert second.data["seconds"][phase] == pytest.approx(first.data["seconds"][phase] / 2), phase
    assert "by these rates" in first.detail
