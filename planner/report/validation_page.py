"""Measured against estimated as a page: every run that was predicted, errors by group, the worst rows with reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from planner.report.charts import against
from planner.report.records import Chart, Fact, Page, Part, Section, Table
from planner.shared.words import format_seconds

MOST_WORST, MOST_OPEN = 30, 10
MOST_REASONS = 20


def validation_page(answer: Mapping[str, Any], *, runs: str, by: str) -> Page:
    """Return the page of what `validate --json` prints of the table `runs`; points are coloured by the column `by`."""
    timed = [row for row in answer["rows"] if row["estimated_iteration_time_s"] and row["measured_iteration_time_s"]]
    whole = answer["groups"]["all"]
    sections = []
    if timed:
        sections += [_scatter(timed, by), _worst(timed)]
    sections.append(_groups(answer))
    skipped = Counter(row["skipped"] for row in answer["rows"] if row["skipped"])
    if skipped:
        table = Table(
            title="What could not be predicted, and why",
            columns=("rows", "reason"),
            rows=tuple((f"{count}", reason) for reason, count in skipped.most_common(MOST_REASONS)),
            folded=len(skipped) > 8,
        )
        sections.append(Section(name="skipped", title="Left out", parts=(table,)))
    return Page(
        title=f"Measured against estimated: {runs}",
        subtitle=f"{whole['predicted']:,} of {whole['rows']:,} runs predicted from their configuration alone",
        facts=_facts(whole),
        sections=tuple(sections),
        notes=("An error is estimated over measured, less one; p90: nine of ten runs are within.",),
        answer=answer,
    )


def _facts(whole: Mapping[str, Any]) -> tuple[Fact, ...]:
    facts = []
    for key, label in (("iteration_time", "time"), ("peak_memory", "memory")):
        errors = whole[key]
        if errors:
            note = f"median {errors['median_absolute']:.1%}, p90 {errors['p90_absolute']:.1%}, {errors['rows']:,} runs"
            facts.append(Fact(label=f"mean error of {label}", value=f"{errors['mean_absolute']:.1%}", note=note))
    covered = whole["coverage_90"]
    if covered and covered["share"] is not None:
        facts.append(Fact(label="inside the 90% interval", value=f"{covered['share']:.1%}"))
    facts.append(Fact(label="runs", value=f"{whole['predicted']:,}", note=f"of {whole['rows']:,}"))
    return tuple(facts)


def _scatter(timed: list[Mapping[str, Any]], by: str) -> Section:
    rows = [
        {
            "run": row["id"],
            "measured": row["measured_iteration_time_s"],
            "estimated": row["estimated_iteration_time_s"],
            "group": str(row.get(by) or "-"),
        }
        for row in timed
    ]
    chart = Chart(
        title=f"Seconds of an iteration, by {by}; on the line they are equal, the dashed ones are 10% off",
        about="A point for each run: measured against estimated seconds, both logarithmic",
        spec=against(rows, x="measured", y="estimated", unit="seconds", name="run", kind="group", off=0.1),
    )
    return Section(name="runs", title="Every run", parts=(chart,))


def _worst(timed: list[Mapping[str, Any]]) -> Section:
    order = sorted((row for row in timed if row["error"] is not None), key=lambda row: -abs(row["error"]))
    shown = tuple(
        (
            row["id"],
            str(row["source"]),
            str(row["device"]),
            str(row["devices"]),
            format_seconds(row["measured_iteration_time_s"]),
            format_seconds(row["estimated_iteration_time_s"]),
            f"{row['error']:+.1%}",
            "; ".join(row["assumptions"]),
        )
        for row in order[:MOST_WORST]
    )
    columns = ("run", "source", "device", "devices", "measured", "estimated", "error", "assumed")
    first, others = shown[:MOST_OPEN], shown[MOST_OPEN:]
    parts = [Table(title=f"The {len(first)} worst, with what was assumed of them", columns=columns, rows=first)]
    if others:
        parts.append(Table(title=f"The next {len(others)}", columns=columns, rows=others, folded=True))
    return Section(name="worst", title="Worst runs", parts=tuple(parts))


def _groups(answer: Mapping[str, Any]) -> Section:
    parts: list[Part] = []
    for name, groups in answer["groups"].items():
        if name == "all" or not isinstance(groups, Mapping):
            continue
        rows = tuple(
            (
                str(key),
                f"{figures['predicted']} of {figures['rows']}",
                f"{figures['iteration_time']['mean_absolute']:.1%}",
                f"{figures['iteration_time']['median_absolute']:.1%}",
                f"{figures['iteration_time']['bias']:+.1%}",
                f"{figures['iteration_time']['worst']:+.1%} ({figures['iteration_time']['worst_id']})",
            )
            for key, figures in groups.items()
            if figures["iteration_time"]
        )
        if rows:
            columns = (name, "runs", "mean error", "median", "bias", "worst")
            parts.append(Table(title=f"By {name.replace('_', ' ')}", columns=columns, rows=rows))
    return Section(name="groups", title="By group", parts=tuple(parts))
