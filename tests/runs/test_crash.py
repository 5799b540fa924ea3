"""Killed and resumed runs equal undisturbed ones; `make crash` is the long version, with Atari and MinAtar."""

from pathlib import Path

import pytest

from tests.crash import SHORT, crash


@pytest.mark.parametrize("name", SHORT)
def test_kills_leave_no_trace(name: str, tmp_path: Path) -> None:
    """Two kills at random times and one within a save."""
    outcome = crash(name, 3, 1, tmp_path)
    assert not outcome.different, "\n".join(outcome.different[:10])
    assert outcome.lines > 20
    assert outcome.kills == 3
    assert outcome.within_saves == 1
    assert outcome.resumed >= 1, "no checkpoint was resumed from"
