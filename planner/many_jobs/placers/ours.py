"""Ours: whole nodes where they are free; else scattered, or later, whichever should end the job sooner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from math import inf

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.dividing import evenest, fullest, partitions
from planner.many_jobs.placers.move_board import MoveBoard
from planner.many_jobs.placers.moves import Move, MoveRequest, SeatedNodes
from planner.many_jobs.placers.records import FreeNodes, Later, Request
from planner.many_jobs.placers.vacating import gather, vacate
from planner.many_jobs.placers.whole_nodes import whole_nodes_from

EQUAL = 5e-3
"""Times nearer to each other than this share are one."""
MORE_NODES = 1
"""Beyond the fewest nodes that hold a job so many more are looked at."""
MOST_DIVIDED, MOST_DIVISIONS = 8, 24
"""Over up to so many nodes a job is divided in several ways: so many of them, those with large parts first, and the
most even one. Over more nodes only the fullest and the most even are looked at."""
MOST_PARTS = 4
"""Of each level of the network so many parts are looked at that hold the job, those with the least free first."""


class Ours:
    """On one node where one has room: that which the job keeps in use for the least time more, by the ends of the jobs
    there; of equal ones the one with the least left over. On as few as whole ones would be where these are free: as
    full as best-fit's, each part on the node with the least left over.

    Else the job is scattered over the fewest nodes, or one more, where an iteration takes least; of equal ways on the
    fewest nodes, the fewest idle ones, with the least left over. Or it waits, where `wait` allows, and the nodes that
    it needs should come free before the slower iterations would have cost as much:
    duration * (scattered / whole - 1) > wait.

    Of equal nodes those whose last job should end nearest to this one. Ends and durations are predicted ones (`--jct`),
    or as the trace states them; times are what the simulation prices places at. Where it does not, all ways are as
    fast, and nobody waits; where nobody knows when the job ends, one node is best-fit's.
    """

    name = "ours"

    def __init__(self, wait: bool = True) -> None:
        self.wait = wait

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts | Later:
        """As `Placer`."""
        one = _one_node(nodes, request)
        if one is not None:
            return ((one, request.devices),)
        ways = [
            _seat(nodes, request, zone, parts)
            for zone in _zones(nodes.free, request)
            for parts in _divisions(nodes.free, request, zone)
        ]
        priced = [(0.0 if len(ways) == 1 else _time_s(request, way), way) for way in ways]
        least_s = min(time_s for time_s, _ in priced)
        best = min(
            (way for time_s, way in priced if time_s <= least_s * (1 + EQUAL)),
            key=lambda way: standing(nodes.free, request.size, way),
        )
        if self.wait and request.may_wait and len(best) > -(-request.devices // request.size):
            whole = whole_nodes_from(nodes, request)
            if whole is not None and scattering_costs_s(request, best, whole[1]) > whole[0] - request.now_s:
                return Later(until_s=whole[0])
        return best

    def moves(self, nodes: SeatedNodes, request: MoveRequest) -> Sequence[Move]:
        """As `MovingPlacer`: scattered jobs onto whole nodes, then everybody off nodes that come free by it, where what
        that wins is more than what the restarts cost."""
        board = MoveBoard(nodes, request)
        gather(board)
        vacate(board)
        return board.moves()


def _one_node(nodes: FreeNodes, request: Request) -> int | None:
    """The node for a job that fits on one, and of which somebody can say when it ends; None for others."""
    end_s, free = request.predicted_end_s, nodes.free
    if end_s is None:
        return None
    best: tuple[float, bool, int, float, int] | None = None
    for node, count in enumerate(free):
        if count < request.devices:
            continue
        last_s = nodes.last_end_s(node)
        apart_s = inf if last_s is None else abs(last_s - end_s)
        key = added_s(request.now_s, end_s, last_s), count == request.size, count, apart_s, node
        best = key if best is None or key < best else best
    return None if best is None else best[-1]


def added_s(now_s: float, end_s: float, last_s: float | None) -> float:
    """Return how much longer a node is in use if a job sits there that ends then, beside others of which the last
    should end at `last_s` (None: nobody knows, or there are none)."""
    return max(0.0, end_s - max(now_s, now_s if last_s is None else last_s))


def standing(free: Sequence[int], size: int, way: NodeCounts) -> tuple[int, int, int]:
    """Return what decides between ways that are as fast: nodes, idle ones of them, and what is left over on them."""
    opened = sum(free[node] == size for node, _ in way)
    return len(way), opened, sum(free[node] - count for node, count in way)


def scattering_costs_s(request: Request, way: NodeCounts, whole: NodeCounts) -> float:
    """Return by how much later the job should end on a way than on whole nodes, if it started now; 0 where nobody can
    say how long it runs, or what places cost."""
    whole_s = _time_s(request, whole)
    if request.predicted_end_s is None or not whole_s:
        return 0.0
    return (request.predicted_end_s - request.now_s) * (_time_s(request, way) / whole_s - 1)


def _time_s(request: Request, way: NodeCounts) -> float:
    time_s = request.iteration_s(way)
    return 0.0 if time_s is None else time_s


def _zones(free: Sequence[int], request: Request) -> Iterator[Sequence[int]]:
    """All nodes with something free; and for a job on several nodes those of parts of the network that hold it."""
    here = [node for node, count in enumerate(free) if count]
    yield here
    if request.devices <= max(free):
        return
    for row in request.network.part_of_node:
        parts: dict[int, list[int]] = {}
        for node in here:
            parts.setdefault(row[node], []).append(node)
        holding = [(sum(free[node] for node in members), number) for number, members in parts.items()]
        if len(holding) > 1:
            for _, number in sorted(entry for entry in holding if entry[0] >= request.devices)[:MOST_PARTS]:
                yield parts[number]


def _divisions(free: Sequence[int], request: Request, zone: Sequence[int]) -> Iterable[tuple[int, ...]]:
    """The ways to divide the job over the fewest nodes of a zone and one more; the fullest alone where that is no more
    than whole nodes would be."""
    caps = sorted((free[node] for node in zone), reverse=True)
    fewest, held = 0, 0
    while held < request.devices:
        held += caps[fewest]
        fewest += 1
    if fewest <= -(-request.devices // request.size):
        return (fullest(request.devices, caps[:fewest]),)
    numbers = range(fewest, min(fewest + MORE_NODES, len(caps), request.devices) + 1)
    return dict.fromkeys(chain.from_iterable(_over(request.devices, caps[:number]) for number in numbers))


def _over(devices: int, caps: Sequence[int]) -> Iterator[tuple[int, ...]]:
    if len(caps) <= MOST_DIVIDED:
        yield from islice(partitions(devices, caps), MOST_DIVISIONS)
    else:
        yield fullest(devices, caps)
    yield evenest(devices, caps)


def _seat(nodes: FreeNodes, request: Request, zone: Sequence[int], parts: Sequence[int]) -> NodeCounts:
    """Each part, the largest first, on the node with the least free that holds it; of equal ones that whose last job
    should end nearest to this one."""
    alike: dict[int, list[int]] = {}
    for node in zone:
        alike.setdefault(nodes.free[node], []).append(node)
    ordered = dict[int, Iterator[int]]()
    left = {count: len(members) for count, members in alike.items()}
    chosen = list[tuple[int, int]]()
    for part in parts:
        count = min(count for count, number in left.items() if number and count >= part)
        left[count] -= 1
        if count not in ordered:
            ordered[count] = iter(_by_ends(nodes, request, alike[count], count))
        chosen.append((next(ordered[count]), part))
    return tuple(chosen)


def _by_ends(nodes: FreeNodes, request: Request, alike: Sequence[int], count: int) -> Sequence[int]:
    end_s = request.predicted_end_s
    if end_s is None or count == request.size:
        return alike
    last_s = {node: nodes.last_end_s(node) for node in alike}
    return sorted(alike, key=lambda node: (inf if (last := last_s[node]) is None else abs(last - end_s), node))
