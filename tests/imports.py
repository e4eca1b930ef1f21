"""Who imports whom in this repository, as the syntax trees say: imports inside functions and for types count too."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("profiles", "models_zoo", "estimator", "planner", "cellplan")


@cache
def modules(folders: tuple[str, ...] = PRODUCT) -> Mapping[str, Path]:
    """Return every module under `folders` by its dotted name; a package stands for its `__init__.py`."""
    files = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    return {_dotted(path.relative_to(ROOT)): path for path in files}


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports(folders: tuple[str, ...] = PRODUCT) -> frozenset[tuple[str, str]]:
    """Return the pairs (module, module that it imports) among the modules under `folders`."""
    known_modules = modules(folders)
    return frozenset(
        (name, target)
        for name, path in known_modules.items()
        for target in _targets(path, known_modules)
        if target != name
    )


def names_imported(path: Path) -> Iterator[str]:
    """Yield each dotted name that the file imports, `a.b.c` for `from a.b import c`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _targets(path: Path, known_modules: Mapping[str, Path]) -> Iterator[str]:
    for name in names_imported(path):
        target = name if name in known_modules else name.rpartition(".")[0]
        if target in known_modules:
            yield target


def package_of(module: str, depth: int) -> str:
    """Return the package that holds `module`, at most `depth` names deep."""
    package = module if modules()[module].name == "__init__.py" else module.rpartition(".")[0]
    return ".".join(package.split(".")[:depth])


def circle(edges: Iterable[tuple[str, str]]) -> list[str]:
    """Return the names of one circle along `edges`, its first name again at the end; empty where there is none.

    >>> circle([("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")])
    ['b', 'c', 'b']
    >>> circle([("a", "b"), ("b", "c"), ("a", "c")])
    []
    """
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for target, source in sorted(edges):
        sorter.add(source, target)
    try:
        sorter.prepare()
    except CycleError as error:
        return list(error.args[1])
    return []
