"""What a rule of placement is asked that may move running jobs, and what it proposes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from planner.many_jobs.jobs.records import Job, NodeCounts
from planner.many_jobs.placers.records import FreeNodes, Placer, Price
from profiles.network import Network
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Seated:
    """A running job that sits on one pool and may be moved: on `seats`, in the order of its ranks. It works there from
    `from_s` on, when its restart is over, and should end at `end_s` (None: nobody can say). A move has it stand still
    for `restart_s`; `iteration_s` says what an iteration takes on nodes, free or not, None where nobody can say."""

    job: Job
    seats: NodeCounts
    devices: int
    from_s: float
    end_s: float | None
    restart_s: float
    iteration_s: Price


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The job of that id goes on elsewhere: on these nodes, in the order of its ranks."""

    job: str
    seats: NodeCounts


class SeatedNodes(FreeNodes, Protocol):
    """The nodes of a pool, and who sits there."""

    def seated(self, node: int) -> Sequence[Seated]:
        """The jobs on the node that may be moved, in the order in which they came."""

    def all_seated(self) -> Iterable[Seated]:
        """All of the pool that may be moved, in the order in which they came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRequest:
    """Which jobs of a pool are to be moved, now? `size` is the devices of a node."""

    pool: str
    size: int
    now_s: float
    network: Network


@runtime_checkable
class MovingPlacer(Placer, Protocol):
    """A rule that proposes moves of jobs that run. They are carried out all at once, so that a job may take what
    another leaves. It keeps nothing between two calls, and is deterministic."""

    def moves(self, nodes: SeatedNodes, request: MoveRequest, /) -> Sequence[Move]: ...
