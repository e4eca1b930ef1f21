"""`cellplan contention`: jobs of a file on a cluster, what they lose to each other, what they are to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from estimator.network.fabric import fabric_of
from planner.contention.contending import FEW, QUICK_SLOWS, contend
from planner.contention.contention_file import ContentionFile, cluster_row, save_contention
from planner.contention.deciding import Asked, Decided, decide, read_asked
from planner.contention.describing import describe
from planner.contention.emitting.folder import describe_map
from planner.contention.emitting.priority_map import warnings_of
from planner.contention.jobs_file import read_jobs
from planner.contention.pictures import check_timeline, draw_links, save_timeline
from planner.contention.plan_describing import with_plan
from planner.contention.plan_rows import contention_rows
from planner.contention.policies.ours import plays_for
from planner.contention.settings import PlannedFabric, check_settings, emit_settings, verify_counters, with_map
from planner.one_job.free_devices.seated_jobs import SeatedJobs, read_seated
from planner.shared.inputs import load_any_place
from planner.shared.options.contention import ContentionOptions
from planner.shared.pictures import picture_format
from profiles.cluster import Cluster
from profiles.files import write_atomically

WITH_DSCP = ("roce", "tcp")


def answer_contention(options: ContentionOptions) -> dict[str, Any]:
    """Return what `--json` says, after the files that are asked for are written. Raise as `planner.api.contention`."""
    if options.timeline is not None:
        check_timeline(options.timeline)
    form = None if options.plot is None else picture_format(options.plot, where="contention")
    cluster = load_any_place(options.cluster)
    asked = read_asked(options, cluster)
    check_settings(options, asked.transport)
    seated = SeatedJobs(jobs={}) if options.running is None else read_seated(options.running)
    jobs = read_jobs(options.jobs, cluster, None if options.running is None else seated.jobs)
    found = contend(jobs, fabric_of(cluster), seeds=options.seeds, jitter=options.jitter, model=options.model)
    decided = decide(options, asked, jobs, found, _telling(options, len(jobs)))
    rows = None if decided is None else with_map(_rows(decided, asked, cluster), asked.map)
    said = with_plan(describe(found, len(cluster.slots)), decided, rows)
    if options.timeline is not None:
        save_timeline(options.timeline, found)
    if options.plot is not None and form is not None:
        write_atomically(options.plot, draw_links(found, form))
    if options.output is not None and rows is not None:
        save_contention(rows, options.output)
    plan = None
    if rows is not None:
        fabric = found.fabric
        plan = PlannedFabric(file=rows, jobs=jobs, fabric=fabric, map=asked.map, transport=asked.transport)
    return {
        "cluster": cluster.text,
        **said,
        "seeds": options.seeds,
        "jitter": options.jitter,
        "transport": None if plan is None else asked.transport,
        "map": None if plan is None else describe_map(asked.map),
        "settings": None if plan is None else emit_settings(options, plan),
        "verified": None if plan is None else verify_counters(options, plan),
        "notes": [
            *cluster.notes,
            *seated.notes,
            *_short_plays(len(jobs)),
            *(NO_WORK if decided is None else _notes(decided, asked)),
        ],
        "timeline": _text(options.timeline),
        "plot": _text(options.plot),
        "output": _text(options.output),
    }


NO_WORK = (
    "nothing is decided: of some job that shares links nobody said the work of an iteration (flops, model or plan)",
)


def _short_plays(jobs: int) -> tuple[str, ...]:
    """What is to be known of who slows whom."""
    if jobs <= FEW:
        return ()
    return (
        f"who slows whom is from a short play without each of {jobs} jobs, where compute varies: less than"
        f" {QUICK_SLOWS:.0%} of an iteration is not said",
    )


def _notes(decided: Decided, asked: Asked) -> list[str]:
    """What is to be known of a decision, and of the fabric's levels where jobs need any."""
    return [*decided.notes, *(warnings_of(asked.map) if decided.plan.shares_links else ())]


def _rows(decided: Decided, asked: Asked, cluster: Cluster) -> ContentionFile:
    dscps = [level.dscp for level in asked.map.levels]
    return contention_rows(
        decided.plan,
        policy=decided.policy,
        cluster=cluster_row(cluster, asked.transport),
        levels=decided.levels,
        dscps=dscps if asked.transport in WITH_DSCP and decided.levels <= len(dscps) else None,
    )


def _telling(options: ContentionOptions, jobs: int) -> Callable[[int], None] | None:
    report = options.progress
    if report is None:
        return None
    tell, most = report, plays_for(jobs)

    def told(count: int) -> None:
        tell(min(count, most), most, None, f"{count} cases played")

    return told


def _text(path: object) -> str | None:
    return None if path is None else str(path)
