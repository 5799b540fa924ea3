"""The site: `mkdocs build --strict` succeeds, needs no other server, and notices what has become untrue.

Commands of README and docs are parsed here; tests/runs/test_first_hour.py runs those of README and tutorial.
"""

import re
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from psdrl.agents import registry
from psdrl.cli import parse_train
from psdrl.cost.forecast import Question
from psdrl.doctor import Doctor
from psdrl.report.command import Report
from psdrl.run.evaluate import Evaluation
from psdrl.run.probe import Probe
from psdrl.sweep.command import Sweep
from psdrl.sweep.reproduce import Reproduce
from psdrl.view.command import View

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
EQUATIONS = 8
BUILD = [sys.executable, "-m", "mkdocs", "build", "--strict"]


def build(project: Path, site: Path) -> subprocess.CompletedProcess[str]:
    environment = {"NO_MKDOCS_2_WARNING": "1", "PATH": "/usr/bin:/bin", "PYTHONPATH": str(project)}
    return subprocess.run(
        [*BUILD, "--site-dir", site], cwd=project, env=environment, capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of this checkout."""
    site = tmp_path_factory.mktemp("site")
    done = build(ROOT, site)
    assert done.returncode == 0, done.stdout + done.stderr
    return site


class Loaded(HTMLParser):
    """What a browser loads to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag in ("script", "img", "iframe", "source"):
            self.addresses.append(given.get("src") or "")
        if tag == "link":
            self.addresses.append(given.get("href") or "")


def test_every_page_is_there_and_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in PAGES:
        html = site / page.relative_to(ROOT / "docs").with_suffix(".html")
        assert html.exists(), page
        loaded = Loaded()
        loaded.feed(html.read_text(encoding="utf-8"))
        assert loaded.addresses
        foreign = [address for address in loaded.addresses if re.match(r"(https?:)?//", address)]
        assert not foreign, f"{page}: {foreign}"


def test_equations_stand_beside_the_code_that_computes_them(site: Path) -> None:
    html = (site / "algorithm.html").read_text(encoding="utf-8")
    assert html.count('<div class="equation"><math') > EQUATIONS
    assert "arithmatex" not in html
    assert all(f"<mn>{n}</mn>" in html for n in range(1, EQUATIONS + 1))
    page = (ROOT / "docs" / "algorithm.md").read_text(encoding="utf-8")
    listings = re.findall(r"^Code: .*\.py#([\w.]+)\)", page, re.MULTILINE)
    assert len(listings) > EQUATIONS
    text = re.sub(r"<[^>]+>", "", html)
    for name in listings:
        assert f"def {name.split('.')[-1]}(" in text, name


def test_every_setting_is_in_the_reference(site: Path) -> None:
    html = (site / "reference" / "settings.html").read_text(encoding="utf-8")
    for algo in registry.AGENTS:
        for name, value in vars(registry.entry(algo).settings()).items():
            inner = [f"{name}.{each}" for each in vars(value)] if hasattr(value, "__dataclass_fields__") else [name]
            for each in inner:
                assert f"<code>--{each.replace('_', '-')}</code>" in html, each


BROKEN = {
    "[a page](gone.md)": "gone.md",
    "[a heading](learning.md#gone)": "does not contain an anchor '#gone'",
    "[a file](../psdrl/gone.py)": "psdrl/gone.py",
    "[a method](../psdrl/agents/psdrl/agent.py#PsdrlAgent.gone)": "agent.py has no PsdrlAgent.gone",
    "Code: [a function](../psdrl/agents/psdrl/oracle.py#gone)": "oracle.py has no gone",
}


def test_broken_links_fail(tmp_path: Path) -> None:
    """In a small site with the same settings and hooks, which without these links would be built."""
    for name in ("psdrl", "kernels", "csrc", "bench", "results"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "docs" / "hooks", tmp_path / "docs" / "hooks")
    (tmp_path / "docs" / "assets").mkdir()
    for name in ("mkdocs.yml", "docs/assets/site.css"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n", encoding="utf-8")
    (tmp_path / "docs" / "learning.md").write_text("# Learning\n", encoding="utf-8")
    (tmp_path / "docs" / "index.md").write_text("# Site\n\n" + "\n\n".join(BROKEN), encoding="utf-8")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    warnings = [line for line in (done.stdout + done.stderr).splitlines() if "WARNING" in line]
    for said in BROKEN.values():
        assert any(said in line for line in warnings), (said, warnings)


def text_and_code(page: Path) -> tuple[str, list[str]]:
    """A page without its code blocks, and those that are shell commands."""
    fence = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    text = page.read_text(encoding="utf-8")
    return fence.sub("", text), [code for info, code in fence.findall(text) if info.strip() in ("", "sh")]


def commands() -> list[str]:
    """Every `psdrl train` of README and docs, whole lines of code blocks."""
    blocks = [code for page in (ROOT / "README.md", *PAGES) for code in text_and_code(page)[1]]
    lines = [line for code in blocks for line in code.replace("\\\n", " ").splitlines()]
    return sorted({line for line in lines if re.search(r"psdrl(\.| )train\b", line)})


@pytest.mark.parametrize("line", commands())
def test_commands_can_be_given(line: str) -> None:
    words = shlex.split(line, comments=True)
    arguments = next(words[i + 1 :] for i, word in enumerate(words) if re.fullmatch(r".*psdrl\.train|train", word))
    if {"--help", "--help-all"} & set(arguments):
        return
    config, _ = parse_train(arguments)
    config.check()


def flags() -> set[str]:
    """What the command lines know."""
    names = {"help", "help-all", "version", "methods", "extra", "force", "seeds", "results"}  # of learn and of all
    names.add("repeat")  # of bench
    agents = (registry.entry(algo).settings for algo in registry.AGENTS)
    for kind in (Evaluation, Probe, Report, View, Sweep, Reproduce, Question, Doctor, *agents):
        for name, value in vars(kind()).items():
            inner = vars(value) if hasattr(value, "__dataclass_fields__") else {}
            names |= {f"{name}.{each}" for each in inner} | {f"{name}.no-{each}" for each in inner}
            names |= {name, f"no-{name}", f"{name}.*"}
    return {f"--{name.replace('_', '-')}" for name in names}


OTHERS = {  # flags of other programs
    "--capture-range",
    "--cuda-graph-trace",
    "--kernel-name",
    "--lr",  # for this and the next psdrl names its own
    "--total-timesteps",
    "--logdir",
    "--use-fast-math",
}


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_flags_that_pages_name_exist(page: Path) -> None:
    text, _ = text_and_code(page)
    named = {flag for code in re.findall(r"`([^`]+)`", text) for flag in re.findall(r"(?<!\S)--[a-z][\w.*-]*", code)}
    assert named <= flags() | OTHERS, sorted(named - flags() - OTHERS)
