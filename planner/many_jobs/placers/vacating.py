"""Which running jobs `ours` moves: onto whole nodes, and off nodes that come free by it.

All is counted in device-seconds. A job that moves stands still for its restart: that times its devices is paid. A job
that is scattered over more nodes than it needs wins, on whole nodes, what its iterations take less there, for as long
as it should run. A node that everybody leaves is idle from now on, not only from its last job's end; where the jobs go
on, other nodes are in use for longer than by their own jobs.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.filling import best_fit
from planner.many_jobs.placers.move_board import MoveBoard, instead
from planner.many_jobs.placers.moves import Seated
from profiles.records import dataclass

EQUAL = 5e-3
"""Times nearer to each other than this share are one."""


def stays_s(seated: Seated, now_s: float) -> float:
    """Return how long the job should run on: to its predicted end; where nobody can say, or that has passed, as long
    again as it has worked there."""
    left_s = -1.0 if seated.end_s is None else seated.end_s - now_s
    return left_s if left_s > 0 else now_s - seated.from_s


def paid_device_s(seated: Seated) -> float:
    """Return what moving the job costs."""
    return seated.devices * seated.restart_s


# Scattered jobs onto whole nodes


def gather(board: MoveBoard) -> None:
    """Move scattered jobs onto as few nodes as whole ones would be, where these are free and that pays; those that win
    most first."""
    now_s, size = board.request.now_s, board.request.size
    scattered = [job for job in board.nodes.all_seated() if len(job.seats) > -(-job.devices // size)]
    for job in sorted(scattered, key=lambda job: (-job.devices * stays_s(job, now_s), job.job.id)):
        whole = _whole_seats(board, job)
        if whole is not None and _wins_s(job, whole, now_s) > job.restart_s:
            board.reseat(job, whole)


def _whole_seats(board: MoveBoard, job: Seated) -> NodeCounts | None:
    free = list(board.free)
    for node, count in job.seats:
        free[node] += count
    seats = best_fit(free, range(len(free)), job.devices)
    return seats if seats is not None and len(seats) == -(-job.devices // board.request.size) else None


def _wins_s(job: Seated, seats: NodeCounts, now_s: float) -> float:
    here_s, there_s = job.iteration_s(job.seats), job.iteration_s(seats)
    if not here_s or not there_s:
        return 0.0
    return stays_s(job, now_s) * (1 - there_s / here_s)


# Off nodes that come free


def vacate(board: MoveBoard) -> None:
    """Move everybody off partly used nodes into what is free on others, where that pays: always the node next that wins
    most as things stand. Each that is emptied takes a node's worth of what is free on partly used ones, whoever sat
    there, so that what it wins alone says which comes first."""
    now_s, size = board.request.now_s, board.request.size
    if sum(board.free[node] for node in board.partly_used()) < size:
        return
    stays = _Stays(board)
    # The most that emptying each can win, or what it did when it was last looked at: seldom less than it would now.
    most = list[tuple[float, int]]()
    for node in board.partly_used():
        pieces = board.pieces(node)
        if pieces:
            most.append((sum(paid_device_s(job) for job, _ in pieces) - size * stays.of(node), node))
    heapify(most)
    while most and most[0][0] < 0:
        negative, node = heappop(most)
        pieces = None if node in board.came else board.pieces(node)
        leaving = None if not pieces else _leave(board, stays, node, pieces)
        if leaving is None:
            continue
        loss = sum(paid_device_s(job) for job, *_ in leaving.pieces) + size * (leaving.longer_s - stays.of(node))
        if loss > negative and most and loss > most[0][0]:
            heappush(most, (loss, node))
        elif loss < 0:
            for job, target in leaving.pieces:
                board.reseat(job, instead(board.seats(job), node, target))
                stays.extend(target, stays_s(job, now_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaving:
    """Where everybody on a node would go, and for how many seconds nodes are in use for longer by it."""

    pieces: tuple[tuple[Seated, int], ...]
    longer_s: float


class _Stays:
    """How long nodes should be in use."""

    def __init__(self, board: MoveBoard) -> None:
        self._board, self._stays_s = board, dict[int, float]()

    def of(self, node: int) -> float:
        known_s = self._stays_s.get(node)
        if known_s is None:
            nodes, now_s = self._board.nodes, self._board.request.now_s
            last_s = nodes.last_end_s(node)
            by_end_s = 0.0 if last_s is None else last_s - now_s
            known_s = max(by_end_s, *(stays_s(job, now_s) for job in nodes.seated(node)), 0.0)
            self._stays_s[node] = known_s
        return known_s

    def extend(self, node: int, stays_on_s: float) -> None:
        self._stays_s[node] = max(self.of(node), stays_on_s)


def _leave(board: MoveBoard, stays: _Stays, node: int, pieces: tuple[tuple[Seated, int], ...]) -> _Leaving | None:
    """The largest first, of the partly used nodes with room to that which is in use for the least time longer by it,
    then to the one with the least left over. None: there is not room for all."""
    now_s = board.request.now_s
    room = {other: board.free[other] for other in board.partly_used() if other != node}
    longer_s: dict[int, float] = {}
    targets = list[tuple[Seated, int]]()
    for job, count in sorted(pieces, key=lambda piece: (-piece[1], -stays_s(piece[0], now_s), piece[0].job.id)):
        stay_s = stays_s(job, now_s)
        best: tuple[float, int, int] | None = None
        for other, free in room.items():
            if free < count:
                continue
            added_s = max(0.0, stay_s - stays.of(other) - longer_s.get(other, 0.0))
            key = (added_s, free, other)
            if (best is None or key < best) and _as_fast(job, node, other):
                best = key
        if best is None:
            return None
        added_s, _, target = best
        room[target] -= count
        longer_s[target] = longer_s.get(target, 0.0) + added_s
        targets.append((job, target))
    return _Leaving(pieces=tuple(targets), longer_s=sum(longer_s.values()))


def _as_fast(job: Seated, node: int, other: int) -> bool:
    """Whether a job on several nodes would be as fast with its devices of one on another; on one alone it always is."""
    if len(job.seats) == 1:
        return True
    here_s, there_s = job.iteration_s(job.seats), job.iteration_s(instead(job.seats, node, other))
    return here_s is None or there_s is None or there_s <= here_s * (1 + EQUAL)
