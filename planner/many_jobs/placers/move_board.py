"""Running jobs and the nodes that they sit on, as moves are tried out."""

from __future__ import annotations

from collections.abc import Sequence

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.moves import Move, MoveRequest, Seated, SeatedNodes


class MoveBoard:
    """What is free of a pool and who would sit where after the moves so far. Nodes of `request.size` free are idle."""

    def __init__(self, nodes: SeatedNodes, request: MoveRequest) -> None:
        self.nodes, self.request = nodes, request
        self.free = list(nodes.free)
        self.came: set[int] = set()
        """Nodes that somebody would move to."""
        self._seats: dict[str, dict[int, int]] = {}

    def partly_used(self) -> list[int]:
        """Return the nodes that would be neither idle nor full."""
        return [node for node, count in enumerate(self.free) if 0 < count < self.request.size]

    def pieces(self, node: int) -> tuple[tuple[Seated, int], ...] | None:
        """Return who sits on a node that nobody would move to, each with its devices there; None where some of them may
        not be moved, or would move already."""
        seated = self.nodes.seated(node)
        pieces = tuple((job, dict(job.seats)[node]) for job in seated)
        if any(job.job.id in self._seats for job in seated):
            return None
        if sum(count for _, count in pieces) != self.request.size - self.free[node]:
            return None
        return pieces

    def seats(self, seated: Seated) -> NodeCounts:
        """Return where the job would sit."""
        held = self._seats.get(seated.job.id)
        return seated.seats if held is None else tuple(held.items())

    def reseat(self, seated: Seated, seats: NodeCounts) -> None:
        """The job would sit there: on what is free, or its own."""
        for node, count in self.seats(seated):
            self.free[node] += count
        for node, count in seats:
            self.free[node] -= count
        self._seats[seated.job.id] = dict(seats)
        before = dict(seated.seats)
        self.came.update(node for node, count in seats if count > before.get(node, 0))

    def moves(self) -> Sequence[Move]:
        """Return the moves so far."""
        return [Move(job=id_, seats=tuple(seats.items())) for id_, seats in self._seats.items()]


def instead(seats: NodeCounts, node: int, other: int) -> NodeCounts:
    """Return seats with those of a node on another one.

    >>> instead(((3, 8), (1, 2)), 1, 5), instead(((3, 1), (1, 2)), 1, 3)
    (((3, 8), (5, 2)), ((3, 3),))
    """
    moved = dict[int, int]()
    for place, count in seats:
        target = other if place == node else place
        moved[target] = moved.get(target, 0) + count
    return tuple(moved.items())
