"""What is told of published runs beside the columns of their table: a JSON object in the row, and files of settings.

A table may have a column `extra`: a JSON object of whatever else the source states of the row. Files `settings_*.csv`
beside a table give, by `id`, the settings of runs whose table left them out.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from profiles.errors import InputError
from profiles.files import read_text

Told = Mapping[str, str]
"""What is told of one row, by name, in lower case; nothing that is blank."""

UNTOLD: Told = {}
ABOUT = frozenset({"id", "gpu", "model_name", "notes", "network"})
"""Names that are the table's own, or no setting."""

YES = frozenset({"1", "true", "yes"})
NO = frozenset({"0", "false", "no"})


def read_told(path: Path, *, settings: Iterable[Path]) -> dict[str, Told]:
    """Return what is told of the rows of the table at `path`, by id: its column `extra`, and over it `settings`.

    Raise InputError for a cell of `extra` that is no JSON object.
    """
    told: dict[str, dict[str, str]] = {}
    for number, cells in enumerate(_records(path), start=1):
        extra = cells.get("extra")
        if extra:
            told[cells["id"]] = _plain(_object(extra, where=f"{path}, record {number}"))
    for file in settings:
        for cells in _records(file):
            told.setdefault(cells["id"], {}).update(_plain(cells))
    return dict(told)


def settings_beside(path: Path) -> tuple[Path, ...]:
    """Return the files of settings in the folder of the table at `path`."""
    return tuple(sorted(path.parent.glob("settings_*.csv")))


def flag(told: Told, *names: str) -> bool | None:
    """Return whether the first of `names` that is told is said to be on; None where none is told in such words."""
    for name in names:
        word = told.get(name, "").split(" ")[0]
        if word in YES | NO:
            return word in YES
    return None


def count(told: Told, *names: str) -> int | None:
    """Return the whole number of the first of `names` that has one, None without."""
    return next((int(told[name]) for name in names if told.get(name, "").isdigit()), None)


def _records(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(read_text(path), newline="")))


def _object(text: str, *, where: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(where=where, key="extra", found=f"no JSON ({error})", expected="a JSON object") from None
    if not isinstance(value, dict):
        raise InputError(where=where, key="extra", found=type(value).__name__, expected="a JSON object")
    return value


def _plain(cells: Mapping[str, Any]) -> dict[str, str]:
    return {
        name.replace("-", "_"): str(value).strip().lower()
        for name, value in cells.items()
        if name not in ABOUT and value is not None and str(value).strip()
    }
