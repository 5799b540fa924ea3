"""The fast path against the plain one, phase by phase and over whole updates, from the same state."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bench import published
from bench.parity import distance, parameters, run_phase
from psdrl.agents import registry
from psdrl.agents.psdrl import idle, learning, memory, oracle, planning, rollout
from psdrl.agents.psdrl.lookahead import Happened
from psdrl.agents.psdrl.narrow import Narrow
from psdrl.agents.psdrl.synthetic import SPECS, add_episode, agent_of, debug_agent
from psdrl.runtime.execution import Execution
from tests.helpers import GRID, GRID_INPUTS, INPUTS, fast_lookahead

CASES: dict[str, dict[str, Any]] = {
    "image-3-actions": {"actions": 3},
    "one-action": {"kind": "vector", "actions": 1},
    "18-actions-tiny-chunks": {"actions": 18, "chunk_rows": 5},
    "tanh-features-odd-blocks": {
        "actions": 2,
        "chunk_rows": 29,
        "forward": {"features": "tanh", "layers": 4, "iterations": 2},
        "value": {"target_every": 3, "iterations": 2},
    },
    "one-sequence": {"kind": "vector", "actions": 4, "replay": {"batch": 1, "length": 7}},
    "episodes-of-one-step": {"actions": 2, "lengths": (1, 1, 1)},
    "length-not-divisible": {"actions": 5, "lengths": (1, 5, 40, 3), "replay": {"batch": 3, "length": 10}},
    "blocks-longer-than-chunks": {"actions": 6, "chunk_rows": 50, "value": {"target_every": 40, "iterations": 2}},
    "mean-reduction": {"actions": 3, "released": ("mean-loss",)},
    "posterior-mean": {"actions": 3, "posterior": {"rule": "mean"}},
    "no-sampling": {"actions": 3, "algo": "egreedy-exploit"},
    "fresh-value": {"actions": 3, "algo": "fresh-value"},
    "two-environments": {"actions": 3, "num_envs": 2},
    "standardised-latents": {"actions": 3, "standardise": True},
    "standardised-vectors": {"kind": "vector", "standardise": True},
    "automatic-reward-weight": {"actions": 3, "forward": {"reward_weight": 0}},
    "sequences-within-their-episodes": {"actions": 3, "chunk_rows": 40, "value": {"sweep": "episode"}},
    "against-time": {"actions": 3, "chunk_rows": 40, "value": {"sweep": "backward", "target_every": 4}},
    "no-planning": {"actions": 3, "value": {"sweep": "episode", "iterations": 0}},
    "weighted-ends": {"actions": 3, "termination": {"weight": 7.0}, "replay": {"ends": "even"}},
    "ends-of-predictions": {"actions": 3, "termination": {"weight": 4.0, "predicted": True}},
    "averaged-targets": {"actions": 3, "value": {"target_rate": 0.3, "target_every": 3, "iterations": 2}},
    "two-value-networks": {
        "actions": 3,
        "chunk_rows": 40,
        "value": {"networks": 2, "random_share": 0.2, "target_rate": 0.3, "target_every": 3, "iterations": 2},
    },
    "hindsight": {"actions": 3, "chunk_rows": 40, "value": {"hindsight": True, "iterations": 2}},
    "hindsight-within-episodes": {
        "actions": 3,
        "chunk_rows": 40,
        "value": {"hindsight": True, "sweep": "backward", "networks": 2, "random_share": 0.2, "target_every": 3},
    },
    "hindsight-no-memory": {
        "kind": "vector",
        "different": 4,
        "forward": {"recurrent": 0},
        "value": {"hindsight": True, "iterations": 2},
    },
    "hindsight-grid": {"kind": "grid", **GRID, "value": {"hindsight": True, "sweep": "episode"}},
    "traces": {"actions": 3, "chunk_rows": 40, "value": {"trace": 0.7, "target_every": 3, "iterations": 2}},
    "traces-in-hindsight": {
        "actions": 3,
        "chunk_rows": 40,
        "value": {"trace": 0.9, "hindsight": True, "sweep": "episode", "target_rate": 0.3, "iterations": 2},
    },
    "inputs": {"actions": 3, "chunk_rows": 40, "forward": INPUTS},
    "inputs-one-tanh-layer": {"kind": "vector", "forward": {**INPUTS, "layers": 2}},
    "no-tanh-layer": {"kind": "vector", "forward": {"layers": 2}},
    "grid": {"kind": "grid", **GRID},
    "grid-inputs": {"kind": "grid", "chunk_rows": 40, "grid": True, "forward": {**INPUTS, "layers": 4}},
    "grid-one-layer": {"kind": "grid", "grid": True, "forward": {"features": "tanh", "layers": 2}},
    "grid-of-an-autoencoder": {
        "autoencoder": {"latent": 0},
        **GRID_INPUTS,
        "termination": {"weight": 3.0, "predicted": True},
        "standardise": True,
    },
    "grid-released": {"kind": "grid", **GRID, "posterior": {"rule": "released"}},
    "grid-no-sampling": {"kind": "grid", **GRID, "algo": "egreedy-exploit"},
    "narrow": {"kind": "vector", "forward": {"units": 3, "recurrent": 2, **INPUTS}},
    "narrow-without-inputs": {
        "kind": "vector",
        "forward": {"units": 3, "recurrent": 2, "features": "tanh"},
        "value": {"sweep": "episode", "networks": 2, "random_share": 0.3, "target_rate": 0.5, "layers": 2},
    },
    "narrow-in-hindsight": {
        "kind": "vector",
        "actions": 3,
        "forward": {"units": 3, "recurrent": 2, **INPUTS},
        "value": {"sweep": "episode", "networks": 2, "hindsight": True, "trace": 0.8, "iterations": 2},
    },
    "narrow-in-hindsight-from-zero": {
        "kind": "vector",
        "chunk_rows": 7,
        "forward": {"units": 3, "recurrent": 2, "features": "tanh"},
        "value": {"hindsight": True},
    },
    "no-memory": {"kind": "vector", "different": 4, "forward": {"recurrent": 0}},
    "no-memory-overwritten": {
        "kind": "vector",
        "different": 4,
        "forward": {"recurrent": 0},
        "replay": {"capacity": 50},
    },
    "no-memory-nothing-repeats": {"chunk_rows": 7, "forward": {"recurrent": 0, **INPUTS}},
    "no-memory-images-against-time": {
        "different": 5,
        "chunk_rows": 7,
        "forward": {"recurrent": 0},
        "value": {"sweep": "backward", "iterations": 2},
    },
    "no-memory-merged": {
        "kind": "vector",
        "different": 4,
        "forward": {"recurrent": 0},
        "termination": {"weight": 4.0, "predicted": True},
        "value": {"sweep": "backward", "target_every": 1, "networks": 2, "iterations": 2},
        "replay": {"batch": 40},
    },
    "no-memory-grid": {"kind": "grid", "different": 3, "grid": True, "forward": {**INPUTS, "recurrent": 0}},
    "no-memory-released": {
        "kind": "vector",
        "different": 4,
        "forward": {"recurrent": 0},
        "posterior": {"rule": "released"},
    },
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_updates_agree_in_float64(case):
    plain, fast = debug_agent("plain", torch.float64, **case), debug_agent("fast", torch.float64, **case)
    for _ in range(3):
        plain_metrics, fast_metrics = plain.update(), fast.update()
    for name, tensor in parameters(fast).items():
        assert distance(tensor, parameters(plain)[name]) < 1e-9, name
    for name, value in plain_metrics.items():
        if name.startswith(("loss/", "posterior/")):
            # The jitter is zero and a predictive deviation loses half the digits to its square root.
            assert fast_metrics[name] == pytest.approx(value, rel=1e-7, abs=1e-12), name


def updated_counting_predictions(monkeypatch):
    """The agent of the fast path after an update that the plain one confirms, and the states of each prediction."""
    case: dict[str, Any] = {"value": {"sweep": "episode", "iterations": 5, "target_every": 3}, "chunk_rows": 40}
    plain, fast = debug_agent("plain", torch.float64, **case), debug_agent("fast", torch.float64, **case)
    rows, predict = [], planning.predict

    def counted(*args):
        rows.append(len(args[2]))
        return predict(*args)

    monkeypatch.setattr(planning, "predict", counted)
    plain.update(), fast.update()
    for name, tensor in parameters(fast).items():
        assert distance(tensor, parameters(plain)[name]) < 1e-9, name
    return fast, rows


@pytest.mark.parametrize("table", [2**29, 10_000, 1], ids=["all batches", "some batches", "one batch"])
def test_each_state_is_predicted_once_as_far_as_memory_goes(table, monkeypatch):
    monkeypatch.setattr(rollout, "TABLE_BYTES", table)
    monkeypatch.setattr(rollout, "UNIT", 1)
    fast, rows = updated_counting_predictions(monkeypatch)
    drawn, stored = 5 * 4 * 9, fast.replay.transitions
    assert stored / 2 < sum(rows) <= stored if table == 2**29 else stored < sum(rows) < drawn
    assert max(rows) <= 40 // 3


def test_states_are_predicted_in_few_sizes(monkeypatch):
    """For every other number of rows oneDNN would make code, and keep it."""
    monkeypatch.setattr(rollout, "UNIT", 4)
    _, rows = updated_counting_predictions(monkeypatch)
    assert len(rows) > 2
    assert all(n in (4, 8, 12) for n in rows)


@pytest.mark.parametrize("hidden", [0, 2])
@pytest.mark.parametrize("networks", [1, 2])
def test_inputs_that_are_always_zero_are_left_out(hidden, networks, monkeypatch):
    """Six of 200 one-hot states, then others: V and Adam's numbers are those of the plain path after each update."""
    value = {"networks": networks, "units": 9, "sweep": "backward", "target_rate": 0.3, "target_every": 2}
    left_out = []
    found = idle.Idle.found

    def noted(*args):
        result = found(*args)
        left_out.append(0 if result is None else len(result.unused))
        return result

    monkeypatch.setattr(idle.Idle, "found", noted)
    agents = []
    for path in ("plain", "fast"):
        config = registry.configure(
            env="synthetic",
            preset="debug",
            update_path=path,
            device="cpu",
            forward={"recurrent": hidden, "units": 210},
            value={**value, "iterations": 3},
            replay={"batch": 20},
        )
        agents.append(agent_of(config, replace(SPECS["vector"], shape=(200,)), torch.float64))
    for states in (range(6), range(3, 60, 10), range(100, 180)):
        for agent in agents:
            add_episode(agent.replay, np.random.default_rng(0), 90, pool=np.eye(200, dtype=np.float32)[[*states]])
            agent.update()
        plain, fast = agents
        for name, tensor in parameters(fast).items():
            assert distance(tensor, parameters(plain)[name]) < 1e-9, name
        for one, other in zip(*(agent.optimisers["value"].state.values() for agent in agents), strict=True):
            assert all(distance(other[name], one[name]) < 1e-9 for name in ("step", "exp_avg", "exp_avg_sq"))
    size = agents[0].models.forward_model.hidden_size
    assert left_out == [136 + size, 136 + size, 72 + size]


def test_equal_transitions_of_a_window_are_merged(monkeypatch):
    agent = debug_agent("fast", torch.float64, **CASES["no-memory-merged"])
    rows, loss = [], learning.window_loss

    def counted(model, latents, *others, **options):
        rows.append(latents.shape[:2])
        return loss(model, latents, *others, **options)

    monkeypatch.setattr(learning, "window_loss", counted)
    agent.update()
    window, batch = agent.config.forward.window, agent.config.replay.batch
    assert all(length == 2 and size < 0.7 * window * batch for length, size in rows[:-1])


@pytest.mark.parametrize("phase", ["autoencoder", "forward", "posterior", "value"])
def test_float32_is_as_exact_as_the_plain_path(phase):
    # At these widths rounding errors average out enough for a ratio of two of them to mean something.
    sizes: dict[str, Any] = {
        "actions": 6,
        "lengths": (40, 60, 25),
        "forward": {"units": 64, "recurrent": 32, "layers": 4},
        "value": {"units": 64},
        "replay": {"batch": 16, "length": 22},
        "posterior": {"prior": (1.0, 1.0)},
    }
    exact = run_phase(debug_agent("plain", torch.float64, **sizes), phase)
    plain = run_phase(debug_agent("plain", torch.float32, **sizes), phase)
    fast = run_phase(debug_agent("fast", torch.float32, **sizes), phase)
    for name, tensor in exact.items():
        allowed = 2 * distance(plain[name], tensor)
        assert distance(fast[name], tensor) <= allowed, (name, allowed)


@pytest.mark.parametrize(("actions", "steps"), [(1, 1), (2, 1), (6, 1), (18, 1), (1, 3), (2, 4), (6, 3), (18, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_lookahead_agrees(actions, steps, dtype):
    value = {"discount": 0.9, "lookahead": steps, "networks": 2}
    sizes: dict[str, Any] = {"forward": {"units": 50, "recurrent": 23}, "value": value}
    agent = debug_agent("fast", dtype, actions=actions, **sizes)
    models = agent.models
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(13, models.autoencoder.latent_size, generator=generator).to(dtype)
    h = torch.randn(13, 23, generator=generator).to(dtype)
    arguments = (models, agent.model, models.value, z, h)
    other = debug_agent("fast", torch.float64, actions=actions, **sizes)
    with torch.no_grad():
        exact = oracle.lookahead(other.models, other.model, other.models.value, z.double(), h.double(), steps)
        plain, fast = oracle.lookahead(*arguments, steps), fast_lookahead(*arguments)
        if steps == 1:
            torch.testing.assert_close(published.lookahead(*arguments), plain)  # what bench/ compares with
            real = Happened(
                torch.arange(13) % actions, h @ z.new_ones(23, z.shape[1]), z[:, 0], (z[:, 1] > 0).to(dtype)
            )
            known = oracle.lookahead(*arguments, happened=real)
            torch.testing.assert_close(published.lookahead(*arguments, happened=real), known)
    assert fast.hidden.shape == (13, actions, 23)
    for name in ("returns", "hidden"):
        error = distance(getattr(fast, name), getattr(exact, name))
        allowed = 1e-9 if dtype == torch.float64 else 2 * distance(getattr(plain, name), getattr(exact, name))
        assert error <= allowed, name


@pytest.mark.parametrize(
    ("num_envs", "steps", "kind"), [(1, 1, {}), (3, 1, {}), (2, 3, {}), (2, 3, CASES["grid-inputs"])]
)
def test_acting_agrees(num_envs, steps, kind):
    case: dict[str, Any] = {"actions": 6, **kind, "num_envs": num_envs, "value": {"lookahead": steps}}
    agents = [debug_agent(path, torch.float64, **case) for path in ("plain", "fast")]
    for agent in agents:
        agent.update()
    rng, stored = np.random.default_rng(0), agents[0].replay.observations.numpy()
    for _ in range(5):
        observations = rng.choice(stored, num_envs)
        chosen = [agent.actor.act(observations, 0.2).tolist() for agent in agents]
        assert chosen[0] == chosen[1]
        assert distance(agents[1].actor.hidden, agents[0].actor.hidden) < 1e-9


def test_each_frame_is_encoded_once_per_update(monkeypatch):
    agent = debug_agent("fast", torch.float32, chunk_rows=7)
    encoded = []
    latents = agent.models.autoencoder.latents

    def counting(frames):
        encoded.append(len(frames))
        return latents(frames)

    monkeypatch.setattr(agent.models.autoencoder, "latents", counting)
    agent.update()
    assert sum(encoded) == sum(episode.length + 1 for episode in agent.replay.episodes)
    assert max(encoded) <= 7


def test_encoded_buffer_is_right_in_every_stored_slot():
    agent = debug_agent("fast", torch.float64)
    table = learning.encode_buffer(agent.models, agent.replay, Execution(agent.device, chunk_rows=4))
    for slot in agent.replay.stored_slots():
        with torch.no_grad():
            expected = agent.models.autoencoder.encode(agent.replay.frames(slot)[None])[0]
        torch.testing.assert_close(table[slot], expected, rtol=1e-12, atol=1e-12)


def test_a_new_sample_is_folded_anew():
    """The folded weights live on the sample: a stale fold would plan in the previous model."""
    agent = debug_agent("fast", torch.float64)
    agent.update()
    first = agent.models.forward_model.fold(agent.model)
    agent.update()
    second = agent.models.forward_model.fold(agent.model)
    torch.testing.assert_close(second.recurrent, agent.models.forward_model.gru.weight_hh)
    assert not torch.equal(first.output, second.output)


@pytest.mark.parametrize("case", [name for name in CASES if name.startswith("narrow")])
def test_narrow_predictions_serve_where_they_are_narrower(case, monkeypatch):
    asked, values = [], Narrow.values

    def counted(*args):
        asked.append(1)
        return values(*args)

    monkeypatch.setattr(Narrow, "values", counted)
    debug_agent("fast", torch.float64, **CASES[case]).update()
    assert asked
    asked.clear()
    debug_agent("fast", torch.float64, **CASES["no-memory-nothing-repeats"]).update()
    assert not asked, "codes of 17 numbers against 9"


def test_planning_takes_the_hidden_states_of_the_posteriors_walk(monkeypatch):
    agent = debug_agent("fast", torch.float32, "vector", value={"sweep": "episode"})
    agent.updates = 1  # the first update looks for the log, and walks too
    walks, walk = [], memory.walk

    def counted(*args):
        walks.append(args)
        return walk(*args)

    monkeypatch.setattr(memory, "walk", counted)
    agent.update()
    assert len(walks) == 2, "nothing is kept before it is known that planning asks"
    agent.update()
    assert len(walks) == 3
    model, replay, latents, rows = walks[-1]
    list(model.memory.transitions(model, replay, latents, rows))
    kept = model.memory._walked[0].table
    assert torch.equal(kept, memory.Memory().hidden_states(model, replay, latents, rows))
    with torch.no_grad():
        model.gru.weight_hh.mul_(2)
    changed = model.memory.hidden_states(model, replay, latents, rows)
    assert torch.equal(changed, memory.Memory().hidden_states(model, replay, latents, rows))
    assert not torch.equal(changed, kept)
