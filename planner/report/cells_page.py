"""A job's Cells as a page: how fast each device type and number of stages is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from planner.report.charts import bars
from planner.report.estimate_parts import say_count
from planner.report.records import Chart, Fact, Page, Section, Table, Words
from planner.shared.words import format_bytes, format_count, format_seconds


def cells_page(answer: Mapping[str, Any]) -> Page:
    """Return the page of what `estimate --json` prints of Cells."""
    fitting = [cell for cell in answer["cells"] if cell["fits"]]
    rows = [
        {
            "cell": f"{cell['devices']} {cell['device']}, {say_count(cell['stages'], 'stage')}",
            "s": cell["iteration_time_s"],
        }
        for cell in fitting
    ]
    table = Table(
        title="Cells",
        columns=("device", "devices", "stages", "iteration", "tokens/s", "memory", "split"),
        rows=tuple(
            (
                cell["device"],
                str(cell["devices"]),
                str(cell["stages"]),
                format_seconds(cell["iteration_time_s"]) if cell["fits"] else "does not fit",
                format_count(cell["tokens_per_s_per_device"] * cell["devices"])
                if cell["fits"] and cell["tokens_per_s_per_device"] is not None
                else "-",
                format_bytes(cell["peak_memory_bytes"]) if cell["fits"] else "-",
                _say_assembly(cell["assembly"]) if cell["fits"] else str(cell["reason"]),
            )
            for cell in answer["cells"]
        ),
    )
    chart = Chart(
        title="Seconds of an iteration",
        about="A bar for each Cell that fits",
        spec=bars(rows, along="s", of="cell", unit="seconds"),
    )
    best = min(fitting, key=lambda cell: cell["iteration_time_s"], default=None)
    length = f" of {answer['seq_len']:,} tokens" if answer["seq_len"] else ""
    facts = (
        ()
        if best is None
        else (
            Fact(
                label="fastest Cell",
                value=format_seconds(best["iteration_time_s"]),
                note=f"{best['devices']} {best['device']}, {say_count(best['stages'], 'stage')}",
            ),
        )
    )
    assumed = tuple(answer.get("assumptions") or ())
    sections = [Section(name="cells", title="Cells", parts=(chart, table) if rows else (table,))]
    if assumed:
        sections.append(Section(name="basis", title="Assumed", parts=(Words(texts=assumed, listed=True),)))
    return Page(
        title=f"{answer['model']} on {answer['cluster']}",
        subtitle=f"{answer['global_batch']:,} samples{length} an iteration, {answer['dtype']}",
        facts=facts,
        sections=tuple(sections),
        notes=("A Cell: a job, a device type, so many devices, so many stages.",),
        answer=answer,
    )


def _say_assembly(splits: Sequence[str]) -> str:
    """Each stage's split, equal neighbours counted together."""
    runs = [(split, len(list(alike))) for split, alike in groupby(splits)]
    return ", ".join(split if count == 1 else f"{count} x {split}" for split, count in runs)
