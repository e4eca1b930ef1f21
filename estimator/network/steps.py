"""Jobs as a network sees them: steps of compute and transfers with known ways, whoever made them.

What `estimator.network.traffic` says in collectives stands here in links, by number: a player knows no collective.
"""

from __future__ import annotations

from profiles.records import dataclass


@dataclass(frozen=True, kw_only=True)
class Mover:
    """Whatever moves as one over a network: a connection, or all flows of one step of a collective, which wait for each
    other. At pace 1 it puts `way`, each link once, (link, bytes/s), on the network; it takes `seconds` at that pace,
    and is never faster than `most`. A mover without a way takes its seconds over `most`. Links are shared by bytes: of
    two movers of one level and weight that one link holds, each gets as many bytes/s where its way is fullest."""

    way: tuple[tuple[int, float], ...]
    seconds: float
    most: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """Movers that begin together; it ends when all have arrived. Before they begin `latency_s` passes without a byte.
    `level`: which of the job's own levels (by axis) it has, where levels are by axis; else the job's."""

    movers: tuple[Mover, ...]
    latency_s: float = 0.0
    times: int = 1
    level: int | None = None


@dataclass(frozen=True, kw_only=True)
class Step:
    """As `estimator.network.traffic.Span`: compute, and transfers one after the other from `begins_s` of it on."""

    compute_s: float
    transfers: tuple[Transfer, ...] = ()
    begins_s: float = 0.0
    times: int = 1


@dataclass(frozen=True, kw_only=True)
class Playing:
    """A job that repeats its steps: `starts_s` is when it comes; it goes after `iterations` (None: never by itself).
    `level` 0 comes before 1 and so on; `weight` counts inside a level. `idle_s` passes before its first step.

    `period_s` above 0: an iteration begins no sooner than whole periods after the first, one period for each iteration;
    one that is late begins at once, and of whole periods that were missed none is made up for."""

    steps: tuple[Step, ...]
    starts_s: float = 0.0
    iterations: int | None = None
    level: int = 0
    weight: float = 1.0
    idle_s: float = 0.0
    period_s: float = 0.0
