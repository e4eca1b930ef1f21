"""A simulated week as a page: who sat where, how busy the cluster was, how long jobs took, by whom and by size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from planner.many_jobs.jobs.records import Job
from planner.many_jobs.simulation.result import Result
from planner.report.charts import lines
from planner.report.gantt import draw_gantt
from planner.report.records import Chart, Fact, Page, Part, Picture, Section, Table, Words
from planner.shared.words import format_figure, format_seconds

MOST_POINTS = 300
MOST_USERS = 15
MOST_UNFINISHED = 50
DAY = 86400.0
LEAST_HOURS = 0.01
"""What is shorter stands at the left edge of a logarithmic axis."""


def simulation_page(
    answer: Mapping[str, Any], result: Result, *, trace: str, devices_per_node: Mapping[str, int]
) -> Page:
    """Return the page of what `simulate --json` prints of one run.

    Args:
        answer: that object.
        result: the run's, with its series and slices.
        trace: what was replayed, for the title.
        devices_per_node: by pool.
    """
    sections = [
        Section(name="notes", title="Read this first", parts=(Words(texts=tuple(answer["notes"]), listed=True),)),
        _nodes(result, devices_per_node),
        _over_time(result),
        _times(answer, result),
        _groups(result),
    ]
    if answer["contended_hours"] is not None:
        sections.append(_by_others(answer))
    if answer["bounds"] is not None:
        sections.append(_bounds(answer))
    unfinished = list(answer["reasons"].items())
    if unfinished:
        table = Table(
            title="Jobs that did not finish", columns=("job", "why"), rows=tuple(unfinished[:50]), folded=True
        )
        sections.append(Section(name="unfinished", title="Not finished", parts=(table,)))
    return Page(
        title=f"{trace} under {answer['policy']}",
        subtitle=f"{answer['jobs']:,} jobs, {result.devices:,} devices, placed by {answer['placer']}; all modelled",
        facts=_facts(answer),
        sections=tuple(sections),
        notes=("JCT: from submission to end, of the jobs that finished.",),
        answer=answer,
    )


def _hours(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return format_seconds(seconds) if seconds < 3600 else f"{seconds / 3600:,.2f} h"


def _facts(answer: Mapping[str, Any]) -> tuple[Fact, ...]:
    return (
        Fact(label="mean JCT", value=_hours(answer["jct_mean_s"]), note=f"median {_hours(answer['jct_median_s'])}"),
        Fact(label="mean queueing", value=_hours(answer["queue_mean_s"]), note=f"p99 {_hours(answer['queue_p99_s'])}"),
        Fact(label="utilization", value=f"{answer['utilization_mean']:.1%}", note="devices held over those that work"),
        Fact(label="makespan", value=_hours(answer["makespan_s"])),
        Fact(label="finished", value=f"{answer['finished']:,} of {answer['jobs']:,}"),
    )


def _nodes(result: Result, devices_per_node: Mapping[str, int]) -> Section:
    picture = Picture(
        title="Jobs on nodes over time",
        about="A row for each node, or group of nodes, with the devices that jobs held",
        svg=draw_gantt(result.slices, result.jobs, devices_per_node),
    )
    return Section(name="nodes", title="Who sat where", parts=(picture,))


def _over_time(result: Result) -> Section:
    def rows(names: Mapping[str, str]) -> list[dict[str, Any]]:
        return [
            {"days": at / DAY, "count": value, "of": said}
            for name, said in names.items()
            for at, value in _thinned(result.series["time_s"], result.series[name])
        ]

    held = rows({"devices_held": "devices held", "devices_working": "devices that work"})
    queue = rows({"waiting": "jobs waiting", "running": "jobs running"})
    return Section(
        name="time",
        title="Over time",
        parts=(
            Chart(
                title="Devices",
                about="Devices held and devices that work, over time",
                spec=lines(held, x="days", y="count", x_unit="days", y_unit="devices", of="of"),
            ),
            Chart(
                title="Jobs",
                about="Jobs waiting and running, over time",
                spec=lines(queue, x="days", y="count", x_unit="days", y_unit="jobs", of="of"),
            ),
        ),
        lead="Means over equal stretches of time.",
    )


def _thinned(times_s: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
    """Means over time of what holds from each time on, in so many stretches at most."""
    at, held = np.asarray(times_s, dtype=float), np.asarray(values, dtype=float)
    if len(at) < 2 or at[-1] <= at[0]:
        return [(float(time), float(value)) for time, value in zip(at, held, strict=True)]
    edges = np.linspace(at[0], at[-1], MOST_POINTS + 1)
    area = np.concatenate([[0.0], np.cumsum(held[:-1] * np.diff(at))])
    means = np.diff(np.interp(edges, at, area)) / np.diff(edges)
    return [(float(time - at[0]), float(value)) for time, value in zip(edges[:-1], means, strict=True)]


def _times(answer: Mapping[str, Any], result: Result) -> Section:
    jct = np.sort(result.jct_s) / 3600
    waited = np.sort(
        [result.table.waited_s[number] for number in range(len(result.jobs)) if result.status(number) == "finished"]
    )
    shares = np.linspace(0.0, 1.0, 201)
    rows = [
        {"hours": float(max(value, LEAST_HOURS)), "share": float(share), "of": name}
        for name, values in (("JCT", jct), ("queueing", waited / 3600))
        if len(values)
        for share, value in zip(shares, np.quantile(values, shares), strict=True)
    ]
    parts: list[Part] = [
        Chart(
            title="How long jobs took and waited: the share of jobs within so many hours",
            about="Distributions of job completion and queueing times",
            spec=lines(rows, x="hours", y="share", x_unit="hours", y_unit="share of jobs", of="of", logarithmic=True),
        )
    ]
    logged = answer["as_logged"]
    if logged is not None:
        named = {
            "mean JCT": "jct_mean_s",
            "p99 JCT": "jct_p99_s",
            "mean queueing": "queue_mean_s",
            "p99 queueing": "queue_p99_s",
            "makespan": "makespan_s",
        }
        table = tuple((name, _hours(answer[key]), _hours(logged[key])) for name, key in named.items())
        parts.append(Table(title="Beside the log", columns=("figure", answer["policy"], "as logged"), rows=table))
    return Section(name="jct", title="Job completion times", parts=tuple(parts))


def _groups(result: Result) -> Section:
    sizes = _grouped(result, lambda job: f"{1 << (job.devices - 1).bit_length()}")
    sizes.sort(key=lambda row: int(row[0]))
    parts: list[Part] = [
        Table(
            title="By size: devices asked for, rounded up to a power of two",
            columns=("devices", "jobs", "device-hours", "mean JCT", "mean queueing"),
            rows=tuple(sizes),
        )
    ]
    users = _grouped(result, lambda job: job.user)
    if len(users) > 1:
        title = f"By user: the {MOST_USERS} with the most device-hours" if len(users) > MOST_USERS else "By user"
        columns = ("user", "jobs", "device-hours", "mean JCT", "mean queueing")
        parts.append(Table(title=title, columns=columns, rows=tuple(users[:MOST_USERS])))
    return Section(name="groups", title="By size and user", parts=tuple(parts))


def _grouped(result: Result, key_of: Callable[[Job], str]) -> list[tuple[str, ...]]:
    """Rows by key, those with the most device-hours first."""
    members: dict[str, list[int]] = {}
    for number, job in enumerate(result.jobs):
        members.setdefault(key_of(job), []).append(number)
    table = result.table
    rows = []
    for key, numbers in members.items():
        hours = math.fsum(table.attained_device_s[number] for number in numbers) / 3600
        done = [number for number in numbers if result.status(number) == "finished"]
        jct = [table.end_s[number] - result.jobs[number].submit_s for number in done]
        waited = [table.waited_s[number] for number in done]
        means = [_hours(math.fsum(values) / len(done)) if done else "-" for values in (jct, waited)]
        rows.append((hours, (key or "-", f"{len(numbers):,}", f"{hours:,.1f}", *means)))
    return [row for _, row in sorted(rows, key=lambda pair: (-pair[0], pair[1]))]


def _by_others(answer: Mapping[str, Any]) -> Section:
    """What jobs did to each other on NICs and links, and what a policy of the network did about it."""
    rows = [
        ("slowdown by others, mean", format_figure(answer["slowdown_by_others_mean"], ".2f")),
        ("slowdown by others, most", format_figure(answer["slowdown_by_others_max"], ".2f")),
        ("job-hours that others slow", format_figure(answer["contended_hours"], ",.1f")),
        ("job-hours lost to others", format_figure(answer["lost_to_others_hours"], ",.1f")),
    ]
    if answer["gpu_utilization_mean"] is not None:
        rows.append(("GPUs that compute, of all", f"{answer['gpu_utilization_mean']:.1%}"))
        rows.append(("work done", f"{answer['work_flops_per_s'] / 1e15:.3g} PFLOP/s"))
    if answer["network_policy"] is not None:
        rows.append((f"decisions of {answer['network_policy']}", f"{answer['network_decisions']:,}"))
        rows.append(("jobs that it changed while they ran", f"{answer['network_changes']:,}"))
        rows.append(("device-hours that they stood still", f"{answer['network_changes_device_hours']:.4g}"))
    table = Table(
        title="What jobs that share NICs and links did to each other", columns=("figure", "value"), rows=tuple(rows)
    )
    return Section(name="network", title="On the network", parts=(table,))


def _bounds(answer: Mapping[str, Any]) -> Section:
    bounds = answer["bounds"]
    rows = (
        ("mean JCT", _hours(answer["jct_mean_s"]), f"at least {_hours(bounds['jct_mean_s'])}"),
        ("makespan", _hours(answer["makespan_s"]), f"at least {_hours(bounds['makespan_s'])}"),
        ("mean throughput", f"{answer['throughput_mean']:.2f}", f"at most {bounds['throughput_mean']:.2f}"),
    )
    table = Table(title="This run and what no policy can beat", columns=("figure", "this run", "bound"), rows=rows)
    return Section(name="bounds", title="What no policy can beat", parts=(table,))
