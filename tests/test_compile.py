"""--compile changes how the inner functions run, not what they compute."""

import shutil

import pytest
import torch

from psdrl.errors import UserError
from psdrl.execution import check_compiler
from tests.test_parity import distance, make, parameters


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="Inductor needs a C++ compiler")
def test_compiled_updates_agree():
    sizes = {"kind": "vector", "actions": 3, "replay": {"batch": 4, "length": 8}, "chunk_rows": 1000}
    eager, compiled = (make("fast", torch.float64, compile=wanted, **sizes) for wanted in (False, True))
    for agent in (eager, compiled):
        agent.update()
        agent.update()
    for name, tensor in parameters(compiled).items():
        assert distance(tensor, parameters(eager)[name]) < 1e-9, name


def test_a_missing_compiler_is_said(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match="C\\+\\+ compiler"):
        check_compiler(torch.device("cpu"))
