"""What is written of a plan of contention for those who set it, and counters that are held against it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from estimator.network.fabric import Fabric
from planner.contention.contention_file import ContentionFile, MapLevelRow, MapRow, contention_to_json
from planner.contention.emitting.addresses import read_addresses
from planner.contention.emitting.counters import ETHTOOL, PERFQUERY, Bytes, read_counters
from planner.contention.emitting.environment import JobEnvironment, environment_of
from planner.contention.emitting.folder import Settings, check_emitted, describe_pair, settings_files, write_folder
from planner.contention.emitting.levels import MapLevel
from planner.contention.emitting.planned import PlannedJob, SeatedJob, find_job, planned_jobs
from planner.contention.emitting.priority_map import PriorityMap
from planner.contention.emitting.queue_pairs import PricedPair, price_queue_pairs
from planner.contention.emitting.transports import INFINIBAND, Transport, service_levels
from planner.contention.emitting.verifying import describe_verified, verify
from planner.shared.options.contention import ContentionOptions
from profiles.errors import InputError
from profiles.records import dataclass, replace

CONTENTION_FILE = "contention.json"
MOST_CONNECTIONS = 10_000
"""Of connections that may take several ways; with more, playing how many queue pairs they had best takes minutes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedFabric:
    """A plan with what it was made of: its file, its jobs as they sit, the fabric, its levels, how bytes cross it."""

    file: ContentionFile
    jobs: Sequence[SeatedJob]
    fabric: Fabric
    map: PriorityMap
    transport: Transport

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


def with_map(file: ContentionFile, of: PriorityMap) -> ContentionFile:
    """Return the file with the fabric's levels in it, where it has no more levels than these."""
    if file.levels > len(of.levels):
        return file
    rows = tuple(
        MapLevelRow(
            dscp=None if of.source == INFINIBAND else level.dscp,
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


def emit_settings(options: ContentionOptions, plan: PlannedFabric) -> dict[str, Any] | None:
    """Write the folder that `options` name, and return its files and what queue pairs of stock NCCL would do; None
    where none is named. Raise as `write_folder`, and InputError for a level that the map has not."""
    if options.emit is None:
        return None
    planned = plan.planned
    pairs: tuple[PricedPair, ...] = ()
    notes = []
    connections = sum(len(job.connections) for job in planned)
    if plan.transport == "roce" and options.queue_pairs and connections > MOST_CONNECTIONS:
        notes.append(
            f"queue pairs of stock NCCL are not played for {connections:,} connections: at most {MOST_CONNECTIONS:,}"
        )
    elif plan.transport == "roce" and options.queue_pairs and connections:
        pairs = price_queue_pairs(plan.jobs, planned, plan.fabric, model=options.model)
    settings = Settings(
        jobs=planned,
        map=plan.map,
        transport=plan.transport,
        addresses=read_addresses(options.addresses, plan.fabric.routing.addresses),
        pairs=pairs,
        with_map=options.emit_map,
    )
    files = {**settings_files(settings), CONTENTION_FILE: contention_to_json(plan.file)}
    write_folder(options.emit, files)
    return {
        "folder": str(options.emit),
        "files": sorted(files),
        "queue_pairs": [describe_pair(pair) for pair in pairs],
        "notes": notes,
    }


def verify_counters(options: ContentionOptions, plan: PlannedFabric) -> dict[str, Any] | None:
    """Return how counters compare with what was planned; None where none are named. Raise as `verify` does."""
    if not options.verify:
        return None
    seconds = {job.id: float("inf") if job.planned_s is None else job.planned_s for job in plan.file.jobs}
    planned = plan.planned
    if plan.transport == "tcp":  # which has one level for all of a job's axes
        planned = tuple(replace(job, level=job.last_level, axis_levels=()) for job in planned)
    counted = _read_counters(options, plan.transport)
    return describe_verified(verify(counted, plan.jobs, planned, seconds, plan.map, plan.fabric))


def environment_in_file(
    file: ContentionFile, name: str | None, *, where: Path, hosts: Sequence[str] = ()
) -> tuple[PlannedJob, JobEnvironment]:
    """Return a job of a plan's file, found by its name, else by its hosts, and its environment.

    Raise InputError for a job that there is not, several that may be meant, and a file that says no levels of a fabric.
    """
    jobs = planned_jobs(file.model_dump(mode="json", by_alias=True)["jobs"])
    job = find_job(jobs, name, where=str(where), hosts=hosts)
    of = map_of_file(file, where)
    if of is None:
        found, expected = "nothing", "the fabric's levels, as cellplan contention --levels K -o writes them"
        raise InputError(where=str(where), key="map", found=found, expected=expected)
    return job, environment_of(job, of, file.cluster.transport)
