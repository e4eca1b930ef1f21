"""The page of `cellplan serve` in a real browser: fields, a search that is cancelled, a plan that is exported."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.planner.report.serving import serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LACKING = "no Chromium on this machine" if CHROMIUM is None else "no playwright in this Python"
WAIT_MS = 120_000

pytestmark = pytest.mark.skipif(CHROMIUM is None or find_spec("playwright") is None, reason=LACKING)


@pytest.fixture
def page() -> Iterator[Any]:
    """The page, open; what went wrong in it is told at the end."""
    from playwright.sync_api import sync_playwright

    wrong: list[str] = []
    with serving() as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": 1200, "height": 900})
        shown.set_default_timeout(WAIT_MS)
        shown.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
        shown.on("pageerror", lambda error: wrong.append(str(error)))
        shown.on("request", lambda asked: None if _own(asked.url, server.url) else wrong.append(asked.url))
        shown.goto(f"{server.url}?model=gpt2-350m&cluster=a100-80gb:1x4&global_batch=64&tp=2")
        shown.wait_for_selector("#result .facts")
        yield shown
        browser.close()
    assert wrong == []


def _own(url: str, address: str) -> bool:
    return url.startswith((address, "blob:", "data:"))


def _text_of(page: Any, field: str) -> str:
    return str(page.text_content(f'.wrong[data-of="{field}"]'))


def test_three_fields_a_search_cancelled_and_a_plan_exported(page: Any) -> None:
    assert page.input_value("[name=tp]") == "2"
    before = page.text_content("#result .facts")
    for field, value in (("tp", "1"), ("global_batch", "128"), ("micro_batch", "2")):
        page.fill(f"[name={field}]", value)
        page.wait_for_function("before => document.querySelector('#result .facts').textContent !== before", arg=before)
        before = page.text_content("#result .facts")
        assert f"{field}={value}" in page.url
    reopened = page.context.browser.new_page()
    reopened.goto(page.url)
    assert [reopened.input_value(f"[name={field}]") for field in ("model", "tp", "global_batch", "micro_batch")] == [
        *("gpt2-350m", "1", "128", "2")
    ]
    reopened.wait_for_function("before => document.querySelector('#result .facts')?.textContent === before", arg=before)
    reopened.close()
    page.fill("[name=tp]", "x")
    page.wait_for_function("document.querySelector('.wrong[data-of=tp]').textContent !== ''")
    assert "found 'x'" in _text_of(page, "tp")
    assert page.get_attribute("[name=tp]", "aria-invalid") == "true"
    for field in ("tp", "micro_batch"):
        page.fill(f"[name={field}]", "")
    page.fill("[name=model]", "deepseek-v3")
    page.fill("[name=cluster]", "h100:32x8")
    page.click("#search")
    page.wait_for_function("document.querySelector('#said').textContent.startsWith('searching:')")
    page.click("#cancel")
    page.wait_for_function("document.querySelector('#said').textContent === 'cancelled'")
    page.fill("[name=model]", "gpt2-350m")
    page.fill("[name=cluster]", "a100-80gb:1x4")
    page.click("#search")
    page.wait_for_function("document.querySelector('#said').textContent.startsWith('found')")
    with page.expect_download() as exported:
        page.click("#export")
    assert "--num-layers 24" in Path(exported.value.path()).read_text(encoding="utf-8")
    with page.expect_download() as saved:
        page.click("#report")
    assert "<!doctype html>" in Path(saved.value.path()).read_text(encoding="utf-8")
