"""The Python blocks of the documentation run, one after another, as a reader would run them."""

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["library.md", "callbacks.md"])
def test_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = list(re.finditer(r"```python\n(.*?)```", text, re.DOTALL))
    assert len(blocks) >= 2, "the page shows no examples"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    scope: dict[str, Any] = {"__name__": "example"}
    for block in blocks:
        line = text[: block.start(1)].count("\n")
        exec(compile("\n" * line + block[1], page, "exec"), scope)  # a traceback names the page's own line
    if page == "library.md":
        assert scope["again"].step == 400
        assert (scope["mean"] - scope["weights"]).abs().max() < 0.03, "the regression finds the weights"
        spread = scope["draws"].std(0)
        assert 0.003 < spread.min() < spread.max() < 0.007, "0.1 / sqrt(500) = 0.0045"
    else:
        assert scope["best"].best > float("-inf")
