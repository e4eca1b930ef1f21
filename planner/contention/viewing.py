"""Jobs on a fabric as network policies see them: connections, the paths that each may take, and the ports that lead
there.

A queue pair is a connection by itself: each can be told a port of its own. Those that have one way alone, whatever
their port, are joined into one connection for each mover, which puts fixed shares on its links, so that views stay
small. Connections that may take several paths come first.
"""

from __future__ import annotations

from collections.abc import Sequence

from estimator.network.connections import Model, steps_of
from estimator.network.fabric import Fabric, Seat
from estimator.network.traffic import Traffic
from planner.contention.alone import alone_seconds
from planner.contention.job_connections import End, JobConnections, QueuePair, opened_by, sets_of
from planner.contention.led_ways import lead
from planner.contention.policies.records import Contender, View
from planner.shared.garbage import collection_paused
from profiles.records import dataclass, replace

__all__ = [
    "MOST_CONNECTIONS",
    "MOST_PATHS",
    "End",
    "QueuePair",
    "Seen",
    "Sender",
    "contender_of",
    "contenders_of",
    "view_of",
]

MOST_PATHS = 16
"""So many paths are offered to a connection, and its own."""
MOST_CONNECTIONS = 2048
"""So many queue pairs of a job may be given paths, those of most bytes; the rest keep those that hashes gave them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sender:
    """A job that is to be seen: its name, what it sends in an iteration, of rank r the seat `seats[r]`, the work of an
    iteration on all devices; `alone_s` of an iteration beside nobody, on paths on which its own connections meet least
    (None: played); the level in force; the weight of its share inside a level; what draws the source ports of its
    connections."""

    id: str
    traffic: Traffic
    seats: Sequence[Seat]
    flops: float
    alone_s: float | None = None
    own_level: int = 0
    weight: float = 1.0
    seed: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """A job as a policy sees it. `queue_pairs[c]` is connection c of the contender; those after them are joined ones.
    `fixed` queue pairs have one way alone, `left` others keep theirs because there are too many of them."""

    contender: Contender
    queue_pairs: tuple[QueuePair, ...]
    fixed: int = 0
    left: int = 0


def contender_of(
    id: str,
    traffic: Traffic,
    seats: Sequence[Seat],
    fabric: Fabric,
    *,
    flops: float,
    alone_s: float | None = None,
    own_level: int = 0,
    weight: float = 1.0,
    seed: int = 0,
    model: Model = "collective",
    most_paths: int = MOST_PATHS,
    most_connections: int = MOST_CONNECTIONS,
) -> Seen:
    """Return one job as `contenders_of` does; the arguments are those of a `Sender`, and its."""
    sender = Sender(
        id=id, traffic=traffic, seats=seats, flops=flops, alone_s=alone_s, own_level=own_level, weight=weight, seed=seed
    )
    (seen,) = contenders_of([sender], fabric, model=model, most_paths=most_paths, most_connections=most_connections)
    return seen


@collection_paused()
def contenders_of(
    jobs: Sequence[Sender],
    fabric: Fabric,
    *,
    model: Model = "collective",
    most_paths: int = MOST_PATHS,
    most_connections: int = MOST_CONNECTIONS,
) -> tuple[Seen, ...]:
    """Return jobs on a fabric as network policies see them, many at once in a fraction of the time that they take one
    by one. On the paths of `now` a job puts on links what `estimator.network.connections.playing_of` says with the same
    seed and model.

    Args:
        jobs: who they are and what they send.
        fabric: where; links are numbered as the fabric's.
        model: what moves as one.
        most_paths: that are offered to a connection, beside the one that it takes.
        most_connections: queue pairs of a job that may be given paths.

    Raises:
        NoWayError: nodes that no way joins. ValueError: not a seat for each rank, or as `connections_of`.
    """
    for job in jobs:
        if len(job.seats) != job.traffic.devices:
            raise ValueError(f"{len(job.seats)} seats; expected one for each of {job.traffic.devices} ranks")
    opened = [opened_by(job.traffic, job.seats, fabric, job.seed) for job in jobs]
    sets = [sets_of(its) for its in opened]
    led = iter(lead(fabric, [each.queue_pairs for its in sets for each in its.values()], most_paths))
    made = [
        JobConnections(fabric, its, dict(zip(keys, led, strict=False)), most_connections)
        for its, keys in zip(opened, sets, strict=True)
    ]
    contenders = [_contender(job, its, model) for job, its in zip(jobs, made, strict=True)]
    unplayed = [number for number, job in enumerate(jobs) if job.alone_s is None]
    for number, seconds in zip(unplayed, alone_seconds([contenders[job] for job in unplayed], fabric), strict=True):
        contenders[number] = replace(contenders[number], alone_s=seconds)
    return tuple(
        Seen(contender=contender, queue_pairs=tuple(its.queue_pairs), fixed=its.fixed, left=its.left)
        for contender, its in zip(contenders, made, strict=True)
    )


def _contender(job: Sender, made: JobConnections, model: Model) -> Contender:
    """A job with its connections; one that was not played takes a second."""
    steps = steps_of(job.traffic, lambda exchange, _: made.transfer(exchange, model))
    return Contender(
        id=job.id,
        devices=len(job.seats),
        flops=job.flops,
        alone_s=1.0 if job.alone_s is None else job.alone_s,
        steps=steps,
        paths=tuple(made.paths),
        now=tuple(made.now),
        own_level=job.own_level,
        weight=job.weight,
        axes=tuple(made.axes),
    )


def view_of(seen: Sequence[Seen], fabric: Fabric, levels: int | None) -> View:
    """Return what a network policy is told of these jobs on a fabric that leaves so many levels free."""
    rates = tuple(fabric.links.bytes_per_s.tolist())
    return View(jobs=tuple(each.contender for each in seen), bytes_per_s=rates, levels=levels)
