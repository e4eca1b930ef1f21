"""The notebooks under examples/ run from their first cell to their last, and show what they are committed with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bench.notebooks import EXAMPLES, executed
from tests.documented import NUMBER

NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
MOST_BYTES = 200_000


def shape_of(output: dict[str, Any]) -> Any:
    """An output with every figure as #, every length of a text in units of its lines."""
    if output["output_type"] == "stream":
        return [NUMBER.sub("#", line).split() for line in output["text"]]
    return {kind: re.sub(r"\s+", " ", NUMBER.sub("#", "".join(lines))) for kind, lines in output["data"].items()}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_shows(path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    # Without torch none measures: the Cells are those of the pages' commands (tests/test_documented.py).
    store = tmp_path_factory.getbasetemp() / "no-store.sqlite"
    if has_torch := "import torch" in path.read_text(encoding="utf-8"):
        pytest.importorskip("torch", reason="torch is not installed")
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], len({cell["id"] for cell in notebook["cells"]})) == (4, len(notebook["cells"]))
    assert path.stat().st_size <= MOST_BYTES
    again = executed(notebook, path.name, None if has_torch else store)
    shown = 0
    for was, now in zip(notebook["cells"], again["cells"], strict=True):
        if was["cell_type"] == "code":
            told = f"{path.name} {was['id']}: shows something else (python -m bench.notebooks writes it anew)"
            assert [shape_of(output) for output in was["outputs"]] == [shape_of(each) for each in now["outputs"]], told
            shown += len(was["outputs"])
    assert shown >= 5
    assert not any("<script" in json.dumps(cell) for cell in notebook["cells"])


def test_there_are_notebooks_for_each_kind_of_reader() -> None:
    assert {path.stem for path in NOTEBOOKS} >= {"first_hour", "choosing_a_cluster", "comparing_policies"}
