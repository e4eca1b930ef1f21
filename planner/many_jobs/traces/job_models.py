"""What the jobs of a trace that names no models train, from a table beside it.

column                                  what it holds
job_id, job_type_or_name, or user *     whose rows are meant: one of these columns, as the trace has it
model *                                 a name of the zoo, or a path to a Hugging Face config.json
global_batch                            samples an iteration (blank: the zoo's)
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

from planner.many_jobs.traces.lines import open_text
from planner.many_jobs.traces.records import Trace, TraceRow
from profiles.errors import InputError
from profiles.numerals import read_whole

KEYS = ("job_id", "job_type_or_name", "user")


def with_job_models(trace: Trace, path: Path) -> Trace:
    """Return the trace whose rows without a model have that of the table at `path`. Raise InputError for a table that
    is none, says a job's model twice, or names no job of the trace."""
    key, models = _read(path)
    named = {getattr(row, key) for row in trace.rows}
    for name in models:
        if name not in named:
            expected = f"a {key} of the trace {trace.source}"
            raise InputError(where=str(path), key=key, found=repr(name), expected=expected)
    return replace(trace, rows=tuple(_with_model(row, models.get(getattr(row, key))) for row in trace.rows))


def _with_model(row: TraceRow, stated: tuple[str, int | None] | None) -> TraceRow:
    if stated is None or row.model:
        return row
    model, batch = stated
    return replace(row, model=model, global_batch=row.global_batch or batch)


def _read(path: Path) -> tuple[str, dict[str, tuple[str, int | None]]]:
    """The column that tells rows apart, and what each of its values trains."""
    where = str(path)
    with open_text(path) as text:
        try:
            table = list(csv.reader(text, strict=True))
        except csv.Error as error:
            raise InputError(where=where, found=f"no CSV ({error})", expected="cells with commas between") from None
    header = [name.strip() for name in table[0]] if table else []
    keys = [name for name in header if name in KEYS]
    if len(keys) != 1 or header.count("model") != 1 or len(set(header)) < len(header):
        expected = f"one column of {', '.join(KEYS)}, a column model, and global_batch or not"
        raise InputError(where=f"{where}, line 1", found=", ".join(header) or "nothing", expected=expected)
    models: dict[str, tuple[str, int | None]] = {}
    for line, cells in enumerate(table[1:], 2):
        if not cells:
            continue
        at = f"{where}, line {line}"
        if len(cells) != len(header):
            raise InputError(where=at, found=f"{len(cells)} cells", expected=f"{len(header)}, as the header has")
        row = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
        name, model = row[keys[0]], row["model"]
        if not name or not model or name in models:
            found = f"{name!r} a second time" if name in models else "an empty cell"
            raise InputError(
                where=at, key=keys[0] if model else "model", found=found, expected="each job once, filled in"
            )
        models[name] = (model, _batch(row.get("global_batch", ""), at))
    return keys[0], models


def _batch(cell: str, where: str) -> int | None:
    if not cell:
        return None
    try:
        batch = read_whole(cell)
    except ValueError:
        batch = 0
    if batch < 1:
        expected = "a whole number of at least 1, or nothing"
        raise InputError(where=where, key="global_batch", found=repr(cell), expected=expected)
    return batch
