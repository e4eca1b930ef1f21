"""The documentation: every page has a way to it, every option of every command stands in it, and it builds."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

import pytest

from planner import api
from planner.cli.main import COMMANDS
from planner.contention.policies.catalogue import NETWORK_POLICIES
from planner.many_jobs.placers.catalogue import PLACERS
from planner.many_jobs.policies.catalogue import POLICIES
from profiles.cluster_file import load_cluster
from profiles.cluster_schema import ClusterModel
from profiles.training_parameters import load_training_parameters

DOCS = Path(__file__).resolve().parents[1] / "docs"


def module_of(name: str) -> ModuleType:
    """A module of the documentation; it is no part of a package."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """The module that writes the reference."""
    return module_of("reference")


@pytest.fixture
def pages(reference: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "80")
    reference.write(tmp_path / "pages")
    return tmp_path / "pages"


def test_every_page_has_a_way_to_it() -> None:
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    listed = [line for block in re.findall(r"```{toctree}(.*?)```", text, re.DOTALL) for line in block.split()]
    pages = {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")}
    written = {page for page in pages if not page.startswith(("reference_pages/", "_build/"))} - {"index"}
    assert [page for page in written if not any(fnmatch(page, pattern) for pattern in listed)] == []
    assert [name for name in listed if "/" in name and not (DOCS / f"{name}.md").exists()] in (
        [],
        ["reference_pages/index"],
    )


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


def test_each_key_of_cluster_and_plan_files_stands_in_the_reference(pages: Path) -> None:
    plan = json.loads((DOCS.parent / "planner/shared/schemas/plan.schema.json").read_text(encoding="utf-8"))
    for name, schema in (("cluster-file", ClusterModel.model_json_schema(by_alias=True)), ("plan-file", plan)):
        text = (pages / f"{name}.md").read_text(encoding="utf-8")
        for record in (schema, *schema["$defs"].values()):
            assert [key for key in record["properties"] if f"| `{key}` |" not in text] == [], name


def test_examples_of_cluster_files_are_clusters() -> None:
    for path in sorted((DOCS.parent / "examples").rglob("*.yaml")):
        if "cellplan.cluster/1" in path.read_text(encoding="utf-8") and path.parent.name != "pods":
            assert load_cluster(str(path)).slots


def test_each_policy_stands_in_the_reference_and_none_that_is_not(pages: Path) -> None:
    every = {*POLICIES, *PLACERS, *NETWORK_POLICIES}
    text = (pages / "policies.md").read_text(encoding="utf-8")
    assert [name for name in every if f"`{name}`\n: " not in text] == []
    tables = (DOCS / "policies.md").read_text(encoding="utf-8").split("## Scheduling")[1]
    named = {
        name for row in re.findall(r"^\| (`[^|]*) \|", tables, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)
    }
    assert named - every == set()


def test_pictures_are_those_that_are_drawn() -> None:
    draw = module_of("draw")
    for name in draw.PICTURES:
        assert (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8") == draw.draw(name)


def test_parameters_on_the_page_of_estimates_are_the_fitted_ones() -> None:
    text = (DOCS / "estimates.md").read_text(encoding="utf-8")
    known = load_training_parameters()
    assert f"p = {known.of('launch_norm'):.1f}" in text
    costs = [known.of("overlap_cost", name) for name in ("tp", "fsdp", "dp", "dp-blackwell")]
    tp, fsdp, dp, blackwell = (f"{cost:.2f}" for cost in costs)
    said = f"({tp} for tp, {fsdp} for FSDP, {dp} for gradients' sums; {blackwell} on Blackwell)"
    assert said in " ".join(text.split())


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
    pages = [page.read_text(encoding="utf-8") for page in (tmp_path / "html").rglob("*.html")]
    asked_for = r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["']?(?:https?:)?//"""
    assert [page[:200] for page in pages if re.search(asked_for, page)] == []
