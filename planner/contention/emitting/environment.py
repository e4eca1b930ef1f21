"""The environment of a job that gives its traffic the level of a plan.

NCCL's net_ib sets a queue pair's traffic class from NCCL_IB_TC and its service level from NCCL_IB_SL; where one is not
set, from the communicator's own class (`ncclConfig_t.trafficClass`, 2.26 and later), where that is, both. Which of
NCCL_IB_TC and the communicator's class wins differs between releases and forks: never both. NCCL_IB_FIFO_TC (2.22.3 and
later) is the class of the short messages by which a receiver says where data may go; a sender waits for them. UCX takes
UCX_IB_TRAFFIC_CLASS on RoCE and UCX_IB_SL on InfiniBand.
"""

from __future__ import annotations

from planner.contention.emitting.levels import MapLevel
from planner.contention.emitting.planned import PlannedJob
from planner.contention.emitting.priority_map import PriorityMap
from planner.contention.emitting.transports import Transport
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


NO_LEVEL = "it shares no link with others and needs no level"
OTHER = "its network takes classes neither from DSCP nor from service levels: nothing is set"
BY_AXIS = (
    "levels by axis are the communicators' own (axis_levels.py): NCCL_IB_TC is left out, since NCCL releases differ in"
    " which of the two wins, and must be set nowhere else (/etc/nccl.conf)"
)


def environment_of(job: PlannedJob, of: PriorityMap, transport: Transport = "roce") -> JobEnvironment:
    """Return the environment of every rank of `job` where levels are those of the map. Raise InputError for a level
    that the map has not."""
    levels = {level: level_of(level, of, job) for level in job.levels}
    if not levels:
        return JobEnvironment(notes=(NO_LEVEL,))
    if transport == "tcp":
        return JobEnvironment(notes=("its TCP gets its level by nftables (dscp.nft), not by its environment",))
    if transport == "other":
        return JobEnvironment(notes=(OTHER,))
    if job.axis_levels:
        return _by_axis(of, transport)
    level = levels[job.levels[0]]
    if transport == "infiniband":
        return JobEnvironment(
            variables=(("NCCL_IB_SL", str(level.priority)), ("UCX_IB_SL", str(level.priority))),
            notes=("InfiniBand: service levels alone, there are no ports to choose",),
        )
    return JobEnvironment(
        variables=(
            ("NCCL_IB_TC", str(level.tos)),
            ("NCCL_IB_FIFO_TC", str(of.levels[0].tos)),
            ("UCX_IB_TRAFFIC_CLASS", str(level.tos)),
        ),
        notes=("NCCL_IB_FIFO_TC is read from NCCL 2.22.3 on; before, these messages share the job's own level",),
    )


def level_of(level: int, of: PriorityMap, job: PlannedJob) -> MapLevel:
    """Return a level's queue. Raise InputError where the map has not so many."""
    if not 0 <= level < len(of.levels):
        expected = f"0 to {len(of.levels) - 1}: the levels of the map ({of.source})"
        raise InputError(where=f"job {job.id}", key="level", found=level, expected=expected)
    return of.levels[level]


def _by_axis(of: PriorityMap, transport: Transport) -> JobEnvironment:
    ucx = "UCX has one class for all that a process sends: none is set"
    if transport == "infiniband":
        unset = "NCCL_IB_SL is left out for the same reason"
        return JobEnvironment(notes=(BY_AXIS, unset, ucx))
    return JobEnvironment(
        variables=(("NCCL_IB_SL", "0"), ("NCCL_IB_FIFO_TC", str(of.levels[0].tos))),
        notes=(BY_AXIS, "NCCL_IB_SL=0 keeps NCCL from taking a communicator's class for a service level, too", ucx),
    )
