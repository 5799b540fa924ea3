"""The page of `psdrl report` in headless Chromium: as a reader sees and uses it."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from psdrl.report.build import build
from tests.report_runs import write_benchmark, write_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
GAMES = ("Pong", "Breakout", "Qbert")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two agents on three games, two seeds each; DeepSea; a run that goes on."""
    runs = tmp_path_factory.mktemp("runs")
    write_benchmark(runs / "atari", GAMES, 2, ("psdrl", "bootstrap"))
    for n, first in ((10, 60), (14, 90)):
        for seed in range(2):
            found = [(n * i, float(i > first + seed)) for i in range(1, 300)]
            write_run(runs / f"deepsea-{n}-{seed}", env=f"deepsea-{n}", seed=seed, episodes=found, steps=n * 299)
    running = write_run(runs / "running", game="Pong", preset="paper", seed=7, evaluations=[(10_000, -20.0)])
    (running / ".holder.json").write_text("{}", encoding="utf-8")
    out = tmp_path_factory.mktemp("report") / "page"
    build([runs], out)
    return out


class Page:
    """A page, with all that its console says."""

    def __init__(self, page: Any, path: Path) -> None:
        self.page, self.said = page, []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("requestfailed", lambda request: self.said.append(request.url))
        self.asked: list[str] = []
        page.on("request", lambda request: self.asked.append(request.url))
        page.goto(path.as_uri())

    def column(self, table: str, index: int, visible: bool = True) -> list[str]:
        rows = f"#table-{table} tbody tr" + (":not([hidden])" if visible else "")
        return self.page.eval_on_selector_all(
            rows, "(rows, i) => rows.map((row) => row.cells[i].textContent.trim())", index
        )

    def head(self, table: str, title: str) -> Any:
        return self.page.locator(f"#table-{table} thead th", has_text=title).first


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Any, report: Path) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    yield Page(page, report / "index.html")
    page.close()


def test_nothing_is_wrong_and_nothing_comes_from_elsewhere(opened: Page, report: Path) -> None:
    assert opened.said == []
    assert [url for url in opened.asked if not url.startswith(("file:", "data:"))] == []
    sections = opened.page.eval_on_selector_all("main > section", "all => all.map((one) => one.id)")
    assert sections == ["notices", "atari", "scores", "comparisons", "deepsea", "curves", "runtime", "runs"]
    for href in opened.page.eval_on_selector_all("main a[href]", "all => all.map((one) => one.getAttribute('href'))"):
        if href.startswith("#"):
            assert opened.page.locator(href).count() == 1, href
        else:
            assert (report / href).is_file(), href


def test_every_figure_is_there_and_described(opened: Page, report: Path) -> None:
    images = opened.page.eval_on_selector_all(
        "figure img", "all => all.map((one) => [one.naturalWidth, one.alt, one.closest('figure').id])"
    )
    files = {path.stem for path in (report / "figures").glob("*.png")}
    assert {name.removeprefix("figure-") for _, _, name in images} == files
    assert {path.stem for path in (report / "figures").glob("*.svg")} == files
    for width, alt, name in images:
        assert width > 300, name
        assert len(alt) > 30, name
    stems = {name.split("-")[0] for name in files}
    assert stems == {"difference", "iqm", "profile", "improvement", "deepsea", "curve"}
    assert len([name for name in files if name.startswith("curve")]) == len(GAMES) + 2


def test_a_click_on_a_heading_sorts(opened: Page) -> None:
    head = opened.head("scores", "score")
    scores = lambda: [float(text.split()[0].replace(",", "")) for text in opened.column("scores", 4)]  # noqa: E731
    assert scores() != sorted(scores())
    head.locator("button").click()
    assert scores() == sorted(scores())
    assert head.get_attribute("aria-sort") == "ascending"
    head.locator("button").focus()
    opened.page.keyboard.press("Enter")
    assert scores() == sorted(scores(), reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    opened.head("scores", "environment").locator("button").click()
    assert opened.column("scores", 0) == sorted(opened.column("scores", 0))
    assert head.get_attribute("aria-sort") is None


def test_a_word_in_the_box_filters(opened: Page) -> None:
    every = len(opened.column("scores", 0))
    opened.page.get_by_label("Filter Scores by environment").fill("breakout prio")
    assert opened.column("scores", 0) == ["Breakout"]
    assert opened.page.locator("#count-scores").text_content() == f"1 of {every} rows"
    opened.page.locator('button.all[data-table="table-scores"]').click()
    assert len(opened.column("scores", 0)) == every


def test_a_number_leads_to_its_runs_their_commits_and_commands(opened: Page) -> None:
    row = opened.page.locator("#table-scores tbody tr", has_text="Qbert").filter(has_text="PSDRL").first
    row.locator("td").nth(4).locator("a").click()
    runs = opened.page.locator("#table-runs tbody tr:not([hidden])")
    assert runs.count() == 2
    for seed in range(2):
        text = runs.nth(seed).text_content() or ""
        assert f"psdrl train Qbert --seed {seed}" in text
        assert f"{seed:040x}"[:10] in text
    assert opened.page.evaluate("location.hash") == f"#{runs.first.get_attribute('id')}"


def test_runs_that_go_on_are_shown_and_not_averaged(opened: Page) -> None:
    notices = opened.page.locator("#notices").text_content() or ""
    assert "1 runs are not finished (1 running)" in notices
    opened.page.get_by_label("Filter Runs").fill("running")
    assert opened.column("runs", 1) == ["Pong"]
    opened.page.get_by_label("Filter Scores by environment").fill("pong psdrl")
    assert sorted(opened.column("scores", 3)) == ["1", "2"], "apart from the finished ones"


@pytest.mark.parametrize("width", [1280, 400])
def test_it_is_readable_at(width: int, browser: Any, report: Path) -> None:
    """Nothing sticks out of the window but what scrolls in its own box; letters are not tiny."""
    page = browser.new_page(viewport={"width": width, "height": 800})
    Page(page, report / "index.html")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    out = """all => all.filter((one) => !one.closest('.scroll') && !one.classList.contains('skip')
        && one.getBoundingClientRect().width > 0
        && (one.getBoundingClientRect().right > innerWidth + 1 || one.getBoundingClientRect().left < -1))
        .map((one) => one.outerHTML.slice(0, 80))"""
    assert page.eval_on_selector_all("body *", out) == []
    small = "all => all.filter((one) => parseFloat(getComputedStyle(one).fontSize) < 12).length"
    assert page.eval_on_selector_all("p, li, td, th, caption, figcaption, label", small) == 0
    page.close()


def test_keyboards_and_screen_readers_find_their_way(opened: Page) -> None:
    page = opened.page
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.title() == "PSDRL report"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#results"
    tables = page.locator("table")
    assert tables.count() == page.locator("table > caption").count() > 5
    assert page.locator("thead th:not([scope=col])").count() == 0
    assert page.locator("input:not([type=search])").count() == 0
    unnamed = "all => all.filter((one) => !one.labels.length).length"
    assert page.eval_on_selector_all("input", unnamed) == 0
    levels = page.eval_on_selector_all("h1, h2, h3", "all => all.map((one) => one.tagName)")
    assert levels[0] == "H1"
    assert set(levels[1:]) == {"H2"}
    assert page.locator(".scroll:not([tabindex])").count() == 0
