"""CUDA graphs by a stand-in for torch.cuda: updates and actions replayed from graphs equal eager ones."""

import gc
import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from psdrl.agents.psdrl import planning, regression
from psdrl.agents.psdrl.acting import Actor
from psdrl.agents.psdrl.synthetic import debug_agent
from psdrl.runtime.graphs import MOST_SHAPES, WARM_UP, Captured
from tests.kernels.agents import SIZES, close, same
from tests.recorder import CudnnRules, StandIn, stand_in, with_graphs


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_captured_updates_equal_eager_ones(sizes):
    eager, captured = (debug_agent("fast", torch.float64, **sizes) for _ in range(2))
    recording = with_graphs(captured)
    for _ in range(3):
        losses = eager.update(), captured.update()
        same(eager, captured)
        for name, value in losses[0].items():
            if not name.startswith("time/"):
                assert losses[1][name] == pytest.approx(value, rel=1e-9, abs=1e-12), name
    assert recording.calls.count("capture") == len(recording.all_graphs) == len(recording.graphs) + 1
    assert all(graph.recorder.operations for graph in recording.graphs), "a graph of the GPU that trains, not of GPU 0"
    steps: dict[str, Any] = captured.execution._steps
    assert not any(step.failed for step in steps.values())
    replays = sum(graph.replays for graph in recording.graphs)
    assert replays >= 3 * len(recording.graphs), "graphs are made once and used again"


def test_blocks_and_their_remainders_are_graphs_of_their_own():
    """L = 10 in blocks of 4 leaves one of 2; windows of 4 leave one of 2; captured once each."""
    agent = debug_agent("fast", torch.float64, **SIZES["image"], value={"target_every": 4})
    with_graphs(agent)
    agent.update()
    agent.update()
    steps: dict[str, Any] = agent.execution._steps
    assert set(steps) == {"autoencoder", "window", "scan", "value"}
    assert {name: len(step.recorded) for name, step in steps.items()} == {
        "autoencoder": 1,
        "window": 2,
        "scan": 1,
        "value": 2,
    }


def test_the_windows_have_two_branches(monkeypatch):
    """That they are joined the stand-in sees itself: unjoined work cannot be captured."""
    agent = debug_agent("fast", torch.float64, **SIZES["vector"])
    with_graphs(agent)
    primitives, forks = agent.execution.primitives, []
    assert primitives is not None
    fork = primitives.fork

    def counted():
        forks.append(primitives)
        return fork()

    monkeypatch.setattr(primitives, "fork", counted)
    agent.update()
    assert forks
    assert not agent.execution.failures


@pytest.mark.parametrize("kind", ["image", "vector"])
def test_an_eager_update_keeps_cudnns_rules(kind):
    agent = debug_agent("fast", torch.float64, **SIZES[kind])
    with CudnnRules():
        agent.update()


def test_cudnns_rules_refuse_a_gradient_in_evaluation_mode():
    """A check of the check."""
    gru = nn.GRU(3, 4)
    for train in (True, False):
        gru.train(train)
        with CudnnRules():
            out = gru(torch.randn(5, 2, 3))[0].sum()
        if train:
            out.backward()
        else:
            with pytest.raises(RuntimeError, match="training mode"):
                out.backward()


@pytest.mark.parametrize("kind", ["image", "vector"])
def test_captured_actions_equal_eager_ones(kind):
    """Also after updates, which move the sampled model; and with random actions, which advance the generator."""
    eager, captured = (debug_agent("fast", torch.float64, **SIZES[kind]) for _ in range(2))
    recording = with_graphs(captured)
    eager.actors = [Actor(eager, eager.config.num_envs, 1)]
    frames = eager.replay.observations[:12].numpy()
    for round_ in range(3):
        for t in range(4):
            observation = frames[4 * round_ + t][None].repeat(eager.config.num_envs, 0)
            expected = eager.actor.act(observation, 0.3)
            assert np.array_equal(captured.actor.act(observation, 0.3), expected)
            close(captured.actor.hidden, eager.actor.hidden)
        if round_ < 2:
            eager.update()
            captured.update()
    run: Any = captured.actor.seat.run
    assert not run.failed
    assert recording.graphs[0].replays == 12, "the actor's graph is captured once and serves every model"


def test_the_plain_path_acts_on_the_newest_model_with_graphs_on():
    """It reads the sampled model itself, which moves with every draw: a graph would keep the old one."""
    eager, captured = (debug_agent("plain", torch.float64, **SIZES["vector"]) for _ in range(2))
    with_graphs(captured)
    eager.actors = [Actor(eager, eager.config.num_envs, 1)]
    frames = eager.replay.observations[:8].numpy()
    for t in range(8):
        observation = frames[t][None].repeat(eager.config.num_envs, 0)
        assert np.array_equal(captured.actor.act(observation, 0.0), eager.actor.act(observation, 0.0))
        close(captured.actor.hidden, eager.actor.hidden)
        if t == 3:
            for agent in (eager, captured):
                agent.model = agent.draw()


def test_evaluations_share_a_graph():
    """Three of them, each with a new player: one graph, the generator seeded anew; two at a time need two."""
    eager, captured = (debug_agent("fast", torch.float64, **SIZES["vector"]) for _ in range(2))
    recording = with_graphs(captured)
    frames = eager.replay.observations[:4].numpy()
    for stream in range(3):
        mine, other = (agent.player(stream, epsilon=0.5) for agent in (captured, eager))
        for frame in frames:
            assert mine.act(frame[None]) == other.act(frame[None])
        close(mine.hidden, other.hidden)
        del mine
        eager.update()
        captured.update()
    acted = [graph for graph in recording.graphs if graph.generators]
    assert [graph.replays for graph in acted] == [3 * len(frames)]
    first, second = captured.player(0), captured.player(1)
    assert first.seat is not second.seat


def test_a_step_keeps_a_bounded_number_of_graphs():
    """The one that was not used for the longest time goes."""
    captured = Captured("add", lambda x: (x + 1,), tuple, stand_in()[0])
    for size in [*range(1, MOST_SHAPES + 1), 1, MOST_SHAPES + 1]:
        assert torch.equal(captured(torch.zeros(size))[0], torch.ones(size))
    shapes = [key[0][0][0] for key in captured.recorded]
    assert sorted(shapes) == [1, *range(3, MOST_SHAPES + 2)]


def test_a_resumed_agent_captures_again():
    eager, captured = (debug_agent("fast", torch.float64, **SIZES["vector"]) for _ in range(2))
    with_graphs(captured)
    for agent in (eager, captured):
        agent.update()
        agent.load_state_dict(agent.state_dict())
        agent.update()
    same(eager, captured)


def test_fresh_value_with_graphs():
    eager, captured = (debug_agent("fast", torch.float64, **SIZES["vector"], algo="fresh-value") for _ in range(2))
    with_graphs(captured)
    for _ in range(2):
        eager.update()
        captured.update()
    same(eager, captured)


def counter():
    total = torch.zeros(3)

    def step(x):
        total.add_(x)
        return (total * 2,)

    return total, step


def test_warm_up_leaves_no_trace_and_results_are_copies():
    total, step = counter()
    primitives, recording = stand_in()
    captured = Captured("count", step, lambda: [total], primitives)
    (first,) = captured(torch.ones(3))
    (second,) = captured(torch.ones(3))
    assert torch.equal(first, torch.full((3,), 2.0))
    assert torch.equal(second, torch.full((3,), 4.0))
    assert torch.equal(total, torch.full((3,), 2.0))
    assert recording.calls == ["capture", "capture"], "one of them keeps the pool"


def test_a_new_shape_is_captured_anew():
    calls = []

    def step(x):
        calls.append(x.shape)
        return (x + 1,)

    captured = Captured("add", step, tuple, stand_in()[0])
    for size in (2, 3, 2, 3):
        assert torch.equal(captured(torch.zeros(size))[0], torch.ones(size))
    assert len(calls) == 2 * (WARM_UP + 1)


def test_a_new_dtype_is_captured_anew():
    """A third does not fit into the buffer of integers, nor 2^24 + 1 into that of float32."""
    captured = Captured("add", lambda x: (x + 1,), tuple, stand_in()[0])
    inputs = [torch.tensor([2, 3]), torch.tensor([1 / 3, 0.0]), torch.tensor([2**24, 1 / 3], dtype=torch.float64)]
    for x in inputs * 2:
        (result,) = captured(x)
        assert result.dtype == x.dtype
        assert torch.equal(result, x + 1)
    assert len(captured.recorded) == 3


@pytest.mark.parametrize(
    "broken",
    [
        lambda x: (x * float(x.sum()),),  # reads a number
        lambda x: (x[x > 0],),  # its shape depends on numbers
        lambda x: (x + torch.rand(2, generator=torch.Generator()),),  # an unregistered generator
    ],
    ids=["item", "mask", "generator"],
)
def test_what_cannot_be_captured_runs_eagerly_and_says_so(broken, caplog):
    captured = Captured("broken step", broken, tuple, stand_in()[0])
    with caplog.at_level(logging.WARNING, "psdrl.runtime.graphs"):
        for _ in range(2):
            captured(torch.ones(2))
    assert captured.failed
    assert len(caplog.records) == 1
    assert "broken step runs without a CUDA graph" in caplog.text


def test_the_recorder_catches_a_step_that_keeps_state_in_python():
    """A check of the check: what a real graph would get wrong is wrong here too."""
    held = {"scale": 1.0}
    captured = Captured("python state", lambda x: (x * held["scale"],), tuple, stand_in()[0])
    captured(torch.ones(1))
    held["scale"] = 5.0
    assert captured(torch.ones(1))[0].item() == 1.0


def test_an_error_of_the_step_itself_is_not_hidden():
    def step(x):
        raise ValueError("wrong shape")

    with pytest.raises(ValueError, match="wrong shape"):
        Captured("step", step, tuple, stand_in()[0])(torch.ones(1))


def spoil(x):
    return (x * float(x.sum()),)


def test_a_capture_that_fails_half_way_leaves_the_stream():
    primitives, recording = stand_in()
    first = Captured("broken", spoil, tuple, primitives)
    (y,) = first(torch.ones(2))
    assert torch.equal(y, torch.full((2,), 2.0))
    assert recording.streams == recording.default
    assert recording.device_index == 0
    second = Captured("sound", lambda x: (x + 1,), tuple, primitives)
    assert torch.equal(second(torch.ones(2))[0], torch.full((2,), 2.0))
    assert not second.failed


def test_a_warm_up_that_fails_leaves_no_trace(caplog):
    """It fails once, as where memory is short; then the step runs eagerly."""
    total, failures = torch.zeros(2), ["out of memory"]
    generator = torch.Generator().manual_seed(1)

    def step(x):
        total.add_(x)
        noise = torch.rand(2, generator=generator)
        if failures:
            raise RuntimeError(failures.pop())
        return (total + noise,)

    expected = torch.rand(2, generator=torch.Generator().manual_seed(1)) + 1
    captured = Captured("step", step, lambda: [total], stand_in()[0], (generator,))
    assert torch.equal(captured(torch.ones(2))[0], expected)
    assert captured.failed
    assert "out of memory" in caplog.text


def test_graphs_may_all_die_and_others_follow():
    """A pool that loses its last graph is refused by torch."""
    primitives, recording = stand_in()
    for _ in range(2):
        captured = Captured("add", lambda x: (x + 1,), tuple, primitives)
        captured(torch.ones(2))
        assert not captured.failed
        recording.all_graphs.clear()
        del captured
        gc.collect()


def test_the_stand_in_behaves_as_torch():
    """torch.cuda.graph captures nothing of a device that is not current, and keeps its stream after a failure."""
    cuda = StandIn()
    graph, pool = cuda.CUDAGraph(), cuda.graph_pool_handle()
    with cuda.graph(graph, pool):
        torch.ones(2) + 1
    assert graph.recorder is not None
    assert graph.recorder.operations == []
    cuda = StandIn(home=0)
    with pytest.raises(RuntimeError, match="previous error"), cuda.graph(cuda.CUDAGraph(), cuda.graph_pool_handle()):
        spoil(torch.ones(2))
    assert cuda.streams != cuda.default


@pytest.mark.parametrize("kind", ["image", "vector"])
def test_an_update_reads_numbers_back_only_at_its_end(kind, monkeypatch):
    """What only a CPU asks, which need not wait for itself, aside."""
    monkeypatch.setattr(regression, "sparse", lambda targets: False)
    monkeypatch.setattr(planning, "idle_inputs", lambda *args: None)

    class Order(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    agent = debug_agent("fast", torch.float32, **SIZES[kind])
    with Order() as order:
        agent.update()
    first = order.names.index("aten::_local_scalar_dense")
    assert "aten::mm" in order.names[:first]
    assert set(order.names[first:]) <= {"aten::_local_scalar_dense"}
