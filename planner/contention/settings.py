"""What is written of a plan of contention for those who set it, and counters that are held against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from estimator.network.fabric import Fabric
from planner.contention.contention_file import (
    ContentionFile,
    MapRow,
    QueuePairsRow,
    contention_to_json,
)
from planner.contention.emitting.addresses import read_addresses
from planner.contention.emitting.counters import ETHTOOL, PERFQUERY, Bytes, read_counters
from planner.contention.emitting.environment import JobEnvironment, takes_axis_levels, variables_of
from planner.contention.emitting.file_rows import MapLevelRow
from planner.contention.emitting.folder import Settings, check_emitted, settings_files, write_folder
from planner.contention.emitting.levels import MapLevel
from planner.contention.emitting.nccl_release import Release, read_release
from planner.contention.emitting.planned import PlannedJob, SeatedJob, find_job, planned_jobs
from planner.contention.emitting.priority_map import INFINIBAND, PriorityMap
from planner.contention.emitting.queue_pairs import PricedPair, price_queue_pairs
from planner.contention.emitting.settings_json import describe_pair
from planner.contention.emitting.transports import Transport, service_levels
from planner.contention.emitting.verifying import describe_verified, verify
from planner.shared.options.contention import ContentionOptions
from profiles.errors import InputError
from profiles.records import dataclass, replace

CONTENTION_FILE = "contention.json"
MOST_CONNECTIONS = 10_000
"""Of connections that may take several ways; with more, playing how many queue pairs they had best takes minutes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedFabric:
    """A plan with what it was made of: its file, its jobs as they sit, the fabric, its levels, how bytes cross it, and
    what queue pairs of stock NCCL would do."""

    file: ContentionFile
    jobs: Sequence[SeatedJob]
    fabric: Fabric
    map: PriorityMap
    transport: Transport
    pairs: tuple[PricedPair, ...] = ()

    @property
    def release(self) -> Release | None:
        """That of the jobs' NCCL, where it was declared."""
        return None if self.file.nccl is None else read_release(self.file.nccl)

    @property
    def planned(self) -> tuple[PlannedJob, ...]:
        """The jobs as the file has them."""
        return planned_jobs(self.file.model_dump(mode="json", by_alias=True)["jobs"])


def check_settings(options: ContentionOptions, transport: Transport) -> None:
    """Raise InputError for a folder that cannot be written, and for addresses and counters that are none: said before
    anything is played."""
    if options.emit is not None:
        check_emitted(options.emit)
        read_addresses(options.addresses)
    if options.verify:
        _read_counters(options, transport)


def _read_counters(options: ContentionOptions, transport: Transport) -> Bytes:
    """What was sent meanwhile, by priority, on InfiniBand by service level."""
    if transport == "other":
        expected = "RoCE, InfiniBand or TCP, whose NICs count by priority or service level"
        found = "a network whose levels nobody sets"
        raise InputError(where=options.command, key="--verify", found=found, expected=expected)
    return read_counters(options.verify, PERFQUERY if transport == "infiniband" else ETHTOOL)


def with_fabric(
    file: ContentionFile, of: PriorityMap, *, nccl: str | None, others: Mapping[str, Transport]
) -> ContentionFile:
    """Return the file with the declared release of NCCL in it, the transport of jobs that have hosts among `others`,
    and the fabric's levels, where it has no more levels than these."""
    jobs = tuple(
        job.model_copy(update={"transport": kind, "dscp": None if kind else job.dscp})
        for job in file.jobs
        for kind in [next((others[host] for host in job.hosts if host in others), None)]
    )
    file = file.model_copy(update={"nccl": nccl, "jobs": jobs})
    if file.levels > len(of.levels):
        return file
    rows = tuple(
        MapLevelRow(
            dscp=None if of.is_infiniband else level.dscp,
            traffic_class=level.traffic_class,
            priority=level.priority,
            pfc=level.pfc,
        )
        for level in of.levels
    )
    return file.model_copy(update={"map": MapRow(source=of.source, levels=rows)})


def map_of_file(file: ContentionFile, where: Path | None) -> PriorityMap | None:
    """Return the fabric's levels as a file has them, None where it has none. Raise InputError for one DSCP twice."""
    if file.map is None:
        return None
    dscps = [row.dscp for row in file.map.levels if row.dscp is not None]
    twice = next((dscp for dscp in dscps if dscps.count(dscp) > 1), None)
    if twice is not None:
        found = f"DSCP {twice} of two levels"
        raise InputError(where=str(where), key="map.levels", found=found, expected="each DSCP of one level")
    levels = tuple(
        MapLevel(dscp=row.dscp or 0, traffic_class=row.traffic_class, priority=row.priority, pfc=row.pfc)
        for row in file.map.levels
    )
    if file.map.source == INFINIBAND:
        assumed = service_levels(len(levels))
        return replace(
            assumed,
            levels=tuple(
                replace(level, service=own.service) for level, own in zip(levels, assumed.levels, strict=True)
            ),
        )
    return PriorityMap(source=file.map.source, levels=levels)


def with_queue_pairs(options: ContentionOptions, plan: PlannedFabric) -> tuple[PlannedFabric, tuple[str, ...]]:
    """Return the plan with what queue pairs of stock NCCL would do, where something is written that says it, and what
    is to be known of that."""
    written = options.emit is not None or options.output is not None
    if not (written and options.queue_pairs and plan.transport == "roce"):
        return plan, ()
    planned = plan.planned
    connections = sum(len(job.connections) for job in planned)
    if connections == 0:
        return plan, ()
    if connections > MOST_CONNECTIONS:
        said = f"queue pairs of stock NCCL are not played for {connections:,} connections: at most {MOST_CONNECTIONS:,}"
        return plan, (said,)
    pairs = price_queue_pairs(plan.jobs, planned, plan.fabric, model=options.model)
    rows = tuple(
        QueuePairsRow(
            queue_pairs=pair.queue_pairs, split_data=pair.split_data, work_share=pair.work_share, range=pair.range
        )
        for pair in pairs
    )
    return replace(plan, file=plan.file.model_copy(update={"queue_pairs": rows}), pairs=pairs), ()


def emit_settings(options: ContentionOptions, plan: PlannedFabric, notes: Sequence[str]) -> dict[str, Any] | None:
    """Write the folder that `options` name, and return its files and what queue pairs of stock NCCL would do, with
    `notes` on that; None where none is named. Raise as `write_folder`, and InputError for a level that the map has
    not."""
    if options.emit is None:
        return None
    settings = Settings(
        jobs=plan.planned,
        map=plan.map,
        transport=plan.transport,
        addresses=read_addresses(options.addresses, plan.fabric.routing.addresses),
        pairs=plan.pairs,
        release=plan.release,
        with_map=options.emit_map,
    )
    files = {**settings_files(settings), CONTENTION_FILE: contention_to_json(plan.file)}
    write_folder(options.emit, files)
    return {
        "folder": str(options.emit),
        "files": sorted(files),
        "queue_pairs": [describe_pair(pair) for pair in plan.pairs],
        "notes": list(notes),
    }


def verify_counters(options: ContentionOptions, plan: PlannedFabric) -> dict[str, Any] | None:
    """Return how counters compare with what was planned; None where none are named. Raise as `verify` does."""
    if not options.verify:
        return None
    seconds = {job.id: float("inf") if job.planned_s is None else job.planned_s for job in plan.file.jobs}
    axes = takes_axis_levels(plan.transport, plan.release)
    planned = tuple(job if axes else replace(job, level=job.last_level, axis_levels=()) for job in plan.planned)
    planned = tuple(job if job.transport is None else replace(job, level=None, axis_levels=()) for job in planned)
    counted = _read_counters(options, plan.transport)
    return describe_verified(verify(counted, plan.jobs, planned, seconds, plan.map, plan.fabric))


def environment_in_file(
    file: ContentionFile, name: str | None, *, where: Path, hosts: Sequence[str] = ()
) -> tuple[PlannedJob, JobEnvironment]:
    """Return a job of a plan's file, found by its name, else by its hosts, and its environment, with queue pairs for a
    stock NCCL where they were played.

    Raise InputError for a job that there is not, several that may be meant, and a file that says no levels of a fabric.
    """
    jobs = planned_jobs(file.model_dump(mode="json", by_alias=True)["jobs"])
    job = find_job(jobs, name, where=str(where), hosts=hosts)
    of = map_of_file(file, where)
    if of is None:
        found, expected = "nothing", "the fabric's levels, as cellplan contention --levels K -o writes them"
        raise InputError(where=str(where), key="map", found=found, expected=expected)
    release = None if file.nccl is None else read_release(file.nccl)
    pairs = tuple(
        PricedPair(queue_pairs=row.queue_pairs, split_data=row.split_data, work_share=row.work_share, range=row.range)
        for row in file.queue_pairs
    )
    return job, variables_of(job, of, file.cluster.transport, release=release, pairs=pairs).all
