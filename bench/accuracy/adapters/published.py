"""Published run tables as explicit ones: every column that `cellplan validate` needs, filled from what the row says."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from bench.accuracy.adapters.devices import hardware_columns
from bench.accuracy.adapters.frameworks import framework_of, release_of
from bench.accuracy.adapters.measured import measured_columns
from bench.accuracy.adapters.models import count_blocks, load_published, model_columns, refusal
from bench.accuracy.adapters.recipes import recomputed_layers, with_recipe
from bench.accuracy.adapters.recovered import recovered_row
from bench.accuracy.adapters.settings import batch_columns, setting_columns
from bench.accuracy.adapters.told import UNTOLD, Told, read_told, settings_beside
from planner.one_job.validation.columns import COLUMNS, RunRow, cell_of
from planner.one_job.validation.prepared import PreparedRun, Skipped
from planner.one_job.validation.rows import parse_table, read_table
from planner.one_job.validation.setups import setup_of
from profiles.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """A row as its source wrote it, and the same with everything in columns."""

    published: RunRow
    explicit: RunRow


def read_published(path: Path) -> tuple[PublishedRun, ...]:
    """Return the rows of the run table at `path`, each as published and as the product reads its explicit form.

    Settings that are told beside its columns (`told`) are read with it. InputError if the table cannot be read.
    """
    published = read_table(path).rows
    told = read_told(path, settings=settings_beside(path))
    rows = (explicit_row(row, told.get(row.id, UNTOLD)) for row in published)
    explicit = parse_table(write_table(rows), name=f"{path} (explicit)").rows
    return tuple(
        PublishedRun(published=row, explicit=columns) for row, columns in zip(published, explicit, strict=True)
    )


def prepare(row: RunRow) -> PreparedRun | Skipped:
    """Return the plan of an explicit row, as `cellplan validate` makes it, which does not know ResNet-18; or why there
    is none, beginning with `refused by name` where the model is."""
    why = refusal(row.model_name)
    if why is not None:
        return Skipped(reason=f"refused by name: {why}")
    try:
        return setup_of(row, load=load_published)
    except InputError as error:
        return Skipped(reason=f"{error.key}: found {error.found}, expected {error.expected}")


def explicit_row(row: RunRow, told: Told = UNTOLD) -> RunRow:
    """Return `row` with what its words, and what is `told` beside them, mean in columns; its notes become sentences on
    what was taken from elsewhere."""
    assumed: list[str] = []
    framework = framework_of(row, told)
    stated = row
    row = with_recipe(recovered_row(row, told, framework, assumed), framework.name, assumed)
    columns = model_columns(row, framework, assumed)
    if row.recompute_layers is None:
        blocks = columns.get("layers", row.layers) or count_blocks(columns.get("model_name", row.model_name))
        columns["recompute_layers"] = recomputed_layers(stated, framework.name, blocks)
    columns |= hardware_columns(row, assumed)
    columns |= setting_columns(row, framework, assumed)
    columns["framework"] = release_of(framework, told)
    seq_len = columns.get("seq_len", row.seq_len)
    columns |= batch_columns(row, framework, seq_len, columns["grad_accum"], assumed)
    columns |= measured_columns(row, assumed)
    return replace(row, **columns, notes="; ".join(assumed))


def write_table(rows: Iterable[RunRow]) -> str:
    """Return a run table of `rows` as text, with every column."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.name for column in COLUMNS])
    for row in rows:
        cells = (cell_of(row, column) for column in COLUMNS)
        writer.writerow(["" if cell is None else int(cell) if isinstance(cell, bool) else cell for cell in cells])
    return out.getvalue()
