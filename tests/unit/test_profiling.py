"""Phase times, ranges and --profile, with recording devices; and the GPU's own classes on replaced torch.cuda."""

import contextlib
import json
from contextlib import contextmanager

import pytest
import torch

from psdrl import configure
from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.envs import make_env
from psdrl.errors import UserError
from psdrl.run.checkpoint import Store
from psdrl.run.loop import train
from psdrl.runtime import profiling
from psdrl.runtime.execution import Execution
from psdrl.runtime.graphs import Cuda
from psdrl.runtime.profiling import CudaDevice, Phases, Profile

LINES = PsdrlAgent.PHASES


class Clock:
    """A device whose clock the test turns."""

    def __init__(self):
        self.now, self.calls = 0.0, []

    def mark(self):
        clock = self

        class Event:
            def record(self):
                self.at = clock.now

            def elapsed_time(self, end):
                assert "synchronise" in clock.calls, "the device is waited for before its events are read"
                return end.at - self.at

        return Event()

    @contextmanager
    def range(self, name):
        self.calls.append(f"push {name}")
        yield
        self.calls.append("pop")

    def synchronise(self):
        self.calls.append("synchronise")

    def start(self):
        self.calls.append("start")

    def stop(self):
        self.calls.append("stop")


def test_phases_are_ranges_timed_by_the_device_and_read_once():
    clock = Clock()
    seen: list[str] = []
    phases = Phases(clock, LINES, seen.append)
    for name, milliseconds in (("autoencoder", 250.0), ("value", 1500.0)):
        with phases(name):
            clock.now += milliseconds
    assert seen == ["autoencoder", "value"]
    assert phases.seconds() == {"autoencoder": 0.25, "value": 1.5}
    assert clock.calls == ["push autoencoder (line 6)", "pop", "push value (line 12)", "pop", "synchronise"]


def test_an_update_has_a_range_per_phase(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(profiling, "device_for", lambda device: clock)
    config = configure(env="deepsea-4", preset="debug", device="cpu", steps=40, eval_every=0, checkpoint_every=0)
    env = make_env(config)
    agent = PsdrlAgent(config, env.spec)
    train(agent, env)
    agent.updates = 1  # of those that log no numbers of the models
    metrics = agent.update()
    assert {name for name in metrics if name.startswith("time/")} == {f"time/{name}" for name in LINES}
    pushed = [call.removeprefix("push ") for call in clock.calls if call.startswith("push")]
    assert pushed[-len(LINES) :] == list(LINES.values())


def test_the_profile_brackets_its_updates():
    clock = Clock()
    profile = Profile(range(1, 3), clock)
    for update in range(5):
        profile.before(update)
        clock.calls.append(f"update {update}")
        profile.after(update)
    assert clock.calls == ["update 0", "start", "update 1", "update 2", "stop", "update 3", "update 4"]


def test_nothing_is_profiled_unasked():
    clock = Clock()
    profile = Profile(configure(env="deepsea-4", device="cpu").profiled, clock)
    profile.before(0)
    profile.after(0)
    profile.close()
    assert clock.calls == []


def test_a_run_that_ends_early_closes_its_profile():
    clock = Clock()
    profile = Profile(range(9), clock)
    profile.before(0)
    profile.after(0)
    profile.close()
    profile.close()
    assert clock.calls == ["start", "stop"]


@pytest.mark.parametrize("text", ["3", "3:2", "a:b", "-1:2", "2:2", ":"])
def test_a_wrong_profile_is_refused(text):
    with pytest.raises(UserError, match="START:STOP"):
        configure(env="deepsea-4", profile=text)


def test_a_cpu_run_writes_a_trace(tmp_path):
    config = configure(
        env="deepsea-4", preset="debug", device="cpu", profile="1:2", steps=24, eval_every=0, checkpoint_every=0,
        policy={"update_every": (8,)},
    )  # fmt: skip
    env = make_env(config)
    train(PsdrlAgent(config, env.spec), env, store=Store(tmp_path))
    trace = json.loads((tmp_path / "trace-1-2.json").read_text())
    names = [event.get("name") for event in trace["traceEvents"]]
    for line in LINES.values():
        assert names.count(line) == 1, line


class FakeCuda:
    """torch.cuda's events and switches, noting what is asked of them."""

    def __init__(self, monkeypatch):
        self.calls: list[str] = []
        fake = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self, stream):
                fake.calls.append(f"event on {stream}")

        class Runtime:
            cudaProfilerStart = staticmethod(lambda: fake.calls.append("profiler on"))
            cudaProfilerStop = staticmethod(lambda: fake.calls.append("profiler off"))

        for name, value in {
            "Stream": lambda device=None: f"stream of {device}",
            "current_stream": lambda device=None: f"stream of {device}",
            "Event": Event,
            "synchronize": lambda device: fake.calls.append(f"synchronize {device}"),
            "cudart": lambda: Runtime,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch.cuda.nvtx, "range", lambda name: contextlib.nullcontext())


def test_phases_of_a_gpu_are_timed_on_its_own_stream(monkeypatch):
    fake = FakeCuda(monkeypatch)
    phases = Phases(CudaDevice(torch.device("cuda", 1)), LINES)
    with phases("value"):
        pass
    assert fake.calls == ["event on stream of cuda:1"] * 2


def test_the_profilers_switch_of_a_gpu(monkeypatch):
    fake = FakeCuda(monkeypatch)
    device = CudaDevice(torch.device("cuda", 1))
    device.start()
    device.stop()
    assert fake.calls == ["synchronize cuda:1", "profiler on", "synchronize cuda:1", "profiler off"]


@pytest.mark.parametrize(("precision", "matmul"), [("fp32", "highest"), ("tf32", "high"), ("bf16", "high")])
def test_tf32_is_switched_on_for_a_gpu_only(monkeypatch, precision, matmul):
    FakeCuda(monkeypatch)
    set_to: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", set_to.append)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", precision == "fp32")
    config = configure(env="deepsea-4", device="cpu", precision=precision)
    Execution.of(config, torch.device("cpu"))
    assert set_to == []
    execution = Execution.of(config, torch.device("cuda", 0))
    assert set_to == [matmul]
    assert torch.backends.cudnn.allow_tf32 == (precision != "fp32")
    assert execution.graphs
    assert isinstance(execution.primitives, Cuda)
