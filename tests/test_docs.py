"""The documentation: every page has a way to it, every option of every command stands in it, and it builds."""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from planner import api
from planner.cli.main import COMMANDS

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """The module that writes the reference; it is no part of a package."""
    spec = importlib.util.spec_from_file_location("docs_reference", DOCS / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def pages(reference: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "80")
    reference.write(tmp_path / "pages")
    return tmp_path / "pages"


def test_every_page_has_a_way_to_it() -> None:
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    listed = {line for block in re.findall(r"```{toctree}(.*?)```", text, re.DOTALL) for line in block.splitlines()}
    assert {path.stem for path in DOCS.glob("*.md")} - {"index"} <= listed


def test_each_option_of_each_command_stands_in_the_reference(reference: ModuleType, pages: Path) -> None:
    for name in COMMANDS:
        text = (pages / f"{name}.md").read_text(encoding="utf-8")
        for words, parser in reference.parsers_of(name):
            assert words in text
            flags = [
                flag for action in parser._actions if action.help != argparse.SUPPRESS for flag in action.option_strings
            ]
            assert [flag for flag in flags if flag not in text] == []


def test_each_function_stands_in_the_reference(pages: Path) -> None:
    text = (pages / "functions.md").read_text(encoding="utf-8")
    assert [name for name in api.__all__ if f"## {name}\n" not in text] == []


def test_pages_that_are_the_same_are_not_written_anew(reference: ModuleType, pages: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in pages.iterdir()}
    reference.write(pages)
    assert {path: path.stat().st_mtime_ns for path in pages.iterdir()} == before


def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    for name in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(name, reason=f"{name} is not installed: make docs")
    words = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", str(DOCS), str(tmp_path / "html")]
    built = subprocess.run(words, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "html" / "reference_pages" / "plan.html").exists()
