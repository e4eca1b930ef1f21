"""What `cellplan simulate` prints for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from planner.cli.output import format_figure, format_seconds, print_notes, print_table

if TYPE_CHECKING:
    from planner.many_jobs.scheduling.bound import Bounds
    from planner.many_jobs.simulation.result import Result, Summary, Timing

MOST_REASONS = 5


def print_run(
    result: Result,
    notes: Sequence[str],
    bounds: Bounds | None = None,
    logged: Mapping[str, Any] | None = None,
) -> None:
    """Print the figures of one run, beside those of the log and the bounds where there are some."""
    summary, timing = result.summary, result.timing
    ended = f"{summary.finished} of {summary.jobs} finished"
    others = [
        f"{count} {word}" for count, word in ((summary.dropped, "dropped"), (summary.unfinished, "unfinished")) if count
    ]
    rows = [
        ("jobs", ", ".join([ended, *others])),
        ("JCT mean, median, p99", _times(summary.jct_mean_s, summary.jct_median_s, summary.jct_p99_s)),
        ("queueing mean, median, p99", _times(summary.queue_mean_s, summary.queue_median_s, summary.queue_p99_s)),
        ("makespan", _hours(summary.makespan_s)),
        ("throughput mean, peak", f"{summary.throughput_mean:.2f}, {summary.throughput_peak:.2f} (relative rates)"),
        ("utilization", f"{summary.utilization_mean:.1%}"),
        ("nodes in use mean, peak", f"{_numbers(summary.nodes_in_use_mean)}, {_numbers(summary.nodes_in_use_peak)}"),
        ("least that would do, idle", _numbers(summary.nodes_least_mean, summary.nodes_idle_mean)),
        ("machine-hours, fragmentation", _nodes(summary)),
        ("scattered starts, held back", _scattered(summary)),
        ("gradients between nodes", _traffic(summary)),
        ("load of uplinks: all, the busiest", _loads(summary)),
        *_others(summary),
        *_network_policy(summary, timing),
        ("sold a machine-hour", _sold(summary.device_hours_per_machine_hour, summary.revenue_per_machine_hour)),
        ("the same as K P / (N T)", _sold(summary.device_hours_as_printed, summary.revenue_as_printed)),
        ("restarts", f"{summary.restarts} ({summary.restarts_mean:.2f} a finished job)"),
        *_moves(summary),
        *_turns(result),
        ("node failures", str(summary.node_failures)),
        ("deadlines met", f"{summary.deadlines_met} of {summary.deadlines}"),
        ("fairness rho mean, p99, max", _numbers(summary.fairness_mean, summary.fairness_p99, summary.fairness_max)),
        ("decisions", f"{summary.decisions}; p99 {format_seconds(timing.decision_p99_s)}"),
        ("violations", str(summary.violations)),
    ]
    print_table(f"{summary.policy} (modelled)", ("figure", "value"), rows)
    if logged is not None:
        _print_logged(summary, logged)
    if bounds is not None:
        _print_bounds(summary, bounds)
    reasons = Counter(result.reasons.values()).most_common()
    told = [f"{count} jobs unfinished: {reason}" for reason, count in reasons[:MOST_REASONS]]
    print_notes("Notes", [*told, *notes])


def _print_logged(summary: Summary, logged: Mapping[str, Any]) -> None:
    """The jobs as they fared where they were logged, beside this run."""
    rows = [
        (name, _hours(getattr(summary, key)), _hours(logged[key]))
        for name, key in (
            ("mean JCT", "jct_mean_s"),
            ("p99 JCT", "jct_p99_s"),
            ("mean queueing", "queue_mean_s"),
            ("p99 queueing", "queue_p99_s"),
            ("makespan", "makespan_s"),
        )
    ]
    print_table("As logged", ("figure", "this run", "as logged"), rows)


def _print_bounds(summary: Summary, bounds: Bounds) -> None:
    """What no policy can beat, and the gap to it."""
    rows = [
        ["mean JCT", _hours(summary.jct_mean_s), f"at least {_hours(bounds.jct_mean_s)}"],
        ["makespan", _hours(summary.makespan_s), f"at least {_hours(bounds.makespan_s)}"],
        ["mean throughput", f"{summary.throughput_mean:.2f}", f"at most {bounds.throughput_mean:.2f}"],
    ]
    jct = summary.jct_mean_s or 0.0
    gaps = [
        jct / bounds.jct_mean_s if bounds.jct_mean_s else None,
        summary.makespan_s / bounds.makespan_s if bounds.makespan_s else None,
        bounds.throughput_mean / summary.throughput_mean if summary.throughput_mean else None,
    ]
    for row, gap in zip(rows, gaps, strict=True):
        row.append(format_figure(None if gap is None else gap - 1, ".1%"))
    print_table("What no policy can beat", ("figure", "this run", "bound", "gap"), rows)


def print_sweep(
    means: Sequence[Mapping[str, Any]], notes: Sequence[str] = (), logged: Mapping[str, Any] | None = None
) -> None:
    """Print means of several runs, with half the widths of their 95% intervals, beside the log's own where it has
    them, and the notes of the runs."""
    loads = list(dict.fromkeys(f"{mean['load']:g}" for mean in means))
    several, placers = len(loads) > 1, len({mean["placer"] for mean in means}) > 1
    networks = len({mean["network"] for mean in means}) > 1
    columns = (
        "policy",
        *(["placer"] if placers else []),
        *(["network"] if networks else []),
        *(["load"] if several else []),
        "JCT, h",
        "queue, h",
        "p99, h",
        "through.",
        "restarts",
        "done",
        *(["compute"] if networks else []),
    )
    rows = [
        (
            mean["policy"],
            *([mean["placer"]] if placers else []),
            *([mean["network"]] if networks else []),
            *([f"{mean['load']:g}"] if several else []),
            *(_interval(mean[key], 3600) for key in ("jct_mean_s", "queue_mean_s", "jct_p99_s")),
            *(_interval(mean[key]) for key in ("throughput_mean", "restarts_mean", "finished")),
            *([_interval(mean["gpu_utilization_mean"])] if networks else []),
        )
        for mean in means
    ]
    if logged is not None:
        times = (f"{logged[key] / 3600:.3g}" for key in ("jct_mean_s", "queue_mean_s", "jct_p99_s"))
        rows.append(
            (
                "as logged",
                *(["-"] if placers else []),
                *(["-"] if networks else []),
                *(["1"] if several else []),
                *times,
                "-",
                "-",
                str(logged["jobs"]),
                *(["-"] if networks else []),
            )
        )
    seeds = "/".join(dict.fromkeys(str(mean["seeds"]) for mean in means))
    load = "" if several else f" at load {loads[0]}"
    title = f"Means over {seeds} seeds{load}, ± half the 95% interval (modelled)"
    print_table(f"One seed{load} (modelled)" if seeds == "1" else title, columns, rows)
    print_notes("Notes", notes)


def _interval(value: Mapping[str, float | None], unit: float = 1.0) -> str:
    mean, half = value["mean"], value["half_width_95"]
    if mean is None:
        return "-"
    figure = abs(mean / unit)
    said = f"{mean / unit:.3g}" if figure >= 10 else f"{mean / unit:.2f}"
    if half is None:
        return said
    return f"{said}±{half / unit:.1g}" if half / unit >= 0.01 else f"{said}±0"


def _nodes(summary: Summary) -> str:
    return f"{format_figure(summary.machine_hours, '.1f')}, {format_figure(summary.fragmentation_mean, '.1%')}"


def _scattered(summary: Summary) -> str:
    return f"{format_figure(summary.scattered_ratio, '.1%')}, {format_figure(summary.held_back, '.0f')} jobs"


def _moves(summary: Summary) -> list[tuple[str, str]]:
    """None where nobody was moved."""
    if not summary.moves:
        return []
    return [("moves, what they cost", f"{summary.moves}, {summary.moves_device_hours:.4g} device-hours")]


def _turns(result: Result) -> list[tuple[str, str]]:
    """None where no two jobs shared devices."""
    turns = result.turns
    if turns is None:
        return []
    what = f"{turns.jobs} jobs, up to {turns.most_jobs} at once, {turns.device_hours:.4g} device-hours"
    return [("took turns on devices", f"{what} ({turns.share_of_held:.1%} of those held)")]


def _traffic(summary: Summary) -> str:
    sent = summary.cross_node_bytes_per_s
    return "- (a model is not known)" if sent is None else f"{sent / 1e9:.3g} GB/s (ring)"


def _loads(summary: Summary) -> str:
    return f"{format_figure(summary.uplinks_load_mean, '.2%')}, {format_figure(summary.uplinks_load_peak, '.2%')}"


def _others(summary: Summary) -> list[tuple[str, str]]:
    """Rows of a run whose jobs slow each other."""
    if summary.contended_hours is None:
        return []
    slowed = _numbers(summary.slowdown_by_others_mean, summary.slowdown_by_others_max)
    hours = f"{summary.contended_hours:.1f} h, {format_figure(summary.lost_to_others_hours, '.1f')} h"
    rows = [("slowdown by others: mean, max", slowed), ("job-hours that others slow, lost", hours)]
    if summary.gpu_utilization_mean is not None:
        rate = f"{(summary.work_flops_per_s or 0.0) / 1e15:.3g} PFLOP/s"
        rows.append(("GPUs that compute, work done", f"{summary.gpu_utilization_mean:.1%}, {rate}"))
    return rows


def _network_policy(summary: Summary, timing: Timing) -> list[tuple[str, str]]:
    """Rows of a run in which a policy decided on the network."""
    if summary.network_policy is None:
        return []
    jobs = "1 job" if summary.network_changes == 1 else f"{summary.network_changes} jobs"
    stood = f"{jobs}, {summary.network_changes_device_hours or 0.0:.4g} device-hours"
    asked = f"{summary.network_decisions}"
    if timing.network_decision_p99_s is not None:
        asked += f"; p99 {format_seconds(timing.network_decision_p99_s)}"
    return [(f"decisions of {summary.network_policy}", asked), ("changed while they ran", stood)]


def _sold(device_hours: float | None, revenue: float | None) -> str:
    priced = "" if revenue is None else f", for {revenue:.4g}"
    return f"{format_figure(device_hours, '.2f')} device-hours{priced}"


def _times(*values: float | None) -> str:
    return ", ".join(_hours(value) for value in values)


def _hours(value: float | None) -> str:
    if value is None:
        return "-"
    return format_seconds(value) if value < 3600 else f"{value / 3600:.2f} h"


def _numbers(*values: float | None) -> str:
    return ", ".join(format_figure(value, ".2f") for value in values)
