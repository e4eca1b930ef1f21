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
from estimator.network.player.packing import pack
from estimator.network.player.play import Settings, play
from estimator.network.steps import Playing
from estimator.network.traffic import Traffic
from planner.contention.job_connections import End, JobConnections, QueuePair, opened_by
from planner.contention.policies.axes import levelled
from planner.contention.policies.loads import spread_paths, steps_on
from planner.contention.policies.path_selection import least_congested_paths
from planner.contention.policies.records import Choice, Contender, View
from profiles.records import dataclass, replace

__all__ = ["MOST_CONNECTIONS", "MOST_PATHS", "End", "QueuePair", "Seen", "contender_of", "playing_under", "view_of"]

MOST_PATHS = 16
"""So many paths are offered to a connection, and its own."""
MOST_CONNECTIONS = 2048
"""So many queue pairs of a job may be given paths, those of most bytes; the rest keep those that hashes gave them."""


HELD_BACK = 1e-9
"""An iteration that takes by no more longer, relatively, is not held back."""


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
    """Return a job on a fabric as network policies see it. On the paths of `now` it puts on links what
    `estimator.network.connections.playing_of` says with the same seed and model.

    Args:
        id: its name.
        traffic: what it sends in an iteration.
        seats: of rank r, `seats[r]`.
        fabric: where; links are numbered as the fabric's.
        flops: work of an iteration on all devices.
        alone_s: of an iteration beside nobody, on paths on which its own connections meet least; played where it is not
            given.
        own_level: the level in force.
        weight: of its share inside a level.
        seed: draws the source ports that its connections have.
        model: what moves as one.
        most_paths: that are offered to a connection, beside the one that it takes.
        most_connections: queue pairs that may be given paths.

    Raises:
        NoWayError: nodes that no way joins. ValueError: not a seat for each rank, or as `connections_of`.
    """
    if len(seats) != traffic.devices:
        raise ValueError(f"{len(seats)} seats; expected one for each of {traffic.devices} ranks")
    made = JobConnections(fabric, opened_by(traffic, seats, fabric, seed), most_paths, most_connections)
    steps = steps_of(traffic, lambda exchange, _: made.transfer(exchange, model))
    contender = Contender(
        id=id,
        devices=len(seats),
        flops=flops,
        alone_s=1.0 if alone_s is None else alone_s,
        steps=steps,
        paths=tuple(made.paths),
        now=tuple(made.now),
        own_level=own_level,
        weight=weight,
        axes=tuple(made.axes),
    )
    if alone_s is None:
        contender = replace(contender, alone_s=_alone_s(contender, fabric))
    return Seen(contender=contender, queue_pairs=tuple(made.queue_pairs), fixed=made.fixed, left=made.left)


def view_of(seen: Sequence[Seen], fabric: Fabric, levels: int | None) -> View:
    """Return what a network policy is told of these jobs on a fabric that leaves so many levels free."""
    rates = tuple(fabric.links.bytes_per_s.tolist())
    return View(jobs=tuple(each.contender for each in seen), bytes_per_s=rates, levels=levels)


def playing_under(
    contender: Contender,
    choices: Sequence[Choice],
    *,
    level: int | None = None,
    axis_levels: Sequence[tuple[str, int]] = (),
    offset_s: float = 0.0,
    period_s: float | None = None,
) -> Playing:
    """Return a job on the paths, at the level, and so much later than the others as it was decided, as a player takes
    it; transfers of an axis with a level of its own have that, and iterations are held to `period_s`."""
    steps = levelled(contender, steps_on(contender, choices), tuple(axis_levels))
    return Playing(steps=steps, level=level or 0, weight=contender.weight, starts_s=offset_s, period_s=period_s or 0.0)


def _alone_s(contender: Contender, fabric: Fabric) -> float:
    """The least of what it takes on the paths of now, on all evenly, and each on its least congested: hashes make a
    job's own connections meet, which is no share of others."""
    seconds, least = _played_s(contender, fabric, contender.now)
    if seconds > least * (1 + HELD_BACK) and any(len(options) > 1 for options in contender.paths):
        view = View(jobs=(contender,), bytes_per_s=tuple(fabric.links.bytes_per_s.tolist()), levels=1)
        for choices in (spread_paths(view)[0], least_congested_paths(view, [0])[0]):
            seconds = min(seconds, _played_s(contender, fabric, choices)[0])
    return seconds


def _played_s(contender: Contender, fabric: Fabric, choices: Sequence[Choice]) -> tuple[float, float]:
    """Seconds of an iteration on these paths, and those that it takes where no link holds it back."""
    packed = pack(playing_under(contender, choices))
    settings = Settings(jitter=0.0, compiled=False)
    return play([packed], fabric.links.bytes_per_s, settings=settings).jobs[0].seconds, packed.lasts_s
