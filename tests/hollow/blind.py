"""python blind.py MODULE ...: runs a module of psdrl on the hollow driver without its checks of values.

Kernels do nothing there, so no number means anything. Every call is still made, every result is still copied to the
host, and an exception inside a check is still a failure. Actions are taken modulo their number: environments refuse
others. Where HOLLOW_REPORT names a file, torch's own peak of
allocated memory per device is written into it at exit.
"""

import json
import math
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from psdrl import posterior
from psdrl.acting import Actor
from psdrl.kernels import checks


def without_errors(findings: Any) -> list[Any]:
    """Keep what failed by an exception (its error is nan); drop what only has the wrong value."""
    return [f if math.isnan(f.error) else f._replace(error=0.0, problem=None) for f in findings]


def blinded(check_all: Callable[..., Any]) -> Callable[..., list[Any]]:
    return lambda *args, **kwargs: without_errors(check_all(*args, **kwargs))


def read_back(info: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    """In place of `posterior.check`: the copy to the host that it makes, without its verdict."""
    info.reshape(-1).tolist()


def valid(act: Callable[..., Any]) -> Callable[..., Any]:
    """`Actor.act` with actions that exist."""
    return lambda self, *args, **kwargs: act(self, *args, **kwargs) % self.agent.spec.num_actions


def report() -> None:
    """Peak of allocated bytes per device, as torch counts them."""
    peaks = [torch.cuda.max_memory_allocated(i) for i in range(torch.cuda.device_count())]
    Path(os.environ["HOLLOW_REPORT"]).write_text(json.dumps({"allocated_bytes": peaks}), encoding="utf-8")


def main() -> None:
    """Run the module named by the first argument."""
    checks.check_all = blinded(checks.check_all)
    posterior.check = read_back
    Actor.act = valid(Actor.act)
    module, sys.argv = sys.argv[1], sys.argv[1:]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        if "HOLLOW_REPORT" in os.environ:
            report()


if __name__ == "__main__":
    main()
