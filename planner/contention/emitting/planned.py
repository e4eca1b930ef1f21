"""What of a plan of contention the emitters need: each job's hosts, level and connections, by the keys of its JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from estimator.network.fabric import Seat
from estimator.network.traffic import Traffic
from profiles.errors import InputError
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEnd:
    """A NIC of a host, by its number in the host."""

    host: str
    nic: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedConnection:
    """A queue pair of an axis: its ends, the way that was chosen, and the UDP source ports that lead there. `hashed`:
    that they do so says a hash that was assumed, nobody who told or probed."""

    axis: str
    source: PlannedEnd
    destination: PlannedEnd
    queue_pair: int
    way: tuple[str, ...]
    ports: tuple[int, ...]
    hashed: bool


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """A job of a plan. `level` None: it shares no link and needs none. Transfers of axes that `axis_levels` name have
    those in place of it. `transport`: how bytes cross the network of its site, where not as the plan's map has it."""

    id: str
    hosts: tuple[str, ...]
    level: int | None = None
    axis_levels: tuple[tuple[str, int], ...] = ()
    connections: tuple[PlannedConnection, ...] = ()
    transport: str | None = None

    @property
    def levels(self) -> tuple[int, ...]:
        """The levels that it has, each once, the most urgent first."""
        own = () if self.level is None else (self.level,)
        return tuple(sorted({level for _, level in self.axis_levels} | set(own)))

    @property
    def last_level(self) -> int | None:
        """The level where one has to do for all of its traffic: its own, else the least urgent of its axes'."""
        if self.level is not None:
            return self.level
        return max((level for _, level in self.axis_levels), default=None)


class SeatedJob(Protocol):
    """A job of a list as its file says it: rank r sits on `seats[r]`. `flops` None: nobody said what its work is.
    `port_seed` draws its source ports."""

    @property
    def id(self) -> str: ...
    @property
    def seats(self) -> tuple[Seat, ...]: ...
    @property
    def traffic(self) -> Traffic: ...
    @property
    def flops(self) -> float | None: ...
    @property
    def weight(self) -> float: ...
    @property
    def port_seed(self) -> int: ...


def planned_jobs(jobs: Sequence[Mapping[str, Any]]) -> tuple[PlannedJob, ...]:
    """Return the jobs of a plan, `jobs` of `contention.json`."""
    return tuple(
        PlannedJob(
            id=job["id"],
            hosts=tuple(job["hosts"]),
            level=job["level"],
            axis_levels=tuple(sorted((job.get("axis_levels") or {}).items())),
            connections=tuple(_connection(path) for path in job.get("paths") or ()),
            transport=job.get("transport"),
        )
        for job in jobs
    )


def find_job(jobs: Sequence[PlannedJob], name: str | None, *, where: str, hosts: Sequence[str] = ()) -> PlannedJob:
    """Return the job of that name; of None the only one, or the only one on exactly these hosts. Raise InputError for a
    job that there is not, or where several may be meant."""
    ids = [job.id for job in jobs]
    shown = ", ".join(ids[:12]) + (f" and {len(ids) - 12} more" if len(ids) > 12 else "") or "there is none"
    if name is not None:
        found = next((job for job in jobs if job.id == name), None)
        if found is None:
            raise InputError(where=where, key="--job", found=repr(name), expected=f"one of its jobs: {shown}")
        return found
    alike = [job for job in jobs if hosts and set(job.hosts) == set(hosts)]
    if len(alike) == 1:
        return alike[0]
    if len(jobs) != 1:
        raise InputError(where=where, key="--job", found="none named", expected=f"which of its jobs it is: {shown}")
    return jobs[0]


def _connection(path: Mapping[str, Any]) -> PlannedConnection:
    return PlannedConnection(
        axis=path["axis"],
        source=PlannedEnd(host=path["from"]["host"], nic=path["from"]["nic"]),
        destination=PlannedEnd(host=path["to"]["host"], nic=path["to"]["nic"]),
        queue_pair=path["queue_pair"],
        way=tuple(path["way"]),
        ports=tuple(path["ports"]),
        hashed=path["hashed"],
    )
