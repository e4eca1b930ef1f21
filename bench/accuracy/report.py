"""RESULTS.md: errors of every group against its target, beside baselines and peers; memory, order, coverage, noise."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import version

from bench.accuracy.fitting import FITTED_SOURCES
from bench.accuracy.groups import GROUPS, Group
from bench.accuracy.markdown import percent, table
from bench.accuracy.runs import Run, model_kind, timed_runs
from estimator.pricing.interval import WorkKind, work_kind
from planner.one_job.validation.baselines import Baseline, fit_baselines
from planner.one_job.validation.report import skip_reasons
from planner.one_job.validation.statistics import (
    Coverage,
    ErrorSummary,
    count_oom,
    group_rows,
    measure_coverage,
    measure_noise,
    summarize_errors,
    summarize_group,
)
from profiles.uncertainty import load_uncertainty

SHOWN_WORST = 30
SHOWN_IDS = 4


def write_header(runs: Sequence[Run], name: str) -> str:
    """What was run, on what, and how the rows are split."""
    timed = timed_runs(runs)
    packages = ", ".join(f"{package} {version(package)}" for package in ("numpy", "scipy", "matplotlib"))
    return "\n".join(
        (
            "# Estimates against published runs",
            "",
            "Written by `python -m bench.accuracy --data DIR`; do not edit.",
            "",
            f"- Machine: {platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python"
            f" {platform.python_version()}, {packages}",
            f"- Rows: {len(runs)} of {name}, {sum(run.result.predicted for run in runs)} predicted,"
            f" {len(timed)} of them with a measured time",
            "- Split: a row is of the fit half where the first byte of SHA-256 of `cellplan validate: ID` is even"
            f" ({sum(run.fitted for run in timed)} timed rows). The parameters of training.toml are fitted on that half"
            f" of {', '.join(sorted(FITTED_SOURCES))} alone, half-widths of intervals on that half of all sources; the"
            " other half is the held one. Some figures elsewhere were chosen while looking at both halves: see"
            " 'Other figures that rest on runs'",
            "- Errors are of the iteration time, estimated / measured - 1; a mean is of absolute errors",
        )
    )


def write_targets(runs: Sequence[Run]) -> str:
    """Each group against the issue's target."""
    rows = []
    for group in GROUPS:
        members = [run for run in runs if group.holds(run)]
        summary = summarize_group([run.result for run in members])
        time, tau = summary.time, summary.ranking.kendall_tau if summary.ranking else None
        rows.append(
            (
                group.name,
                str(len(members)),
                str(summary.timed),
                *_errors(time),
                percent(summary.memory.mean_absolute if summary.memory else None),
                "-" if tau is None else f"{tau:.2f}",
                group.target.text,
                _verdict(group, time, summary.memory, tau),
            )
        )
    header = ("group", "rows", "timed", "mean", "median", "bias", "p90", "worst", "memory", "tau", "target", "met")
    return table(header, rows)


def write_halves(runs: Sequence[Run]) -> str:
    """Each group's error on all rows, on those that were fitted on, and on the others."""
    rows = []
    for group in GROUPS:
        members = [run for run in timed_runs(runs) if group.holds(run)]
        cells = []
        for half in (members, [run for run in members if run.fitted], [run for run in members if not run.fitted]):
            summary = _summary(half)
            cells += [str(len(half)), percent(summary.mean_absolute if summary else None)]
        rows.append((group.name, *cells))
    return table(("group", "rows", "all", "rows", "fit half", "rows", "held half"), rows)


def write_baselines(runs: Sequence[Run]) -> str:
    """Each group beside both baselines and what others publish."""
    baselines = fit_baselines(run.result for run in runs)
    rows = []
    for group in GROUPS:
        members = [run.result for run in timed_runs(runs) if group.holds(run)]
        found = {one.name: one for one in summarize_group(members, baselines).baselines} if members else {}
        cells = []
        for baseline in baselines:
            one = found.get(baseline.name)
            cells += [
                percent(one.errors.mean_absolute if one else None),
                percent(one.own_constant.mean_absolute if one else None),
                "-" if one is None or one.ranking is None else f"{one.ranking.kendall_tau:.2f}",
            ]
        ours = _summary([run for run in timed_runs(runs) if group.holds(run)])
        rows.append((group.name, percent(ours.mean_absolute if ours else None), *cells, group.peers or "-"))
    header = ["group", "ours"]
    for baseline in baselines:
        header += [_words(baseline), "own constant", "tau"]
    return "\n\n".join(
        (
            "One constant MFU for all rows, fitted on the fit half, without and with the bubble; beside each the best"
            " that such a constant can do on the group's own rows. Peers' figures are as they publish them, on all rows"
            " of the source.",
            table([*header, "peers"], rows),
        )
    )


def write_memory(runs: Sequence[Run]) -> str:
    """Peak memory by source and kind of figure, and out-of-memory rows told and missed."""
    rows = []
    keys = dict.fromkeys(
        (run.result.source, run.result.memory_kind) for run in runs if run.result.memory_error is not None
    )
    for source, kind in keys:
        members = [run.result for run in runs if (run.result.source, run.result.memory_kind) == (source, kind)]
        known = [(one.id, one.memory_error) for one in members if one.memory_error is not None]
        rows.append((source, kind, str(len(known)), *_errors(summarize_errors(known))))
    memory = table(("source", "figure", "rows", "mean", "median", "bias", "p90", "worst"), rows)
    told = []
    for source, members in group_rows((run.result for run in runs), "source").items():
        oom = count_oom(members)
        if oom.ran_out or oom.false_alarms:
            share = percent(oom.false_alarms / oom.ran if oom.ran else None)
            wrong = _ids((*oom.missed_ids, *oom.false_alarm_ids))
            told.append((source, f"{oom.told} of {oom.ran_out}", str(oom.ran), str(oom.false_alarms), share, wrong))
    header = ("source", "ran out, told", "ran", "called out of memory", "share", "wrong on")
    return "\n\n".join((memory, table(header, told) if told else "No row ran out of memory or was said to."))


def write_coverage(runs: Sequence[Run]) -> str:
    """How many measured figures lie in their 90% interval, by what the run is limited by, device and group."""
    known = load_uncertainty()

    def limited(run: Run) -> WorkKind | None:
        if run.outcome is None or run.setup is None:
            return None
        shares = {"launch_share": known.launch_share, "communication_share": known.communication_share}
        return work_kind(run.outcome.breakdown, model_kind(run.setup), **shares)

    timed = timed_runs(runs)
    rows = [_coverage_row("all, time", timed, _time_coverage), _coverage_row("all, memory", runs, _memory_coverage)]
    kinds = [
        kind for kind in ("compute", "communication", "experts", "launch", "convolution") if kind in map(limited, timed)
    ]
    rows += [
        _coverage_row(f"time, {kind}", [run for run in timed if limited(run) == kind], _time_coverage) for kind in kinds
    ]
    for device in sorted({run.device for run in timed}):
        rows.append(_coverage_row(f"time, {device}", [run for run in timed if run.device == device], _time_coverage))
    for group in GROUPS:
        rows.append(_coverage_row(f"time, {group.name}", [r for r in timed if group.holds(r)], _time_coverage))
    classes = [
        (
            name,
            one.device,
            one.work,
            percent(one.log_half_width),
            str(one.rows),
            ", ".join(one.sources),
        )
        for name, found in (("time", known.time), ("memory", known.memory))
        for one in found
    ]
    return "\n\n".join(
        (
            "Measured figures inside their 90% interval. Half-widths were calibrated on the fit half; the held half had"
            " no say.",
            table(
                ("rows of", "fit half", "covered", "held half", "covered", "mean width"), [row for row in rows if row]
            ),
            "Half-widths (of the logarithm) by class; `*` stands for any device without rows enough, from errors on"
            " every device in turn with parameters fitted without it:",
            table(("figure", "device", "limited by", "half-width", "rows", "sources"), classes),
        )
    )


def write_noise(runs: Sequence[Run]) -> str:
    """Runs of one configuration done several times."""
    rows = []
    for source, members in group_rows((run.result for run in timed_runs(runs)), "source").items():
        noise = measure_noise(members)
        if noise is not None:
            rows.append(
                (
                    source,
                    str(noise.sets),
                    str(noise.rows),
                    percent(noise.spread_mean),
                    percent(noise.spread_worst),
                    percent(noise.floor),
                    _ids(noise.spread_worst_ids),
                )
            )
    header = ("source", "sets", "rows", "mean spread", "worst", "least error of any method", "worst set")
    text = "Runs whose sources state the same of them (blanks as blanks): the slowest over the fastest, minus 1."
    return f"{text}\n\n{table(header, rows) if rows else 'None.'}"


def write_worst(runs: Sequence[Run]) -> str:
    """The rows of groups with a target that are furthest off."""
    members = [run for run in timed_runs(runs) if any(group.holds(run) and group.target.mean for group in GROUPS)]
    members.sort(key=lambda run: -abs(run.error or 0.0))
    rows = []
    for run in members[:SHOWN_WORST]:
        parts = run.outcome.breakdown if run.outcome else None
        largest = (
            ""
            if parts is None
            else ", ".join(
                f"{name.removesuffix('_s')} {getattr(parts, name) / parts.total_s:.0%}"
                for name in sorted(parts.__dataclass_fields__, key=lambda name: -getattr(parts, name))[:3]
            )
        )
        half = "fit" if run.fitted else "held"
        rows.append((run.row.id, run.device, percent(run.error, signed=True), half, largest))
    return table(("row", "device", "error", "half", "where the estimate's time goes"), rows)


def write_skipped(runs: Sequence[Run]) -> str:
    """Rows without an estimate, by reason; how many are of models refused by name, and how many lack something."""
    reasons = skip_reasons([run.result for run in runs])
    rows = [(entry["reason"], str(entry["rows"]), _sources(entry["ids"]), _ids(entry["ids"])) for entry in reasons]
    untimed = Counter(run.result.source for run in runs if run.result.predicted and run.error is None)
    text = f"Predicted, but without a measured time: {', '.join(f'{s} {n}' for s, n in untimed.items()) or 'none'}."
    refused = sum(entry["rows"] for entry in reasons if entry["reason"].startswith("refused by name"))
    lacking = sum(entry["rows"] for entry in reasons) - refused
    share = lacking / max(1, len(runs))
    counts = f"Refused by name: {refused} of {len(runs)} rows; skipped for want of something: {lacking} ({share:.1%})."
    return f"{table(('reason', 'rows', 'sources', 'ids'), rows)}\n\n{counts} {text}"


def _summary(runs: Sequence[Run]) -> ErrorSummary | None:
    return summarize_errors([(run.row.id, run.error) for run in runs if run.error is not None])


def _errors(summary: ErrorSummary | None) -> tuple[str, str, str, str, str]:
    if summary is None:
        return ("-",) * 5
    return (
        percent(summary.mean_absolute),
        percent(summary.median_absolute),
        percent(summary.bias, signed=True),
        percent(summary.p90_absolute),
        f"{percent(summary.worst, signed=True)} ({summary.worst_id})",
    )


def _verdict(group: Group, time: ErrorSummary | None, memory: ErrorSummary | None, tau: float | None) -> str:
    target = group.target
    checks = [
        (name, found is not None and found <= bound)
        for name, found, bound in (
            ("mean", time.mean_absolute if time else None, target.mean),
            ("median", time.median_absolute if time else None, target.median),
            ("worst", abs(time.worst) if time else None, target.worst),
            ("memory", memory.mean_absolute if memory else None, target.memory_mean),
        )
        if bound is not None
    ]
    if target.tau is not None:
        checks.append(("tau", tau is not None and tau >= target.tau))
    if not checks:
        return "-"
    if time is None:
        return "no row"
    failed = [name for name, met in checks if not met]
    return f"no: {', '.join(failed)}" if failed else "yes"


def _time_coverage(runs: Sequence[Run]) -> Coverage | None:
    return measure_coverage(
        (run.row.id, run.result.measured_iteration_time_s, run.result.interval_90_s) for run in runs
    )


def _memory_coverage(runs: Sequence[Run]) -> Coverage | None:
    return measure_coverage(
        (run.row.id, run.result.measured_peak_memory_bytes, run.result.comparable_memory_interval_bytes)
        for run in runs
        if run.result.memory_kind != "required"
    )


def _coverage_row(
    name: str, runs: Sequence[Run], measure: Callable[[Sequence[Run]], Coverage | None]
) -> tuple[str, ...]:
    found = measure(runs) if runs else None
    if found is None:
        return ()
    fit_rows = found.rows - found.held_out_rows
    fit_covered = found.covered - found.held_out_covered
    return (
        name,
        str(fit_rows),
        percent(fit_covered / fit_rows if fit_rows else None),
        str(found.held_out_rows),
        percent(found.held_out_covered / found.held_out_rows if found.held_out_rows else None),
        percent(found.mean_width),
    )


def _words(baseline: Baseline) -> str:
    return f"MFU {baseline.mfu:.2f}{', bubble' if baseline.with_bubble else ''}"


def _ids(ids: Sequence[str]) -> str:
    return ", ".join(ids[:SHOWN_IDS]) + (" ..." if len(ids) > SHOWN_IDS else "")


def _sources(ids: Sequence[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in Counter(each.partition("-")[0] for each in ids).items())
