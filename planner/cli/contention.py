"""`cellplan contention`: what jobs on one network lose to each other, and what they are to do."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from math import inf
from typing import Any

from planner import api
from planner.cli.actions import Action, add_action
from planner.cli.contention_plan import print_plan
from planner.cli.contention_settings import print_settings
from planner.cli.contention_shown import devices_lost, names_shown, shown_jobs, shown_title
from planner.cli.output import format_count, format_seconds, print_items, print_notes, print_table, print_text

MOST_LINKS = 12
MOST_SLOWERS = 3
TIMES_ALONE = (1.01, 1.5, 2.0)


def add_arguments(parser: ArgumentParser) -> None:
    """`contention JOBS --cluster C`."""
    add_action(parser, Action(api.contention, _print_contention, doing="deciding"))


def _print_contention(found: dict[str, Any], _: Namespace) -> None:
    jobs = shown_jobs(found["jobs"], devices_lost)
    columns = ("job", "devices", "level", "alone", "now", "of runs", "exposed", "GPUs busy")
    title = shown_title("An iteration of each job", jobs, found["jobs"], "whose devices lose most")
    print_table(title, columns, [_job_row(job) for job in jobs])
    print_items([_said_of(job) for job in jobs if job["slowed_by"] or not job["sent_bytes"]])
    if len(jobs) < len(found["jobs"]):
        _print_counts(found["jobs"])
    print()
    shared = sorted((link for link in found["links"] if link["busy"]), key=lambda link: -float(link["busy"]))
    own = {job["id"]: job["own_level"] for job in found["jobs"]}
    links = [_link_row(link, own) for link in shared[:MOST_LINKS]]
    if links:
        more = f" ({len(shared)} in all; --json has them)" if len(shared) > MOST_LINKS else ""
        print_table(f"Links that jobs share, the fullest first{more}", ("link", "carries", "busy", "jobs"), links)
    _print_utilization(found["utilization"])
    _print_steadiness(found)
    print_plan(found)
    print_settings(found)
    print_notes("Assumed:", found["notes"])
    for name in ("timeline", "plot", "output"):
        if found[name] is not None:
            print(f"written to {found[name]}")


def _print_counts(jobs: list[dict[str, Any]]) -> None:
    """How many of all jobs take how much longer, how many of them somebody is said to slow, how many send nothing."""
    parts = [
        f"{sum(_times_alone(job) > times for job in jobs):,} take more than {times:g} times as long as alone"
        for times in TIMES_ALONE
    ]
    slowed, silent = sum(bool(job["slowed_by"]) for job in jobs), sum(not job["sent_bytes"] for job in jobs)
    print_text(
        f"Of {len(jobs):,} jobs {'; '.join(parts)}. Of {slowed:,} it is known who slows them, {silent:,} send nothing"
        " over the network."
    )


def _times_alone(job: dict[str, Any]) -> float:
    if job["alone_s"] is None or job["iteration_time_s"] is None:
        return inf
    return float(job["iteration_time_s"]) / float(job["alone_s"])


def _print_steadiness(found: dict[str, Any]) -> None:
    unstable = [job["id"] for job in found["jobs"] if job["unstable"]]
    if unstable:
        shown = f"{2 * found['jitter']:.0%}"
        print_text(f"Unstable, moving by more than 5% as compute varies by up to {shown}: {names_shown(unstable)}")
    unsettled = [job["id"] for job in found["jobs"] if not job["steady"]]
    if unsettled:
        print_text(f"Not settled to one rate in all runs: {names_shown(unsettled)}")


def _job_row(job: dict[str, Any]) -> tuple[object, ...]:
    low, high = job["range_s"]
    same = low == high
    return (
        job["id"],
        f"{job['devices']:,}",
        f"{job['own_level']}",
        format_seconds(job["alone_s"]),
        _seconds(job["iteration_time_s"]),
        None if same else f"{_seconds(low)} to {_seconds(high)}",
        _seconds(job["exposed_communication_s"]),
        f"{job['gpu_utilization']:.1%}",
    )


def _seconds(value: float | None) -> str:
    return "gets nowhere" if value is None else format_seconds(value)


def _said_of(job: dict[str, Any]) -> str:
    """Who slows a job, or that it cannot be slowed."""
    if not job["sent_bytes"]:
        return f"{job['id']} sends nothing over the network"
    slowers = job["slowed_by"]
    parts = [
        f"{each['id']} by {_seconds(each['gained_s'])}" + (f" on {each['links'][0]}" if each["links"] else "")
        for each in slowers[:MOST_SLOWERS]
    ]
    more = [f"{len(slowers) - MOST_SLOWERS} more"] if len(slowers) > MOST_SLOWERS else []
    return f"{job['id']} is slowed by " + "; ".join([*parts, *more])


def _link_row(link: dict[str, Any], own_levels: dict[str, int]) -> tuple[object, ...]:
    ids = [job["id"] for job in link["jobs"]]
    differ = len({own_levels[name] for name in ids}) > 1
    jobs = ", ".join(name + (f" (level {own_levels[name]})" if differ else "") for name in ids[:6])
    more = f" and {len(link['jobs']) - 6} more" if len(link["jobs"]) > 6 else ""
    return link["name"], format_count(link["bandwidth_bytes_per_s"], "B/s"), f"{link['busy']:.0%}", jobs + more


def _print_utilization(figures: dict[str, Any]) -> None:
    print(
        f"GPUs busy: {figures['busy_of_held_devices']:.1%} of the time of those that jobs hold (each alone:"
        f" {figures['busy_of_held_devices_alone']:.1%}), {figures['busy_of_all_devices']:.1%} of all"
    )
    if figures["flops_per_s"] is not None:
        lost = max(0.0, 1 - figures["flops_per_s"] / figures["flops_per_s_alone"])
        done, alone = (format_count(figures[name], "FLOP/s") for name in ("flops_per_s", "flops_per_s_alone"))
        print(f"Work done: {done}; each alone: {alone}; lost: {lost:.1%}")
