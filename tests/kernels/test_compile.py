"""--compile changes how the inner functions run, not what they compute."""

import shutil
from typing import Any

import pytest
import torch

from bench.parity import distance, parameters
from psdrl.agents.psdrl.synthetic import debug_agent
from psdrl.errors import UserError
from psdrl.runtime.execution import check_compiler
from tests.helpers import GRID_INPUTS, INPUTS
from tests.recorder import with_graphs


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="Inductor needs a C++ compiler")
@pytest.mark.parametrize("kind", ["vector", pytest.param("grid", marks=pytest.mark.slow)])
def test_compiled_updates_agree(kind):
    sizes: dict[str, Any] = {"kind": kind, "actions": 3, "replay": {"batch": 4, "length": 8}, "chunk_rows": 1000}
    sizes["forward"] = INPUTS  # it adds to what is compiled and leaves nothing out
    if kind == "grid":
        sizes |= {**GRID_INPUTS, "termination": {"predicted": True}}
    eager, compiled = (debug_agent("fast", torch.float64, compile=wanted, **sizes) for wanted in (False, True))
    for agent in (eager, compiled):
        first, second = agent.update(), agent.update()
        assert ("time/compile" in first) == agent.config.compile
    assert first["time/compile"] > second["time/compile"], "compiled once"
    both = debug_agent("fast", torch.float64, compile=True, **sizes)
    with_graphs(both)  # compiled functions within captured steps
    both.update()
    both.update()
    assert not both.execution.failures
    for name, tensor in parameters(eager).items():
        assert distance(parameters(compiled)[name], tensor) < 1e-9, name
        assert distance(parameters(both)[name], tensor) < 1e-9, name


def test_a_missing_compiler_is_said(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match="C\\+\\+ compiler"):
        check_compiler(torch.device("cpu"))
