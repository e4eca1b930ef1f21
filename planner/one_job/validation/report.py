"""The document that `cellplan validate --json` prints: every row, every group, the baselines and what was skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from planner.one_job.validation.baselines import Baseline, fit_baselines
from planner.one_job.validation.results import GROUPS, RowResult
from planner.one_job.validation.statistics import (
    BaselineErrors,
    Coverage,
    GroupStatistics,
    OomCounts,
    group_rows,
    summarize_group,
)

ALL = "all"


def describe_validation(rows: Sequence[RowResult]) -> dict[str, Any]:
    """The whole document, a value that `json.dumps` takes.

    `groups` has `all` (one entry) and for each way to group rows (`source`, `device`, `generation`, `parallel`,
    `model_size`) an entry for each group. Errors and shares are fractions: 0.05 is 5%.
    """
    baselines = fit_baselines(rows)
    groups: dict[str, Any] = {ALL: describe_group(summarize_group(rows, baselines))}
    for by in GROUPS:
        groups[by] = {
            name: describe_group(summarize_group(members, baselines)) for name, members in group_rows(rows, by).items()
        }
    return {
        "rows": [describe_row(row, baselines) for row in rows],
        "groups": groups,
        "baselines": {baseline.name: asdict(baseline) for baseline in baselines},
        "skipped": skip_reasons(rows),
        "assumptions": dict(Counter(text for row in rows for text in row.assumptions).most_common()),
    }


def describe_row(row: RowResult, baselines: Sequence[Baseline] = ()) -> dict[str, Any]:
    """Return one row for JSON: what was measured, what is estimated, from which inputs and assumptions."""
    return {
        "id": row.id,
        "source": row.source,
        "device": row.device,
        "generation": row.generation,
        "devices": row.devices,
        "parallel": row.parallel,
        "model_size": row.model_size,
        "measured_iteration_time_s": row.measured_iteration_time_s,
        "estimated_iteration_time_s": row.estimated_iteration_time_s,
        "error": row.error,
        "interval_90_s": _ends(row.interval_90_s),
        "measured_peak_memory_bytes": row.measured_peak_memory_bytes,
        "memory_kind": row.memory_kind if row.measured_peak_memory_bytes is not None else None,
        "estimated_peak_memory_bytes": row.estimated_peak_memory_bytes,
        "estimated_held_memory_bytes": row.estimated_held_memory_bytes,
        "memory_error": row.memory_error,
        "memory_interval_90_bytes": _ends(row.memory_interval_90_bytes),
        "measured_oom": row.measured_oom,
        "estimated_oom": row.estimated_oom,
        "oom_stage": row.oom_stage,
        "oom_part": row.oom_part,
        "compute": row.compute,
        "communication": row.communication,
        "assumptions": list(row.assumptions),
        "baselines": {baseline.name: baseline.time_s(row) for baseline in baselines},
        "skipped": row.skipped,
    }


def describe_group(group: GroupStatistics) -> dict[str, Any]:
    """One group's statistics; null where no row of it says anything of the kind."""
    return {
        "rows": group.rows,
        "predicted": group.predicted,
        "skipped": group.skipped,
        "timed": group.timed,
        "iteration_time": asdict(group.time) if group.time else None,
        "peak_memory": asdict(group.memory) if group.memory else None,
        "out_of_memory": _describe_oom(group.oom),
        "ranking": _listed(asdict(group.ranking)) if group.ranking else None,
        "noise": _listed(asdict(group.noise)) if group.noise else None,
        "coverage_90": _describe_coverage(group.time_coverage),
        "memory_coverage_90": _describe_coverage(group.memory_coverage),
        "baselines": {baseline.name: _describe_baseline(baseline) for baseline in group.baselines},
    }


def skip_reasons(rows: Sequence[RowResult]) -> list[dict[str, Any]]:
    """Return why rows have no estimate: each reason with its count and ids, the most frequent first."""
    rows_by_reason: dict[str, list[str]] = {}
    for row in rows:
        if row.skipped is not None:
            rows_by_reason.setdefault(row.skipped, []).append(row.id)
    ordered = sorted(rows_by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    return [{"reason": reason, "rows": len(ids), "ids": ids} for reason, ids in ordered]


def _describe_oom(oom: OomCounts) -> dict[str, Any]:
    return _listed(asdict(oom)) | {
        "told_share": oom.told / oom.ran_out if oom.ran_out else None,
        "false_alarm_share": oom.false_alarms / oom.ran if oom.ran else None,
    }


def _describe_coverage(coverage: Coverage | None) -> dict[str, Any] | None:
    if coverage is None:
        return None
    return asdict(coverage) | {
        "share": coverage.covered / coverage.rows,
        "held_out_share": coverage.held_out_covered / coverage.held_out_rows if coverage.held_out_rows else None,
    }


def _describe_baseline(baseline: BaselineErrors) -> dict[str, Any]:
    return {
        "iteration_time": asdict(baseline.errors),
        "ours_on_these_rows": asdict(baseline.ours),
        "own_constant": asdict(baseline.own_constant),
        "ranking": _listed(asdict(baseline.ranking)) if baseline.ranking else None,
    }


def _listed(fields: dict[str, Any]) -> dict[str, Any]:
    """Tuples as lists, as JSON reads them back."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}


def _ends(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else list(interval)
