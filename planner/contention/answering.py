"""`cellplan contention`: jobs of a file on a cluster, what they lose to each other, what they are to do."""

from __future__ import annotations

from typing import Any

from estimator.network.fabric import fabric_of
from planner.contention.contending import contend
from planner.contention.contention_file import ContentionFile, cluster_row, save_contention
from planner.contention.deciding import Asked, Decided, decide, read_asked
from planner.contention.describing import describe
from planner.contention.emitting.priority_map import warnings_of
from planner.contention.emitting.settings_json import describe_map
from planner.contention.emitting.transports import NAMES, Transport, other_sites
from planner.contention.jobs_file import Places, read_jobs
from planner.contention.pictures import check_timeline, draw_links, save_timeline
from planner.contention.plan_describing import with_plan
from planner.contention.plan_rows import contention_rows
from planner.contention.settings import (
    PlannedFabric,
    check_settings,
    emit_settings,
    verify_counters,
    with_fabric,
    with_queue_pairs,
)
from planner.contention.slowing import QUICK_SLOWS, Told
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
    told = _telling(options)
    found = contend(
        jobs, fabric_of(cluster), seeds=options.seeds, jitter=options.jitter, model=options.model, told=told
    )
    decided = decide(options, asked, jobs, found, told)
    rows = None if decided is None else _rows(decided, asked, cluster)
    said = with_plan(describe(found, len(cluster.slots)), decided, rows)
    if options.timeline is not None:
        save_timeline(options.timeline, found)
    if options.plot is not None and form is not None:
        write_atomically(options.plot, draw_links(found, form))
    plan: PlannedFabric | None = None
    pair_notes: tuple[str, ...] = ()
    if rows is not None:
        plan = PlannedFabric(file=rows, jobs=jobs, fabric=found.fabric, map=asked.map, transport=asked.transport)
        plan, pair_notes = with_queue_pairs(options, plan)
    if options.output is not None and plan is not None:
        save_contention(plan.file, options.output)
    return {
        "cluster": cluster.text,
        **said,
        "seeds": options.seeds,
        "jitter": options.jitter,
        "transport": None if plan is None else asked.transport,
        "map": None if plan is None else describe_map(asked.map),
        "settings": None if plan is None else emit_settings(options, plan, pair_notes),
        "verified": None if plan is None else verify_counters(options, plan),
        "notes": [
            *cluster.notes,
            *seated.notes,
            *_short_plays(said["short_plays"]),
            *(pair_notes if options.emit is None else ()),
            *(NO_WORK if decided is None else _notes(decided, asked, cluster)),
        ],
        "timeline": _text(options.timeline),
        "plot": _text(options.plot),
        "output": _text(options.output),
    }


NO_WORK = (
    "nothing is decided: of some job that shares links nobody said the work of an iteration (flops, model or plan)",
)


def _short_plays(plays: int) -> tuple[str, ...]:
    """What is to be known of who slows whom."""
    if not plays:
        return ()
    return (
        f"who slows whom is from {plays:,} short plays, each without one of the jobs, where compute varies: less than"
        f" {QUICK_SLOWS:.0%} of an iteration is not said",
    )


def _notes(decided: Decided, asked: Asked, cluster: Cluster) -> list[str]:
    """What is to be known of a decision, and of the fabric's levels where jobs need any."""
    if not decided.plan.shares_links:
        return list(decided.notes)
    elsewhere = [
        f"the network of site {site} is {NAMES[kind]}, the levels are those of {NAMES[asked.transport]}: jobs there are"
        " told nothing"
        for site, kind in other_sites(cluster, asked.transport).items()
    ]
    return [*decided.notes, *elsewhere, *warnings_of(asked.map)]


def _rows(decided: Decided, asked: Asked, cluster: Cluster) -> ContentionFile:
    dscps = [level.dscp for level in asked.map.levels]
    rows = contention_rows(
        decided.plan,
        policy=decided.policy,
        cluster=cluster_row(cluster, asked.transport),
        levels=decided.levels,
        dscps=dscps if asked.transport in WITH_DSCP and decided.levels <= len(dscps) else None,
    )
    return with_fabric(rows, asked.map, nccl=asked.nccl, others=_hosts_elsewhere(cluster, asked.transport))


def _hosts_elsewhere(cluster: Cluster, transport: Transport) -> dict[str, Transport]:
    """The transport of hosts on sites whose network is of another kind."""
    kinds = other_sites(cluster, transport)
    by_host = Places(cluster).by_host if kinds else {}
    return {host: kinds[slots[0].site] for host, slots in by_host.items() if slots[0].site in kinds}


def _telling(options: ContentionOptions) -> Told | None:
    report = options.progress
    return None if report is None else lambda done, of, what: report(done, of, None, what)


def _text(path: object) -> str | None:
    return None if path is None else str(path)
