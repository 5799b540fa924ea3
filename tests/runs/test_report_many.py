"""The whole benchmark at once: 55 games, 3 seeds, in under a minute of a core and under 2 GB. `test_report_page.py` is
the short version."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from psdrl.report import paper
from tests.report_runs import write_benchmark

ROOT = Path(__file__).parents[2]
MEASURE = """
import json, resource, sys
from pathlib import Path
from psdrl.report.build import build
made = build([Path(sys.argv[1])], Path(sys.argv[2]))
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([made.runs, made.figures, used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20]))
"""


def measured(runs: Path, out: Path) -> tuple[int, int, float, float]:
    """Runs, figures, seconds of a core and GB, of a process of its own."""
    command = [sys.executable, "-c", MEASURE, str(runs), str(out)]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


@pytest.mark.slow
def test_165_runs(tmp_path: Path) -> None:
    write_benchmark(tmp_path / "runs", list(paper.constants()), 3)
    runs, figures, seconds, size = measured(tmp_path / "runs", tmp_path / "report")
    assert runs == 165
    assert figures == 55 + 4 + 3
    assert seconds < 60
    assert size < 2
    # Every game's mean is near the paper's PSDRL column, so Table 1 is as well; 23 and 58 are printed.
    lines = (tmp_path / "report" / "tables" / "table1.csv").read_text(encoding="utf-8").splitlines()
    row = dict(zip(lines[0].split(","), lines[1].split(","), strict=True))
    assert int(row["games"]) == 55
    assert 15 < float(row["gamer_median"]) < 32
    assert 40 < float(row["gamer_mean"]) < 80
