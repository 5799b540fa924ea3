"""--precision bf16: what it does to planning targets, and that everything but the networks stays as it was."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.parity import parameters
from psdrl.agents.psdrl.lookahead import predict
from psdrl.agents.psdrl.synthetic import debug_agent
from psdrl.errors import UserError
from psdrl.runtime import device, execution
from psdrl.runtime.execution import Execution
from tests.helpers import GRID, INPUTS

SIZES: dict[str, Any] = {"kind": "image", "actions": 3, "replay": {"batch": 8, "length": 8}, "chunk_rows": 1000}


def targets(agent, how):
    """Planning targets of all stored states, with hidden states of one."""
    models, model = agent.models, agent.models.forward_model
    latents = models.autoencoder.encode(agent.replay.observations[agent.replay.stored_slots()])
    hidden = torch.tanh(torch.randn(len(latents), model.hidden_size, generator=torch.Generator().manual_seed(0)))
    with torch.no_grad(), how.autocast():
        return predict(model.fold(agent.model), models.termination, latents, hidden.to(latents)).planned(models.value)


@pytest.mark.parametrize("inputs", [False, True], ids=["", "inputs"])
def test_bf16_planning_targets_are_bounded(inputs):
    """Within 3 % of the targets' scale: bfloat16 keeps 8 bits, and a lookahead is a few products deep."""
    agent = debug_agent("fast", torch.float32, **SIZES, forward=INPUTS if inputs else {})
    for _ in range(3):
        agent.update()
    exact = targets(agent, Execution(agent.device))
    rough = targets(agent, Execution(agent.device, precision="bf16"))
    assert rough.dtype == torch.float32
    error = (rough - exact).norm() / exact.norm()
    assert 1e-6 < error < 0.03, f"relative error {error:.4f}"


@pytest.mark.parametrize("inputs", [False, True], ids=["", "inputs"])
@pytest.mark.parametrize("kind", ["image", "vector", "grid"])
def test_updates_in_bf16(kind, inputs):
    """They run, stay near float32 for a while, and leave parameters, Adam and posterior in their own precision."""
    sizes = SIZES | {"kind": kind}
    if kind == "grid":
        sizes |= {**GRID, "termination": {"predicted": True}}
    if inputs:
        sizes["forward"] = INPUTS
    exact, rough = (debug_agent("fast", torch.float32, **sizes) for _ in range(2))
    rough.execution = Execution(rough.device, precision="bf16")
    losses = exact.update(), rough.update()
    rough.update()
    for name in ("loss/forward", "loss/termination"):
        assert losses[1][name] == pytest.approx(losses[0][name], rel=0.1), name
    for name, tensor in parameters(rough).items():
        assert tensor.dtype == (torch.float64 if name in ("mean", "factors") else torch.float32), name
        assert tensor.isfinite().all()
    assert rough.posterior.mean.dtype == torch.float64
    different = [name for name, p in parameters(rough).items() if not torch.equal(p, parameters(exact)[name])]
    assert different, "bf16 must do something"
    frames = rough.replay.observations[:1].numpy().repeat(rough.config.num_envs, 0)
    assert rough.actor.act(frames, 0.0).shape == (rough.config.num_envs,)


def test_compiled_bf16():
    eager, compiled = (debug_agent("fast", torch.float32, **(SIZES | {"kind": "vector"})) for _ in range(2))
    eager.execution = Execution(eager.device, precision="bf16")
    compiled.execution = Execution(compiled.device, compile=True, precision="bf16")
    first = eager.update(), compiled.update()
    for name in ("loss/forward", "loss/termination", "loss/value"):
        assert first[1][name] == pytest.approx(first[0][name], rel=0.1), name


def test_a_cpu_that_cannot_is_refused(monkeypatch):
    """Where oneDNN would end the process, as on virtual machines that promise AMX and refuse it."""
    monkeypatch.setattr(execution, "bf16_on_cpu", lambda: "this CPU cannot")
    with pytest.raises(UserError, match="--precision bf16 cannot run: this CPU cannot, or use --precision fp32"):
        debug_agent("fast", torch.float32, precision="bf16")
    debug_agent("fast", torch.float32, precision="fp32")


def test_amx_is_tried_where_it_is_promised(monkeypatch):
    trials: list[int] = []
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(device.Path, "exists", lambda _: True)
    monkeypatch.setattr(device.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=trials.pop()))
    for flags, codes, fine in (("avx2", [], True), ("avx2 amx_bf16", [0], True), ("avx2 amx_bf16", [-4], False)):
        monkeypatch.setattr(device.Path, "read_text", lambda _, flags=flags: flags)
        trials[:] = codes
        assert (device.bf16_on_cpu.__wrapped__() is None) == fine, flags
        assert not trials
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", device.WITHOUT_AMX)
    assert device.bf16_on_cpu.__wrapped__() is None
