"""Each page in a real browser: no error, no request, marks in every chart, at three widths, light and dark, by keys."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.planner.report.pages import COMMANDS, page_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LACKING = "no Chromium on this machine" if CHROMIUM is None else "no playwright in this Python"
WIDTHS = (400, 900, 1600)
MARKS = "e => e.querySelectorAll('[class*=mark-] path, [class*=mark-] line, [class*=mark-] rect').length"

pytestmark = pytest.mark.skipif(CHROMIUM is None or find_spec("playwright") is None, reason=LACKING)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def shown(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens pages by name; what went wrong in them is told at the end."""
    wrong: list[str] = []
    page = browser.new_page(viewport={"width": 900, "height": 800})
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith("file:") else wrong.append(request.url))

    def opened(name: str) -> Any:
        file = tmp_path / f"{name}.html"
        file.write_text(page_of(name)[0], encoding="utf-8")
        page.goto(file.as_uri())
        page.wait_for_function("document.documentElement.dataset.theme !== undefined")
        return page

    yield opened
    page.close()
    assert wrong == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_chart_has_marks_and_nothing_runs_over_the_edge(name: str, shown: Any) -> None:
    page = shown(name)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_timeout(300)
        charts = page.query_selector_all(".chart")
        assert all(chart.evaluate(MARKS) > 0 for chart in charts), width
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert all(chart.bounding_box()["width"] <= width for chart in charts)


def test_light_and_dark_by_the_system_and_by_the_button(shown: Any) -> None:
    page = shown("plan")
    paper = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    dark = page.evaluate(paper)
    page.focus("#theme")
    page.keyboard.press("Enter")
    page.wait_for_function("document.documentElement.dataset.theme === 'light'")
    assert page.evaluate(paper) != dark
    assert page.get_attribute("#theme", "aria-pressed") == "false"


def test_all_that_works_is_reached_by_tab(shown: Any) -> None:
    page = shown("plan")
    reached = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"skip", "theme", "save", "chart", "picture", "copy"} <= reached


def test_the_answer_is_saved_as_json_prints_it(shown: Any) -> None:
    import json

    page = shown("plan")
    with page.expect_download() as saved:
        page.click("#save")
    assert json.loads(Path(saved.value.path()).read_text(encoding="utf-8")) == page_of("plan")[1]


def test_a_command_is_copied(shown: Any) -> None:
    page = shown("plan")
    text = page.text_content(".command code")
    page.evaluate("navigator.clipboard.writeText = (said) => { window.copied = said; return Promise.resolve(); }")
    page.click(".copy")
    assert page.evaluate("window.copied") == text
