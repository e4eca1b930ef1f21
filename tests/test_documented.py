"""What README and the pages of `docs/` show is what commands print; links lead somewhere; errors are the bench's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from planner.cli.main import make_parser
from tests.documented import (
    APART,
    Shown,
    are_alike,
    blocks,
    commands_of,
    folder_of,
    matched,
    pages,
    run,
)
from tests.imports import ROOT

PAGES = pages()
COMMANDS = [shown for page in PAGES for shown in commands_of(page)]
LONE = [shown for shown in COMMANDS if shown.apart]
MORE_PAGES = [
    ROOT / "examples/README.md",
    ROOT / "planner/many_jobs/policies/POLICIES.md",
    ROOT / "planner/one_job/validation/COLUMNS.md",
]


def name_of(page: Path) -> str:
    """The page as it is called in the repository."""
    return str(page.relative_to(ROOT))


def needs(shown: Shown) -> None:
    """Skip where an extra that the command asks for is not installed."""
    for pattern, extra in (("my_model:", "torch"), ("my_jax_model:", "jax"), ("marginal", "scipy")):
        if pattern in shown.text:
            pytest.importorskip(extra, reason=f"{extra} is not installed")


@pytest.mark.parametrize("page", [page for page in PAGES if list(commands_of(page))], ids=name_of)
def test_commands_of_a_page_print_what_it_shows(
    page: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No page measures into it; the Cells beside it are estimated once for all pages.
    monkeypatch.setenv("CELLPLAN_STORE", str(tmp_path_factory.getbasetemp() / "no-store.sqlite"))
    monkeypatch.syspath_prepend(str(tmp_path / "page"))
    with folder_of(page, tmp_path / "page"):
        for shown in commands_of(page):
            if shown.apart or shown.lacks:
                continue
            needs(shown)
            status, printed = run(shown.words)
            where = f"{name_of(page)}:{shown.line}: cellplan {shown.text}"
            if shown.output is None:
                assert status == 0, f"{where}\n{printed}"
            else:
                told = f"{where} prints now (python -m tests.documented {name_of(page)} writes its figures)\n{printed}"
                assert matched(shown.output, printed.splitlines()) is not None, told


def place_of(shown: Shown) -> str:
    """The page and the line of a command."""
    return f"{name_of(shown.page)}:{shown.line}"


@pytest.mark.parametrize("shown", COMMANDS, ids=place_of)
def test_every_command_is_one_that_exists(shown: Shown) -> None:
    if "--version" not in shown.words:
        assert vars(make_parser(shown.words[0]).parse_args(list(shown.words)))


@pytest.mark.parametrize("shown", LONE, ids=place_of)
def test_commands_that_pages_do_not_run(shown: Shown) -> None:
    pytest.skip(f"{shown.text}: {shown.apart}")


def test_reasons_not_to_run_a_command_are_those_of_some_command() -> None:
    texts = [" ".join(shown.words) for shown in COMMANDS]
    assert [pattern for pattern in APART if not any(re.search(pattern, text) for text in texts)] == []


def test_lines_are_compared_by_shape_and_by_figures() -> None:
    assert are_alike("  iteration  111 s (90%: 92.5 s to 134 s)", "  iteration  112 s (90%: 92.6 s to 134 s)")
    assert not are_alike("  iteration  111 s", "  iteration  141 s")
    assert not are_alike("  plan  tp 4, pp 4", "  plan  tp 8, pp 4")
    assert not are_alike("  iteration  111 s", "  iteration  111 ms")
    assert are_alike('"expected": "..."', '"expected": "a device"')
    assert not are_alike('"expected": "..."', '"found": "a device"')
    assert matched(["a", "...", "c 1"], ["a", "b", "b", "c 1"]) == [0, None, 3]
    assert matched(["...", "c 1"], ["a", "c 1", "d"]) is None
    assert matched(["a", "..."], ["b", "a"]) is None
    assert matched(["a", "b"], ["a", "x", "b"]) is None


# Links


def anchors_of(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    found: set[str] = set()
    inside = {line for _, first, lines in blocks(text) for line in range(first, first + len(lines))}
    for number, line in enumerate(text.splitlines(), 1):
        heading = re.match(r"#+\s+(.*)", line)
        if heading and number not in inside:
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            found.add(re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", [*PAGES, *MORE_PAGES], ids=name_of)
def test_no_link_is_dead(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    dead = []
    for target in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        if "reference_pages" in file.parts:  # written by the build, which finds dead links to them
            continue
        has_anchor = not anchor or file.suffix != ".md"
        if not file.exists() or not (has_anchor or anchor in anchors_of(file.read_text("utf-8"))):
            dead.append(target)
    assert dead == []


def test_pages_name_files_that_exist() -> None:
    folders = "planner|estimator|profiles|models_zoo|tests|bench|examples|cellplan"
    wrong = [
        f"{name_of(page)}: {name}"
        for page in [*PAGES, *MORE_PAGES]
        for name in re.findall(rf"`((?:{folders})/[\w/.-]+)`", page.read_text(encoding="utf-8"))
        if not (ROOT / name).exists()
    ]
    assert wrong == []


def test_examples_are_told() -> None:
    text = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    there = {path.name for path in (ROOT / "examples").iterdir() if path.name not in ("README.md", "__pycache__")}
    there = {name for name in there if not (ROOT / "examples" / name).is_dir() or name in ("pods", "machines")}
    assert {name for name in there if name not in text} == set()


# README


README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


def accuracy_rows(text: str) -> list[tuple[list[str], list[str], list[str]]]:
    """The rows of a page's accuracy tables: sources, counts, mean errors."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip().replace("*", "") for cell in line.strip().strip("|").split("|")]
        sources = re.search(r"\(([A-Z0-9]+(?:, [A-Z0-9]+)*)\)$", cells[0])
        if sources and len(cells) >= 4 and re.fullmatch(r"[\d, ]+", cells[1]):
            found.append((sources[1].split(", "), cells[1].split(", "), cells[2].split(", ")))
    return found


def left_out() -> set[tuple[str, str, str]]:
    """(source, rows, mean) of the bench's table of sources that nothing was fitted on."""
    text = (ROOT / "bench/accuracy/RESULTS.md").read_text(encoding="utf-8")
    part = text[text.index("## Sources that nothing was fitted on") :]
    part = part[: part.index("\n## ", 5)]
    rows = (
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in part.splitlines()
        if line.startswith("| ")
    )
    return {(row[0], row[2], row[3]) for row in rows if len(row) > 4}


@pytest.mark.parametrize("page", ["README.md", "docs/accuracy.md"])
def test_errors_of_sources_left_out_are_those_of_the_bench(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    known = left_out()
    text = text.split("Half of the rows of the sources")[0]
    rows = accuracy_rows(text)
    assert len(rows) >= 5
    for sources, counts, means in rows:
        for number, (count, mean) in enumerate(zip(counts, means, strict=True)):
            source = sources[number] if len(sources) == len(counts) else sources[0]
            assert (source, count, mean) in known, (source, count, mean)
