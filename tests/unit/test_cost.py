"""The arithmetic of the cost model."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from psdrl import configure
from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.agents.psdrl.lookahead.factored import fold
from psdrl.cost.devices import Device, data_sheet
from psdrl.cost.forecast import forecast, hours_table, interaction, update_steps
from psdrl.cost.sizes import Sizes
from psdrl.cost.work import Loop, Work, act_work, memory, update_work
from psdrl.envs.vector import EnvSpec
from psdrl.replay.episodes import Replay

PONG = EnvSpec("Pong", "image", (1, 64, 64), "uint8", 6, "none")
SLOW = Device("test", 1e9, 1e9, 1e9, 1e9, 1e9, 1e-6, measured=True)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("paper", {}),
        ("cpu", {}),
        ("debug", {}),
        ("debug", {"value": {"networks": 3}}),
        ("debug", {"forward": {"skip": True}}),
    ],
)
def test_parameters_are_those_of_the_networks(name, settings):
    config = configure(game="Pong", preset=name, device="cpu", **settings)
    sizes = Sizes.of(config, PONG)
    models = PsdrlAgent(config, PONG).models
    for part, module in {
        "autoencoder": models.autoencoder,
        "forward": models.forward_model,
        "termination": models.termination,
        "value": models.value,
    }.items():
        weights = sum(p.numel() for p in module.parameters() if p.ndim > 1)  # biases are left out
        assert sizes.parameters[part] == weights, part
    assert sizes.latent == models.autoencoder.latent_size


@pytest.mark.parametrize("skip", [False, True])
def test_the_folded_lookahead_has_the_multiply_adds_that_are_counted(skip):
    """Per row of a product with a matrix as many as it has entries; what an action adds to a sum is none."""
    agent = PsdrlAgent(configure(game="Pong", preset="debug", device="cpu", forward={"skip": skip, "layers": 4}), PONG)
    sizes, model = Sizes.of(agent.config, PONG), fold(agent.models.forward_model, agent.model)
    assert sizes.state == model.state.numel() + model.recurrent.numel()
    inner = sum(weight.numel() for weight, _ in model.hidden)
    assert sizes.forward_model.action == model.first.numel() + inner + model.output.numel() + model.direct.numel()


def test_multiply_adds_of_the_paper():
    """Millions per row: encoder 30.5, autoencoder 61, forward model 29.7, termination 7.1, value 21."""
    sizes = Sizes.of(configure(game="Pong", preset="paper", device="cpu"), PONG)
    counts = [sizes.encoder, sizes.autoencoder, sizes.forward, sizes.termination, sizes.value]
    assert [count / 1e6 for count in counts] == pytest.approx([30.5, 61, 29.7, 7.1, 21], rel=0.01)
    # Factored and folded: W4 (2292 x 2292) is gone, z enters the first layer once per state.
    assert sizes.forward_model.action == 756 * 2292 + 2 * 2292 * 2292 + 2292 * 1537


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
    assert data_sheet("a100").flops64 == 0.5 * 19.5e12, "on tensor cores"
    for graphs in (False, True):
        launching = FREE._replace(launch=1.0, graphs=graphs)
        assert paper_phase("posterior", launching, 5000) == pytest.approx(14 * 1000 + 50)


def test_acting_reads_every_weight():
    config = configure(game="Pong", preset="paper", device="cpu", num_envs=8, env_groups=2)
    weights = 8_718_768 + 15_762_084 + 7_079_424 + 21_015_348
    weights += (16 * (48 + 48 * 96 + 96 * 192 + 192 * 384) + 16 * (384 * 192 + 192 * 96 + 96 * 48) + 25 * 48) // 2
    act = act_work(config, PONG)
    assert act.seconds(STREAM) == pytest.approx(4 * weights)
    assert act.seconds(STREAM._replace(item=2)) == pytest.approx((2 + 6) * weights)
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
    """Three precisions for 6 and 18 actions, four columns; the numbers are the forecasts'."""
    config = configure(game="Pong", preset="paper", device="cpu")
    text = hours_table(config, PONG, "a100")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    assert rows[0] == ["precision", "actions", "eager", "compile", "CUDA graphs", "both"]
    assert [row[:2] for row in rows[2:]] == [[p, n] for n in ("6", "18") for p in ("fp32", "tf32", "bf16")]
    assert float(rows[3][2]) == pytest.approx(forecast(config, PONG, data_sheet("a100")).hours, abs=0.005)
    best = forecast(replace(config, compile=True), replace(PONG, num_actions=18), data_sheet("a100", "fp32", True))
    assert float(rows[5][5]) == pytest.approx(best.hours, abs=0.005)
    assert "Predicted, not measured" in text


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


@pytest.mark.parametrize("episodes", [1, 3])
def test_forecast_of_evaluation(episodes):
    """A million steps, evaluated every 10,000: 100 evaluations of episodes of 2,000 steps, 1 ms each in Pong. On this
    device acting takes no time."""
    config = configure(game="Pong", preset="paper", device="cpu", eval_episodes=episodes, num_envs=4, env_groups=2)
    assert forecast(config, PONG, FREE).seconds["evaluation"] == pytest.approx(100 * episodes * 2000 * 1e-3)
    assert forecast(config, PONG, FREE, episode=500).seconds["evaluation"] == pytest.approx(100 * episodes * 500e-3)
    assert "evaluation" not in forecast(replace(config, eval_every=0), PONG, FREE).seconds


def test_command_line(cli_run):
    """Hours of one prediction, or the table; measures that only a GPU has are refused here."""
    paper = ("cost", "--game", "Pong", "--preset", "paper")
    one = cli_run("psdrl", *paper, "--device", "a100", "--precision", "bf16", "--compile", "--cuda-graphs")
    assert (one.code, "PREDICTION" in one.out, "35%" in one.out) == (0, True, True)
    groups = ("--num-envs", 8, "--env-groups", 2)
    table = cli_run("psdrl", *paper, "--device", "h100", "--table", *groups)
    assert table.code == 0
    assert "on h100, 8 environment(s) in 2 group(s)" in table.out
    assert sum(line.startswith("| ") for line in table.out.splitlines()) == 8
    refused = cli_run("psdrl", *paper, "--table")
    assert refused.code != 0
    assert "--table is about GPUs" in refused.err


@pytest.mark.parametrize("transitions", [300, 3000])
def test_states_drawn_again_are_not_predicted_again(transitions):
    """Of 20 batches of 16 x 10 states as many differ as the cost model says; it counts the lookahead only for those."""
    batches = {"batch": 16, "length": 10}
    kinds = {
        start: configure(game="Pong", preset="debug", value={"start": start, "iterations": 20}, replay=batches)
        for start in ("zero", "episode")
    }
    replay = Replay(transitions, 1, (1,), "float32")
    replay.start(0, np.zeros(1))
    for t in range(transitions):
        replay.add(0, 0, 0.0, np.zeros(1), t == transitions - 1, False)
    rng = np.random.default_rng(0)
    drawn = torch.stack([replay.sample(16, 10, rng).slots[:, :-1] for _ in range(20)])
    share = len(drawn.unique()) / drawn.numel()
    flops = {start: update_work(config, PONG, transitions)["value"].total for start, config in kinds.items()}
    s = Sizes.of(kinds["zero"], PONG)
    lookahead = 2 * drawn.numel() * (s.state + s.actions * (s.forward_model.action + s.termination))
    assert flops["zero"] - flops["episode"] == pytest.approx((1 - share) * lookahead, rel=0.05)


def test_without_memory_planning_is_within_episodes():
    """h is zero wherever a sequence starts, so both starts are the same work and take the same memory."""
    settings = [{"start": start, "iterations": 20} for start in ("zero", "episode")]
    zero, episode = (
        configure(game="Pong", preset="debug", value=value, forward={"recurrent": 0}) for value in settings
    )
    assert update_work(zero, PONG, 300) == update_work(episode, PONG, 300)
    assert memory(zero, PONG)["predictions"] == memory(episode, PONG)["predictions"] > 0
