"""The environment of a job that gives its traffic the level of a plan.

NCCL's net_ib sets a queue pair's traffic class from NCCL_IB_TC and its service level from NCCL_IB_SL; where one is not
set, from the communicator's own class (`ncclConfig_t.trafficClass`, 2.26 and later), where that is, both. Which of
NCCL_IB_TC and the communicator's class wins differs between releases and forks: never both. NCCL_IB_FIFO_TC (2.22.3 and
later) is the class of the short messages by which a receiver says where data may go; a sender waits for them. UCX takes
UCX_IB_TRAFFIC_CLASS on RoCE and UCX_IB_SL on InfiniBand. `variables_of` is all that a job is told by variables, for
whatever starts it.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.contention.emitting.levels import MapLevel
from planner.contention.emitting.nccl_release import AXES_SINCE, FIFO_SINCE, Release, release_name
from planner.contention.emitting.planned import PlannedJob
from planner.contention.emitting.priority_map import PriorityMap
from planner.contention.emitting.queue_pairs import PricedPair
from planner.contention.emitting.transports import NAMES, Transport
from profiles.errors import InputError
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnvironment:
    """Variables in the order in which they are written, and what is to be known of them."""

    variables: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def by_name(self) -> dict[str, str]:
        """The variables as JSON has them."""
        return dict(self.variables)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVariables:
    """What gives a job its level, and the queue pairs of a stock NCCL, which cannot be told ports."""

    level: JobEnvironment
    stock_nccl: JobEnvironment = JobEnvironment()

    @property
    def all(self) -> JobEnvironment:
        """Both, for a job that no plugin gives its ports."""
        return JobEnvironment(
            variables=(*self.level.variables, *self.stock_nccl.variables),
            notes=(*self.level.notes, *self.stock_nccl.notes),
        )


NO_LEVEL = "it shares no link with others and needs no level"
OTHER = "its network takes classes neither from DSCP nor from service levels: nothing is set"
BY_AXIS = (
    "levels by axis are the communicators' own (axis_levels.py): NCCL_IB_TC is left out, since NCCL releases differ in"
    " which of the two wins, and must be set nowhere else (/etc/nccl.conf)"
)


def variables_of(
    job: PlannedJob,
    of: PriorityMap,
    transport: Transport,
    *,
    release: Release | None = None,
    pairs: Sequence[PricedPair] = (),
) -> JobVariables:
    """Return the variables of every rank of `job`, whose NCCL is of `release` (None: 2.26 or later), where levels are
    those of the map and `pairs` are NCCL's queue pairs as they were priced, the best first. Raise InputError for a
    level that the map has not."""
    has_pairs = transport == "roce" and job.transport is None and bool(pairs and job.connections)
    stock = _stock_nccl(pairs) if has_pairs else JobEnvironment()
    return JobVariables(level=environment_of(job, of, transport, release), stock_nccl=stock)


def environment_of(
    job: PlannedJob, of: PriorityMap, transport: Transport = "roce", release: Release | None = None
) -> JobEnvironment:
    """Return the environment of every rank of `job` where levels are those of the map. Raise InputError for a level
    that the map has not."""
    levels = {level: level_of(level, of, job) for level in job.levels}
    if not levels:
        return JobEnvironment(notes=(NO_LEVEL,))
    if job.transport is not None:
        return JobEnvironment(notes=(elsewhere(job, transport),))
    if transport == "tcp":
        return JobEnvironment(notes=("its TCP gets its level by nftables (dscp.nft), not by its environment",))
    if transport == "other":
        return JobEnvironment(notes=(OTHER,))
    fifo, notes = _fifo(of, transport, release)
    if has_axis_levels(job, transport, release):
        return _by_axis(fifo, notes, transport)
    assert job.last_level is not None
    level = levels[job.last_level]
    if job.axis_levels and release is not None:
        notes = (
            *notes,
            f"NCCL {release_name(release)} has no class for each communicator ({release_name(AXES_SINCE)} and later"
            f" have): all axes have level {job.last_level}, the plan's times are of levels by axis",
        )
    if transport == "infiniband":
        return JobEnvironment(
            variables=(("NCCL_IB_SL", str(level.priority)), ("UCX_IB_SL", str(level.priority))),
            notes=("InfiniBand: service levels alone, there are no ports to choose", *notes),
        )
    return JobEnvironment(
        variables=(("NCCL_IB_TC", str(level.tos)), *fifo, ("UCX_IB_TRAFFIC_CLASS", str(level.tos))), notes=notes
    )


def elsewhere(job: PlannedJob, transport: Transport) -> str:
    """Return what is to be known of a job whose site's network is of another kind than the plan's levels."""
    return (
        f"its hosts' network is {NAMES.get(job.transport or '', 'another')}, the levels are those of"
        f" {NAMES[transport]}: nothing is set"
    )


def has_axis_levels(job: PlannedJob, transport: Transport, release: Release | None = None) -> bool:
    """Whether a job's communicators are given levels of their own: its plan has them, and its NCCL takes them."""
    return bool(job.axis_levels) and job.transport is None and takes_axis_levels(transport, release)


def takes_axis_levels(transport: Transport, release: Release | None = None) -> bool:
    """Whether communicators can be given a level each: by NCCL's InfiniBand layer, from 2.26 on."""
    return transport in ("roce", "infiniband") and (release is None or release >= AXES_SINCE)


def level_of(level: int, of: PriorityMap, job: PlannedJob) -> MapLevel:
    """Return a level's queue. Raise InputError where the map has not so many."""
    if not 0 <= level < len(of.levels):
        expected = f"0 to {len(of.levels) - 1}: the levels of the map ({of.source})"
        raise InputError(where=f"job {job.id}", key="level", found=level, expected=expected)
    return of.levels[level]


def _fifo(
    of: PriorityMap, transport: Transport, release: Release | None
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """The variable of short messages, which go first, and what is to be known of it; InfiniBand has none."""
    if transport == "infiniband":
        return (), ()
    since = release_name(FIFO_SINCE)
    if release is not None and release < FIFO_SINCE:
        said = f"NCCL {release_name(release)} has no NCCL_IB_FIFO_TC ({since} and later have): these messages share"
        return (), (f"{said} the job's own level",)
    variable = ("NCCL_IB_FIFO_TC", str(of.levels[0].tos))
    if release is not None:
        return (variable,), ()
    return (variable,), (
        f"NCCL_IB_FIFO_TC is read from NCCL {since} on; before, these messages share the job's own level",
    )


def _by_axis(fifo: tuple[tuple[str, str], ...], notes: tuple[str, ...], transport: Transport) -> JobEnvironment:
    ucx = "UCX has one class for all that a process sends: none is set"
    if transport == "infiniband":
        unset = "NCCL_IB_SL is left out for the same reason"
        return JobEnvironment(notes=(BY_AXIS, unset, ucx))
    lanes = "NCCL_IB_SL=0 keeps NCCL from taking a communicator's class for a service level, too"
    return JobEnvironment(variables=(("NCCL_IB_SL", "0"), *fifo), notes=(BY_AXIS, lanes, ucx, *notes))


def _stock_nccl(pairs: Sequence[PricedPair]) -> JobEnvironment:
    """The best pair of queue pairs, marked as what it is."""
    best, one = pairs[0], next(pair for pair in pairs if pair.queue_pairs == 1)
    low, high = best.range
    said = (
        "By chance, not by choice, for a stock NCCL, which cannot be told ports (leave it out where a plugin sets"
        f" them): with so many queue pairs in all jobs these do {best.work_share:.1%} of the work of jobs that meet"
        f" nobody, in the mean of the draws played ({low:.1%} to {high:.1%}), with one for each connection"
        f" {one.work_share:.1%}"
    )
    return JobEnvironment(variables=best.variables, notes=(said,))
