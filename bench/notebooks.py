"""Runs the notebooks under `examples/` from their first cell to their last, and writes what each cell shows into it.

    python -m bench.notebooks [NOTEBOOK ...]

A notebook needs no server for that: cells are Python, run one after another in one namespace, and what is shown is what
the last expression of a cell says of itself (`_repr_html_`, else `repr`) and what the cell prints.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run_cell(source: str, names: dict[str, Any], where: str) -> tuple[str, Any]:
    """Return what a cell prints, and the value of its last expression (None where it ends otherwise)."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, where, "exec"), names)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)
    return printed.getvalue(), value


def outputs_of(printed: str, value: Any, count: int) -> list[dict[str, Any]]:
    """What a notebook file says of a cell that printed so and has this value."""
    found: list[dict[str, Any]] = []
    if printed:
        found.append({"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data = {"text/html": value._repr_html_().splitlines(keepends=True), "text/plain": [type(value).__name__]}
        found.append({"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"})
    return found


@contextlib.contextmanager
def beside_examples(kept: Path | None = None) -> Iterator[None]:
    """Work in a folder that has the examples' files, so that a notebook writes beside copies; with the profile store at
    `kept`, and what was estimated for it, or one of its own."""
    before, store = Path.cwd(), os.environ.get("CELLPLAN_STORE")
    with tempfile.TemporaryDirectory() as folder:
        for path in EXAMPLES.iterdir():
            if path.suffix != ".ipynb":
                (Path(folder) / path.name).symlink_to(path)
        os.chdir(folder)
        os.environ["CELLPLAN_STORE"] = str(kept or Path(folder) / "store.sqlite")
        try:
            yield
        finally:
            os.chdir(before)
            if store is None:
                del os.environ["CELLPLAN_STORE"]
            else:
                os.environ["CELLPLAN_STORE"] = store


def executed(notebook: dict[str, Any], name: str, store: Path | None = None) -> dict[str, Any]:
    """Return a notebook with the outputs that its cells have now; they see the profile store at `store`, or an empty
    one of their own."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, count = [], 0
    with beside_examples(store):
        for cell in notebook["cells"]:
            done = dict(cell)
            if cell["cell_type"] == "code":
                count += 1
                printed, value = run_cell("".join(cell["source"]), names, f"{name} {cell['id']}")
                done |= {"execution_count": count, "outputs": outputs_of(printed, value, count)}
            cells.append(done)
    return notebook | {"cells": cells}


def main(paths: list[Path]) -> None:
    """Write the outputs of these notebooks anew."""
    for path in paths:
        notebook = executed(json.loads(path.read_text(encoding="utf-8")), path.name)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{path.name}: {len(notebook['cells'])} cells, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]] or sorted(EXAMPLES.glob("*.ipynb")))
