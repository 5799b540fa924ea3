"""What the start of a run checks, and what its end says of it."""

import re

import pytest
import torch

from psdrl.agents import registry
from psdrl.agents.psdrl import agent as psdrl_agent
from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.kernels.checks import Finding

SMALL = ("--env", "deepsea-4", "--preset", "debug", "--device", "cpu", "--steps", "40", "--eval-every", "0")
BROKEN = Finding("tanh_dot", "triton", "6 x 16", "tf32", 1.0, 1e-3, "error 1, allowed 0.001")


def noted(monkeypatch):
    """The order in which kernels are checked and agents, which draw a model at once, are made."""
    order: list[str] = []
    make = PsdrlAgent.__init__

    def check(config, spec, device):
        order.append("check")
        return [BROKEN]

    def init(self, *args, **kwargs):
        order.append("agent")
        make(self, *args, **kwargs)

    monkeypatch.setattr(psdrl_agent, "check_kernels", check)
    monkeypatch.setattr(PsdrlAgent, "__init__", init)
    return order


def test_kernels_are_checked_before_a_model_is_drawn(monkeypatch, cli_run):
    """On a device without an image of our kernels the first draw would end the run."""
    order = noted(monkeypatch)
    monkeypatch.setattr(registry, "is_gpu", lambda device: True)
    assert cli_run("train", *SMALL, "--logdir", "run").code == 0
    assert order == ["check", "agent"]
    assert cli_run("evaluate", "run", "--episodes", "1", "--device", "cpu").code == 0
    assert order == ["check", "agent"] * 2


def test_a_failed_check_is_said_at_the_start_and_at_the_end(monkeypatch, cli_run):
    noted(monkeypatch)
    out = cli_run("train", *SMALL, "--logdir", "run").out.replace("\n", " ")
    start, _, end = out.partition("forecast")
    assert "tanh_dot (triton) fails its check on cpu: error 1, allowed 0.001; the fallback serves" in start
    assert "tanh_dot (triton) failed its check on cpu; its fallback served" in end


def test_a_step_that_was_not_captured_is_said_at_the_end(monkeypatch, cli_run):
    from psdrl.runtime.execution import Execution

    monkeypatch.setattr(Execution, "failures", property(lambda self: ["window"]))
    out = cli_run("train", *SMALL, "--logdir", "run").out.replace("\n", " ")
    assert "window ran without a CUDA graph" in out.partition("forecast")[2]


def test_a_sound_run_warns_of_nothing(cli_run):
    assert torch.get_float32_matmul_precision() == "highest"
    assert "warning" not in cli_run("train", *SMALL, "--logdir", "run").out


@pytest.mark.parametrize(
    ("algo", "kernels"), [("psdrl", True), ("bootstrap", False), ("successor", False), ("dreamer", False)]
)
def test_the_summary_is_the_agents_own(algo, kernels, cli_run):
    """A forecast for every agent that describes its work; PSDRL's kernels are named where they serve only."""
    out = cli_run("train", *SMALL, "--algo", algo, "--logdir", "run").out
    assert re.search(r"^forecast +about \d+ s, [\d.e-]+ GB \(from rates measured now\)$", out, re.MULTILINE)
    assert bool(re.search("^kernels +lookahead aten .*; posterior", out.replace("\n ", ""), re.MULTILINE)) == kernels
    assert ("lookahead" in out) == kernels
