"""Each page in a real browser: no error, no request, marks in every chart, at three widths, light and dark, by keys."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.planner.report.pages import KINDS, any_page, page_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LACKING = "no Chromium on this machine" if CHROMIUM is None else "no playwright in this Python"
WIDTHS = (400, 900, 1600)
MARKS = "e => e.querySelectorAll('[class*=mark-] path, [class*=mark-] line, [class*=mark-] rect').length"

CUT_OFF = """() => [...document.querySelectorAll('h1, h2, h3, p, li, dt, dd, summary, figcaption, button')]
    .filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0).map(e => e.textContent)"""
"""Text that is wider than its place."""
CONTROLS = "a[href], button, summary, input, select, textarea, [tabindex='0']"
CONTRASTS = """() => {
    const parts = c => (c.match(/[\\d.]+/g) || []).map(Number);
    const linear = v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const light = c => { const [r, g, b] = parts(c).map(v => linear(v / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const under = e => { for (; e; e = e.parentElement) { const c = parts(getComputedStyle(e).backgroundColor);
        if (c.length === 3 || c[3] > 0) return getComputedStyle(e).backgroundColor; } return 'rgb(255, 255, 255)'; };
    const bad = [];
    const words = 'h1, h2, h3, p, li, dt, dd, th, td, a, summary, figcaption, button, code, .chart text';
    for (const e of document.querySelectorAll(words)) {
        const style = getComputedStyle(e), ink = e instanceof SVGElement ? style.fill : style.color;
        if (!e.textContent.trim() || ink === 'none') continue;
        const [a, b] = [light(ink), light(under(e))].sort((x, y) => y - x);
        if ((a + 0.05) / (b + 0.05) < 4.5) bad.push([e.tagName, ink, e.textContent.slice(0, 40)]);
    }
    return bad; }"""
FOCUSED = """() => { const e = document.activeElement, s = getComputedStyle(e);
    return [e.dataset.number, s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 1]; }"""

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
        file.write_text(any_page(name), encoding="utf-8")
        page.goto(file.as_uri())
        page.wait_for_function("document.documentElement.dataset.theme !== undefined")
        return page

    yield opened
    page.close()
    assert wrong == []


@pytest.mark.parametrize("name", KINDS)
def test_every_chart_has_marks_and_nothing_runs_over_the_edge(name: str, shown: Any) -> None:
    page = shown(name)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_timeout(300)
        charts = page.query_selector_all(".chart")
        assert all(chart.evaluate(MARKS) > 0 for chart in charts), width
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert all(chart.bounding_box()["width"] <= width for chart in charts)
        assert all(chart.query_selector("svg").bounding_box()["height"] > 30 for chart in charts)
        assert page.evaluate(CUT_OFF) == []


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


@pytest.mark.parametrize("name", KINDS)
def test_all_that_works_is_reached_by_tab_and_seen(name: str, shown: Any) -> None:
    page = shown(name)
    controls = page.query_selector_all(CONTROLS)
    for number, control in enumerate(controls):
        control.evaluate("(e, number) => { e.dataset.number = number; }", number)
    visible = {str(number) for number, control in enumerate(controls) if control.is_visible()}
    reached = {}
    # Chromium stops at whatever scrolls, too.
    for _ in range(2 * len(controls) + 10):
        page.keyboard.press("Tab")
        number, seen = page.evaluate(FOCUSED)
        reached[number] = seen
    assert visible <= set(reached)
    assert all(reached[number] for number in visible)


@pytest.mark.parametrize("name", KINDS)
def test_words_are_told_from_the_paper_light_and_dark(name: str, shown: Any) -> None:
    """A contrast of 4.5 at least (WCAG 2.1, 1.4.3), of what the page says and of the charts' own words."""
    page = shown(name)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function("scheme => document.documentElement.dataset.theme === scheme", arg=scheme)
        page.wait_for_timeout(200)
        assert page.evaluate(CONTRASTS) == []


def test_on_paper_it_is_light_and_unfolded(shown: Any, tmp_path: Path) -> None:
    page = shown("estimate")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    page.evaluate("""addEventListener('beforeprint', () => { window.printed = [
        document.documentElement.dataset.theme, document.querySelectorAll('details:not([open])').length]; })""")
    page.pdf(path=str(tmp_path / "page.pdf"))
    assert page.evaluate("window.printed") == ["light", 0]
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("document.querySelectorAll('details:not([open])').length") > 0


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
