"""What was decided before, as contention.json has it, for the jobs of now."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from estimator.network.fabric import Fabric
from estimator.network.routes import Flows
from planner.contention.checked_decision import check_decision
from planner.contention.contention_file import ContentionFile, JobRow, PathRow
from planner.contention.jobs_file import PlacedJob
from planner.contention.policies.records import Choice, Decision, View
from planner.contention.port_ways import ways_taken
from planner.contention.viewing import QueuePair, Seen
from profiles.errors import InputError

Name = tuple[str, str, int, str, int, int]
"""Of a queue pair: axis, host and NIC at both ends, which of those between them it is."""


def decision_of_file(
    given: ContentionFile, jobs: Sequence[PlacedJob], seen: Sequence[Seen], view: View, fabric: Fabric, where: str
) -> Decision:
    """Return what the file says of the jobs of now, as they are `seen` on a fabric. Jobs that are not in the file
    keep their level and their paths.

    Raises:
        InputError: a job of the file that has gone or sits elsewhere, a queue pair, way or port that there is not, a
            level above those of the view, an offset for a job without a period.
    """
    rows = {row.id: row for row in given.jobs}
    places = {row.id: number for number, row in enumerate(given.jobs)}
    _check_jobs(given, jobs, fabric.links.names, where)
    of_job = [rows.get(job.id) for job in jobs]
    decision = Decision(
        paths=tuple(
            each.contender.now if row is None else _paths(row, each, fabric, where, places[row.id])
            for row, each in zip(of_job, seen, strict=True)
        ),
        levels=tuple(job.level if row is None else row.level for job, row in zip(jobs, of_job, strict=True)),
        offsets_s=tuple(0.0 if row is None else row.offset_s for row in of_job),
        order=tuple(
            sorted(
                (number for number, row in enumerate(of_job) if row is not None and row.priority is not None),
                key=lambda number: (_priority(of_job[number]), number),
            )
        ),
        axis_levels=tuple(() if row is None else tuple(sorted((row.axis_levels or {}).items())) for row in of_job),
        periods_s=tuple(None if row is None else row.period_s for row in of_job),
    )
    return check_decision(decision, view, where=where)


def _priority(row: JobRow | None) -> int:
    return 0 if row is None or row.priority is None else row.priority


def _check_jobs(given: ContentionFile, jobs: Sequence[PlacedJob], names: Sequence[str], where: str) -> None:
    present = {job.id: job for job in jobs}
    for number, row in enumerate(given.jobs):
        job = present.get(row.id)
        if job is None:
            expected = "one of the jobs of now: plan anew without those that have gone"
            raise InputError(where=where, key=f"jobs[{number}].id", found=repr(row.id), expected=expected)
        hosts = tuple(dict.fromkeys(names[seat.node] for seat in job.seats))
        if hosts != row.hosts or len(job.seats) != row.devices:
            found = f"{row.devices} devices on {', '.join(row.hosts[:4])}"
            expected = f"where {row.id} sits now: {len(job.seats)} devices on {', '.join(hosts[:4])}"
            raise InputError(where=where, key=f"jobs[{number}].hosts", found=found, expected=expected)


def _paths(row: JobRow, seen: Seen, fabric: Fabric, where: str, number: int) -> tuple[Choice, ...]:
    """A path for each connection: those of the file, and the present one where it says nothing."""
    choices: list[Choice] = list(seen.contender.now)
    connections = {_name(pair, fabric): place for place, pair in enumerate(seen.queue_pairs)}
    led: list[tuple[str, QueuePair, int, int]] = []
    placed: set[int] = set()
    for place, path in enumerate(row.paths):
        key = f"jobs[{number}].paths[{place}]"
        ends = path.source.host, path.source.nic, path.destination.host, path.destination.nic
        connection = connections.get((path.axis, *ends, path.queue_pair))
        if connection is None:
            found = f"queue pair {path.queue_pair} of {path.axis} from {path.source.host} to {path.destination.host}"
            raise InputError(where=where, key=key, found=found, expected=f"a connection that {row.id} has now")
        if connection in placed:
            found = (
                f"queue pair {path.queue_pair} of {path.axis} from {path.source.host} to {path.destination.host} twice"
            )
            raise InputError(where=where, key=key, found=found, expected="each connection once")
        placed.add(connection)
        pair = seen.queue_pairs[connection]
        choices[connection] = choice = _choice(path, pair, fabric, key, where)
        led += [] if choice is None else [(key, pair, choice, port) for port in path.ports]
    _check_ports(led, fabric, where)
    return tuple(choices)


def _name(pair: QueuePair, fabric: Fabric) -> Name:
    source, destination, names = pair.source, pair.destination, fabric.links.names
    return pair.axis, names[source.node], source.nic, names[destination.node], destination.nic, pair.number


def _choice(path: PathRow, pair: QueuePair, fabric: Fabric, key: str, where: str) -> Choice:
    if not path.way and not path.ports:
        return None
    for number, way in enumerate(pair.ways):
        if tuple(fabric.links.name(link) for link in way.way) == path.way:
            return number
    expected = "one of the ways to which ports are known to lead: probe, or plan anew"
    raise InputError(where=where, key=f"{key}.way", found=", ".join(path.way[1:-1]) or "none", expected=expected)


def _check_ports(led: Sequence[tuple[str, QueuePair, int, int]], fabric: Fabric, where: str) -> None:
    """Raise InputError for a port that leads another way than it is said to."""
    if not led:
        return
    begins = fabric.links.nic_begins
    flows = Flows(
        sources=np.array([begins[pair.source.node] + pair.source.nic for _, pair, _, _ in led]),
        destinations=np.array([begins[pair.destination.node] + pair.destination.nic for _, pair, _, _ in led]),
        ports=np.array([port for _, _, _, port in led]),
    )
    for (key, pair, choice, port), taken in zip(led, ways_taken(fabric, flows), strict=True):
        if sorted(taken) != sorted(pair.offer[choice].way):
            expected = "ports that lead the way that is written: probe, or plan anew"
            raise InputError(where=where, key=f"{key}.ports", found=port, expected=expected)
