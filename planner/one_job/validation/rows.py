"""Run tables as records: the reader of a CSV file, one `RunRow` a run. COLUMNS.md says what the columns mean."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planner.one_job.validation.columns import BY_HEADER, DEGREES, Column, RunRow, read_cell
from profiles.errors import InputError
from profiles.files import read_text, text_lines
from profiles.records import dataclass

METRICS = ("iter_time_s", "tflops_per_gpu", "tokens_per_s_per_gpu", "mfu")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTable:
    """The rows of a file, and what was noticed on reading it (columns that nobody reads)."""

    rows: tuple[RunRow, ...]
    notes: tuple[str, ...]


def read_table(path: str | Path) -> RunTable:
    """Return the runs of a CSV file with a header; columns may stand in any order and be left out, but for `id`.

    Columns that `COLUMNS` does not have are ignored, and noted. InputError says file and line, column, what was found
    and what was expected: a cell of the wrong kind, a row with more or fewer cells than the header, an id twice, an
    unfinished quotation, a file without rows.
    """
    return parse_table(read_text(path), name=str(path))


def parse_table(text: str, *, name: str) -> RunTable:
    """Return what `read_table` does of a text; `name` stands for the file in errors."""
    lines = _lines(text, name)
    header_line, header = next(lines, (1, []))
    columns = _columns(header, where=f"{name}, line {header_line}")
    unread = [title for title, column in zip(header, columns, strict=True) if column is None]
    rows: list[RunRow] = []
    seen: dict[str, str] = {}
    for number, cells in lines:
        row = _row(columns, cells, where=f"{name}, line {number}")
        if row.id in seen:
            stated = f"{row.id!r} a second time (first: {seen[row.id]})"
            raise InputError(where=row.where, key="id", found=stated, expected="each row's own id")
        seen[row.id] = f"line {number}"
        rows.append(row)
    if not rows:
        raise InputError(where=name, found="a header and no rows", expected="one row for each run")
    notes = (f"columns that are not read: {', '.join(unread)}",) if unread else ()
    return RunTable(rows=tuple(rows), notes=notes)


def _lines(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """Each non-empty record with the line that it starts in."""
    text_lines(text, where=name)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        first = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            expected = "comma-separated values, quotes closed"
            raise InputError(where=f"{name}, line {first}", found=f"no CSV ({error})", expected=expected) from None
        if cells is None:
            return
        if any(cell.strip() for cell in cells):
            yield first, cells


def _columns(header: list[str], *, where: str) -> list[Column | None]:
    columns = [BY_HEADER.get(title.strip()) for title in header]
    read = [column.name for column in columns if column]
    twice = sorted({name for name in read if read.count(name) > 1})
    if twice:
        raise InputError(where=where, key=twice[0], found="the column twice", expected="each column once")
    if "id" not in read:
        shown = ", ".join(header[:8]) or "an empty file"
        raise InputError(where=where, key="id", found=shown, expected="a header with the column id (see COLUMNS.md)")
    if not {"gpu", "cluster"} & set(read):
        raise InputError(where=where, key="gpu", found="no such column", expected="gpu (or device), or cluster")
    return columns


def _row(columns: list[Column | None], cells: list[str], *, where: str) -> RunRow:
    if len(cells) != len(columns):
        stated = f"{len(cells)} cells"
        raise InputError(where=where, found=stated, expected=f"{len(columns)}, as the header has")
    values: dict[str, Any] = {
        column.name: value
        for column, cell in zip(columns, cells, strict=True)
        if column is not None and (value := read_cell(column, cell, where=where)) not in (None, "")
    }
    if "id" not in values:
        raise InputError(where=where, key="id", found="nothing", expected="the row's name")
    degrees = tuple((name, values.pop(name)) for name in DEGREES if name in values)
    return _checked(RunRow(where=where, degrees=degrees, **values))


def _checked(row: RunRow) -> RunRow:
    """`row`, unless it states its time in two ways or in none that there is."""
    if row.metric_name and row.metric_name not in METRICS:
        expected = f"one of {', '.join(METRICS)}"
        raise InputError(where=row.where, key="metric_name", found=repr(row.metric_name), expected=expected)
    if (row.metric_name == "") != (row.metric_value is None):
        stated = f"metric_name {row.metric_name!r} and metric_value {row.metric_value}"
        raise InputError(where=row.where, key="metric_value", found=stated, expected="both or neither")
    if row.iter_time_s is not None and row.metric_name:
        stated = "both iter_time_s and metric_name"
        raise InputError(where=row.where, key="iter_time_s", found=stated, expected="one of them")
    return row
