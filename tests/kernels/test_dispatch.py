"""Which backend serves an operation, and why another does not."""

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from psdrl.kernels import dispatch, triton_support
from psdrl.kernels.greedy import best_return, greedy_action, one_step_returns
from psdrl.kernels.gru_actions import gru_actions
from psdrl.kernels.linear_tanh import linear, linear_tanh
from psdrl.kernels.tanh_dot import tanh_dot
from tests.helpers import BLOCKER

ROOT = Path(__file__).parents[2]
FUNCTIONS: dict[str, Any] = {
    "gru_actions": gru_actions,
    "linear": linear,
    "linear_tanh": linear_tanh,
    "tanh_dot": tanh_dot,
    "one_step_returns": one_step_returns,
    "best_return": best_return,
    "greedy_action": greedy_action,
}


def arguments(device: str = "cpu", states: int = 4, num_actions: int = 3) -> dict[str, tuple[Any, ...]]:
    """Arguments for every operation."""
    torch.manual_seed(0)
    rows, size, units = states * num_actions, 5, 7

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, device=device)

    table = [draw(states, num_actions) for _ in range(3)]
    gates = draw(states, 3 * size), draw(states, 3 * size), draw(num_actions, 3 * size), draw(states, size)
    x, weight, bias = draw(rows, size), draw(units, size), draw(units)
    return {
        "gru_actions": gates,
        "linear": (x, weight, bias),
        "linear_tanh": (x, weight, bias, draw(states, units), draw(num_actions, units)),
        "tanh_dot": (x, weight, bias, draw(1, units), draw(1)),
        "one_step_returns": (*table, 0.9, 0.5),
        "best_return": (*table, 0.9, 0.5),
        "greedy_action": (*table, 0.9, 0.5, draw(states, num_actions).sigmoid()),
    }


def test_explain_on_the_cpu() -> None:
    choices = dispatch.explain("cpu")
    assert set(choices) == set(FUNCTIONS)
    for choice in choices.values():
        assert choice.backend == "aten"
        assert list(choice.refused) == ["triton"]
        assert choice.refused["triton"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_forced_backends_agree(name: str) -> None:
    results = {}
    for backend in ("reference", "aten"):
        with dispatch.force(backend):
            results[backend] = FUNCTIONS[name](*arguments()[name])
    results["call"] = FUNCTIONS[name](*arguments()[name])
    results["operation"] = getattr(torch.ops.psdrl, name)(*arguments()[name])
    for backend, result in results.items():
        torch.testing.assert_close(result, results["reference"], msg=backend)


@pytest.mark.skipif(triton_support.interpreted(), reason="the interpreter serves on the CPU")
def test_forcing_a_backend_that_cannot_serve_names_the_reason() -> None:
    with dispatch.force("triton"), pytest.raises(dispatch.Refused, match="triton cannot serve"):
        linear(torch.zeros(1, 1), torch.zeros(1, 1))
    with pytest.raises(ValueError, match="one of triton, aten, reference"), dispatch.force("cuda"):  # type: ignore[arg-type]
        pass
    assert linear(torch.ones(1, 1), torch.ones(1, 1)).item() == 1  # the choice is back


def test_force_nests() -> None:
    with dispatch.force("reference"):
        with dispatch.force("aten"):
            assert dispatch._forced == "aten"
        assert dispatch._forced == "reference"
        with dispatch.force(None):
            assert dispatch._forced is None
    assert dispatch._forced is None


def test_the_choice_is_logged_once_per_operation(caplog: pytest.LogCaptureFixture) -> None:
    for operation in dispatch.operations.values():
        operation.announced.clear()
        operation.direct = False
    with caplog.at_level(logging.INFO, "psdrl.kernels"):
        for _ in range(3):
            for name, function in FUNCTIONS.items():
                function(*arguments()[name])
    lines = [record.getMessage() for record in caplog.records if record.name == "psdrl.kernels"]
    assert sorted(line.split(" on ")[0] for line in lines) == sorted(FUNCTIONS)
    assert all("cpu: aten; triton refused: " in line for line in lines)


def test_calls_on_the_cpu_go_straight_to_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    linear(torch.ones(2, 2), torch.ones(2, 2))
    monkeypatch.setattr(dispatch.Operation, "serve", None)  # from the second call on nobody asks
    assert linear(torch.ones(2, 2), torch.ones(2, 2)).tolist() == [[2, 2], [2, 2]]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operations_are_registered_as_torch_wants(name: str) -> None:
    torch.library.opcheck(getattr(torch.ops.psdrl, name).default, arguments()[name])


@pytest.mark.parametrize("states", [0, 4])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_fake_results_have_the_shapes_of_real_ones(name: str, states: int) -> None:
    """On a CUDA device that is not here: torch.compile sees one node and its shape."""
    real = FUNCTIONS[name](*arguments(states=states)[name])
    with FakeTensorMode():
        fake = FUNCTIONS[name](*arguments("cuda", states=states)[name])
    assert fake.device.type == "cuda"
    assert (fake.shape, fake.dtype) == (real.shape, real.dtype)
    assert states == 0 or fake.stride() == real.stride()


@pytest.mark.parametrize("rows", [4, 40])  # 12 rows take the small-row kernel of the extension, if it is built
@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_compile_traces_through(name: str, rows: int) -> None:
    inputs = arguments(states=rows)[name]
    torch.compiler.reset()  # the operations share one Python function, and this test compiles it 14 times
    compiled = torch.compile(FUNCTIONS[name], backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), FUNCTIONS[name](*inputs))


# A state of Triton: what a package of this name contains, or what is done before psdrl is imported; and the reason.
WITHOUT = {
    "uninstalled": ("", f'BLOCKED = {{"triton"}}\n{BLOCKER}', "Triton is not installed"),
    "broken library": ("raise ImportError('libtriton.so: undefined symbol')", "", "libtriton.so: undefined symbol"),
    "broken otherwise": ("raise OSError('no space')", "", "Triton does not import (OSError: no space)"),
    "half installed": ("import triton.language", "", "Triton does not import (No module named 'triton.language')"),
    "another version": ("", "import triton; triton.__version__ = '2.1.0'", "Triton 2.1.0 is installed"),
}
PROGRAM = """
import logging
logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
import numpy as np
import psdrl
from psdrl.kernels import dispatch, triton_support
triton_support.missing()  # torch's optimisers do not bear every broken Triton: ask first
config = psdrl.configure(env="deepsea-4", preset="debug", device="cpu")
agent = psdrl.Agent(config, psdrl.make_env(config).spec).core
agent.actor.act(np.zeros((1, *agent.spec.shape), np.float32), 0.0)
for device in ("cpu", "cuda"):
    for choice in dispatch.explain(device).values():
        assert choice.backend == "aten", choice
        assert reason in choice.refused["triton"], choice
"""


@pytest.mark.parametrize("state", WITHOUT)
def test_without_a_usable_triton(state: str, tmp_path: Path) -> None:
    """psdrl imports, an agent acts, and the explanation says what is wrong."""
    content, before, reason = WITHOUT[state]
    if content:
        (tmp_path / "triton").mkdir()
        (tmp_path / "triton" / "__init__.py").write_text(content)
    program = f"import sys\nreason = {reason!r}\nsys.path.insert(0, {str(tmp_path)!r})\n{before}\n{PROGRAM}"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert "psdrl.kernels: linear on cpu: aten; triton refused: " in run.stderr
    assert reason in run.stderr


def test_a_prediction_without_a_usable_triton(tmp_path: Path) -> None:
    """What counts operations in PyTorch imports Triton."""
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("raise OSError('no space')")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from psdrl import cli; sys.exit(cli.predict(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "--env", "deepsea-4", "--device", "a100"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr


def test_importing_psdrl_imports_no_triton() -> None:
    program = "import sys, psdrl, psdrl.kernels.dispatch as d; assert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120)
