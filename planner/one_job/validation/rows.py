"""Run tables as records: the reader of a CSV file, one `RunRow` a run. COLUMNS.md says what the columns mean."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.one_job.validation.columns import BY_HEADER, Column, read_cell
from planner.one_job.validation.measured import memory_of, time_from_flops, time_without_model
from planner.one_job.validation.results import MemoryKind
from profiles.errors import InputError
from profiles.files import read_text

METRICS = ("iter_time_s", "tflops_per_gpu", "tokens_per_s_per_gpu", "mfu")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run as its author wrote it: text is empty and everything else None where a cell is blank.

    `where` is file and line. `measured_iteration_time_s` is the stated time or what the row's own figures make of the
    stated metric, `time_basis` which; `measured_memory_bytes` is of the kind `memory_kind`.
    """

    id: str
    where: str
    source_repo_or_paper: str = ""
    source_path_or_table: str = ""
    gpu: str = ""
    gpu_mem_gb: float | None = None
    gpus_total: int | None = None
    gpus_per_node: int | None = None
    intra_node_link: str = ""
    inter_node_link: str = ""
    model_name: str = ""
    model_family: str = ""
    params_b: float | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn_hidden: int | None = None
    vocab: int | None = None
    experts: int | None = None
    topk: int | None = None
    seq_len: int | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    zero_or_fsdp: str = ""
    seq_parallel: bool | None = None
    recompute: str = ""
    flash_attn: bool | None = None
    dtype: str = ""
    optimizer_notes: str = ""
    metric_name: str = ""
    metric_value: float | None = None
    peak_mem_gb: float | None = None
    notes: str = ""
    derived_iter_time_s: float | None = None
    derived_check: str = ""
    iter_time_s: float | None = None
    framework: str = ""
    cluster: str = ""
    schedule: str = ""
    etp: int | None = None
    shard: int | None = None
    recompute_layers: int | None = None
    grad_accum: int | None = None
    grad_dtype: str = ""
    optimizer_masters: bool | None = None
    overlap: str = ""
    kernels: str = ""
    launch: str = ""
    fused_cross_entropy: bool | None = None
    vocab_multiple: int | None = None
    offload: str = ""
    lora_rank: int | None = None
    moe_ffn: int | None = None
    shared_experts: int | None = None
    dense_layers: int | None = None
    head_dim: int | None = None
    moe_capacity_factor: float | None = None
    image: int | None = None
    tflops_convention: str = ""
    memory_kind: MemoryKind = "reserved"
    memory_unit: str = ""
    out_of_memory: bool = False
    measured_iteration_time_s: float | None = None
    time_basis: str = ""
    measured_memory_bytes: float | None = None

    @property
    def source(self) -> str:
        """The group that the row is counted in: its id up to the first hyphen."""
        return self.id.partition("-")[0]

    @property
    def said(self) -> str:
        """All free text of the row, in which patterns are looked for."""
        return " | ".join(
            (self.source_repo_or_paper, self.source_path_or_table, self.zero_or_fsdp, self.optimizer_notes, self.notes)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTable:
    """The rows of a file, and what was noticed on reading it (columns that nobody reads)."""

    rows: tuple[RunRow, ...]
    notes: tuple[str, ...]


def read_runs(path: str | Path) -> tuple[RunRow, ...]:
    """The runs of the CSV file at `path`; see `read_table`."""
    return read_table(path).rows


def read_table(path: str | Path) -> RunTable:
    """The runs of a CSV file with a header; columns may stand in any order and be left out, but for `id`.

    Columns that `COLUMNS` does not have are ignored, and noted. InputError says file and line, column, what was found
    and what was expected: a cell of the wrong kind, a row with more or fewer cells than the header, an id twice, an
    unfinished quotation, a file without rows.
    """
    return parse_table(read_text(path), name=str(path))


def parse_table(text: str, *, name: str) -> RunTable:
    """`read_table` of a text; `name` stands for the file in errors."""
    lines = _lines(text, name)
    header_line, header = next(lines, (1, []))
    columns = _columns(header, where=f"{name}, line {header_line}")
    unread = [title for title, column in zip(header, columns, strict=True) if column is None]
    rows: list[RunRow] = []
    seen: dict[str, str] = {}
    for number, cells in lines:
        row = _row(columns, cells, where=f"{name}, line {number}")
        if row.id in seen:
            found = f"{row.id!r} a second time (first: {seen[row.id]})"
            raise InputError(where=row.where, key="id", found=found, expected="each row's own id")
        seen[row.id] = f"line {number}"
        rows.append(row)
    if not rows:
        raise InputError(where=name, found="a header and no rows", expected="one row for each run")
    notes = (f"columns that are not read: {', '.join(unread)}",) if unread else ()
    return RunTable(rows=tuple(rows), notes=notes)


def _lines(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """Each non-empty record with the line that it starts in."""
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
    found = [BY_HEADER.get(title.strip()) for title in header]
    read = [column.name for column in found if column]
    twice = sorted({name for name in read if read.count(name) > 1})
    if twice:
        raise InputError(where=where, key=twice[0], found="the column twice", expected="each column once")
    if "id" not in read:
        shown = ", ".join(header[:8]) or "an empty file"
        raise InputError(where=where, key="id", found=shown, expected="a header with the column id (see COLUMNS.md)")
    if not {"gpu", "cluster"} & set(read):
        raise InputError(where=where, key="gpu", found="no such column", expected="gpu (or device), or cluster")
    return found


def _row(columns: list[Column | None], cells: list[str], *, where: str) -> RunRow:
    if len(cells) != len(columns):
        found = f"{len(cells)} cells"
        raise InputError(where=where, found=found, expected=f"{len(columns)}, as the header has")
    values: dict[str, Any] = {
        column.field: value
        for column, cell in zip(columns, cells, strict=True)
        if column is not None and (value := read_cell(column, cell, where=where)) not in (None, "")
    }
    if "id" not in values:
        raise InputError(where=where, key="id", found="nothing", expected="the row's name")
    return _finish(RunRow(where=where, **values), stated_kind="memory_kind" in values)


def _finish(row: RunRow, *, stated_kind: bool) -> RunRow:
    """Brings the two ways to state a time together, and reads the memory figure."""
    if row.metric_name and row.metric_name not in METRICS:
        expected = f"one of {', '.join(METRICS)}"
        raise InputError(where=row.where, key="metric_name", found=repr(row.metric_name), expected=expected)
    if (row.metric_name == "") != (row.metric_value is None):
        found = f"metric_name {row.metric_name!r} and metric_value {row.metric_value}"
        raise InputError(where=row.where, key="metric_value", found=found, expected="both or neither")
    if row.iter_time_s is not None and row.metric_name:
        found = "both iter_time_s and metric_name"
        raise InputError(where=row.where, key="iter_time_s", found=found, expected="one of them")
    if row.iter_time_s is not None:
        row = replace(row, metric_name="iter_time_s", metric_value=row.iter_time_s)
    kind, measured = memory_of(row, stated_kind=stated_kind)
    seconds, basis = time_without_model(row)
    if seconds is None:
        seconds, basis = time_from_flops(row)
    return replace(
        row,
        out_of_memory=row.out_of_memory or "out of memory" in row.notes.lower(),
        memory_kind=kind,
        measured_memory_bytes=measured,
        measured_iteration_time_s=seconds,
        time_basis=basis,
    )
