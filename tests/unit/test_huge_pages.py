"""Large tensors lie on huge pages where Linux gives them to those who ask."""

import subprocess
import sys
from pathlib import Path

import pytest

HOLDS = """
import psdrl, torch
x = torch.ones(2**25)
lines = open("/proc/self/smaps_rollup").read().splitlines()
print(next(line.split()[1] for line in lines if line.startswith("AnonHugePages")))
"""


def held(monkeypatch: pytest.MonkeyPatch, setting: str | None) -> int:
    """Kilobytes on huge pages of a process that holds 128 MB."""
    if setting is None:
        monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    else:
        monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", setting)
    return int(subprocess.run([sys.executable, "-c", HOLDS], capture_output=True, text=True, check=True).stdout)


def test_large_tensors_lie_on_huge_pages(monkeypatch):
    policy = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not policy.exists() or "[madvise]" not in policy.read_text():
        pytest.skip("huge pages are not a matter of asking here")
    assert held(monkeypatch, None) > 100_000
    assert held(monkeypatch, "0") < 20_000
