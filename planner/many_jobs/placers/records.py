"""What a rule of placement is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from planner.many_jobs.jobs.records import Job, NodeCounts
from profiles.network import Network
from profiles.records import dataclass

Price = Callable[[NodeCounts], float | None]
"""Seconds of a job's iteration on nodes, free or not, in the order of its ranks; None where nobody can say."""


def no_price(_: NodeCounts) -> None:
    """The `Price` where nobody can say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """What a rule answers that would rather wait, where it may: the job is placed at `until_s` (a time of day, after
    now) at the latest, and asked for again whenever something happens before."""

    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Available:
    """Bytes/s that are left: through the NICs of each node, one direction, and through the uplinks of the parts of the
    network, by level the part of each node and the bytes/s of each part."""

    nics_bytes_per_s: Sequence[float]
    uplinks: Sequence[tuple[Sequence[int], Sequence[float]]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a job asks of the network and what is left of it: the bytes of its gradients, the seconds of an iteration on
    one node (of a job that is larger, on whole nodes), and the bytes/s beside the jobs that run."""

    gradient_bytes: float
    iteration_s: float
    available: Available


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """So many `devices` of one pool for a job, now; they are free. `size` is the devices of a node. `predicted_end_s`
    is when the job should end as far as anybody can say, None where nobody can: by the predictor, or by the duration
    that the trace states. `iteration_s` says what an iteration would take where. `budget` answers when it is called:
    None of a job of whose traffic nothing is known; it is None itself where seats have no price. `may_wait`: the rule
    may answer `Later`."""

    job: Job
    pool: str
    devices: int
    size: int
    now_s: float
    predicted_end_s: float | None
    network: Network
    iteration_s: Price = no_price
    budget: Callable[[], Budget | None] | None = None
    may_wait: bool = False


class FreeNodes(Protocol):
    """The nodes of a pool, by number. Live, and not to be changed."""

    @property
    def free(self) -> Sequence[int]:
        """Devices of each node that the job may have: none of nodes that are down, or reserved for others. A node that
        gives as many as it has is idle."""

    def last_end_s(self, node: int) -> float | None:
        """When the last of the jobs on the node should end; None where it is idle, or nobody can say."""

    def ends(self, node: int) -> Sequence[tuple[float, int]]:
        """When jobs on the node should end, in any order, and how many of its devices each holds; without those of
        which nobody can say."""


class Placer(Protocol):
    """A rule: of which nodes a job gets how many devices, the nodes in the order of its ranks; or, where the request
    allows it, that it is placed later. It keeps nothing between two calls, and is deterministic."""

    @property
    def name(self) -> str: ...
    def place(self, nodes: FreeNodes, request: Request, /) -> NodeCounts | Later: ...
