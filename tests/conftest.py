"""Fixtures: command lines run in this process, as a user would type them."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from psdrl import cli
from psdrl.cost import devices
from psdrl.runtime.device import WITHOUT_AMX, bf16_on_cpu

if bf16_on_cpu():  # before the first product; processes that pytest starts inherit it
    os.environ["ONEDNN_MAX_CPU_ISA"] = WITHOUT_AMX
# Nothing is chosen by measurement but where a test asks for it: the same libraries serve in every run.
os.environ.setdefault("PSDRL_AUTOTUNE", "0")
# The networks here are tiny: a second thread only waits, and waits long where other processes share the cores.
torch.set_num_threads(1)
# Every run times this machine for its forecast, 0.15 s for each rate; here three calls of each are enough.
devices.SECONDS = 0.0


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def cli_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """`cli_run("train", "--env", ...)` in an empty working directory: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(command: str, *arguments: object) -> Outcome:
        main = {"train": cli.main_train, "evaluate": cli.main_evaluate, "psdrl": cli.main}[command]
        monkeypatch.setattr(sys, "argv", [command, *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        assert isinstance(stop.value.code, int), stop.value.code
        return Outcome(stop.value.code, out, err)

    return run
