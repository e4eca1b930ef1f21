"""What a job sends in an iteration, and when: the records that estimates fill in and that players read.

An iteration is a row of spans. In a span the devices compute, and from a stated moment of that on they communicate; it
ends when both are done. So communication that blocks begins where the compute ends, and what hides begins before.
"""

from __future__ import annotations

from typing import Literal

from profiles.records import dataclass
from profiles.vocabulary import Axis, CollectiveOp


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A collective of an axis, on all of its groups at once; `times` in a row, each when the one before has ended.

    `size_bytes` is counted as `profiles.vocabulary.Collective.bytes`, of one group. `groups` hold the ranks of the job,
    from 0, in the order in which the collective goes through them; of send_recv each is sender and receiver. `alone_s`
    is what one of them takes of this job alone, by the estimate, its latency included. Those `beside` it begin with
    each of them, and it has ended when all have: two axes that send at the same time, both ways of a boundary.
    `algorithm`: that of an all_reduce over nodes, ring or tree; None: ring.
    """

    axis: Axis
    op: CollectiveOp
    size_bytes: float
    groups: tuple[tuple[int, ...], ...]
    alone_s: float
    latency_s: float = 0.0
    times: int = 1
    beside: tuple[Exchange, ...] = ()
    algorithm: Literal["ring", "tree"] | None = None

    @property
    def together_s(self) -> float:
        """Seconds of one of them alone, with what is sent beside it."""
        return max(self.alone_s, max((other.times * other.together_s for other in self.beside), default=0.0))


@dataclass(frozen=True, kw_only=True)
class Span:
    """`compute_s` of compute, and exchanges that follow each other from `begins_s` of it on; `times` in a row."""

    compute_s: float
    exchanges: tuple[Exchange, ...] = ()
    begins_s: float = 0.0
    times: int = 1


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """A job's iteration on `devices` ranks: `flops` is the work of all devices in it (Crux, eq. 1)."""

    devices: int
    spans: tuple[Span, ...]
    flops: float
