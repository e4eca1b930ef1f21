"""The layout: imports point one way, no package or module is in a circle, two wings and what both share."""

from __future__ import annotations

import re

import pytest

from tests.imports import PRODUCT, ROOT, circle, imports, modules, names_imported, package_of


def test_no_module_is_in_a_circle() -> None:
    assert circle(imports()) == []


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5])
def test_no_package_is_in_a_circle(depth: int) -> None:
    packages = {(package_of(source, depth), package_of(target, depth)) for source, target in imports()}
    assert circle((source, target) for source, target in packages if source != target) == []


def test_imports_point_one_way() -> None:
    order = {name: number for number, name in enumerate(PRODUCT)}
    upwards = [
        (source, target) for source, target in imports() if order[source.split(".")[0]] < order[target.split(".")[0]]
    ]
    assert upwards == []


def test_one_job_knows_nothing_of_many_jobs() -> None:
    allowed = {
        "planner.shared": ("planner.shared",),
        "planner.one_job": ("planner.shared", "planner.one_job"),
        "planner.contention": ("planner.shared", "planner.one_job", "planner.contention"),
        "planner.many_jobs": ("planner.shared", "planner.one_job", "planner.contention", "planner.many_jobs"),
    }
    wrong = [
        (source, target)
        for source, target in imports()
        for wing, own in allowed.items()
        if source.startswith(f"{wing}.") and target.startswith("planner.") and not target.startswith(own)
    ]
    assert wrong == []


def test_nothing_stands_loose_beside_the_wings() -> None:
    entries = {path.name for path in (ROOT / "planner").iterdir() if path.name != "__pycache__"}
    wings = {"contention", "many_jobs", "one_job"}
    assert entries == {"__init__.py", "py.typed", "api", "cli", "report", "shared", *wings}


def test_the_product_imports_neither_tests_nor_bench_and_bench_no_tests() -> None:
    roots = {path: {name.split(".")[0] for name in names_imported(path)} for path in modules().values()}
    assert [path for path, names in roots.items() if names & {"tests", "bench"}] == []
    benches = modules(("bench",)).values()
    assert [path for path in benches if any(name.split(".")[0] == "tests" for name in names_imported(path))] == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/glossary.md"])
def test_what_the_pages_point_to_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    named = re.findall(r"`((?:planner|estimator|profiles|models_zoo|tests|bench)/[\w/.-]+)`", text)
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []
    assert [name for name in named if not (ROOT / name).exists()] == []
