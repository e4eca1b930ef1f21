"""Better partitions by moving nodes: passes of Fiduccia and Mattheyses between many parts, with ejection.

Every pass moves each node at most once, the best first, also where that makes the cut worse for a while, and goes back
to the best state on its way (Fiduccia & Mattheyses 1982; between k parts as in Karypis & Kumar 1998). A part may be
overfull for one move: the next one then takes something out of it, so that full parts can still exchange nodes
(Kernighan & Lin 1970 swap pairs for that).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from random import Random

from planner.many_jobs.scheduling.sites.partition import PartitionGraph


def refine(
    graph: PartitionGraph,
    parts: list[int],
    capacities: Sequence[int],
    rng: Random,
    *,
    passes: int,
    patience: int,
) -> tuple[int, int]:
    """Change `parts` in place; how much (excess, cut) fell: neither rises, excess counting first.

    At most so many `passes`, each ended by `patience` moves without a better state.
    """
    state = _State(graph, parts, capacities)
    excess_before, gained = state.excess, 0
    for _ in range(passes):
        gain, better = state.run(rng, patience)
        gained += gain
        if not better:
            break
    return excess_before - state.excess, gained


class _State:
    """Parts, their loads, and what each node sends to each part."""

    def __init__(self, graph: PartitionGraph, parts: list[int], capacities: Sequence[int]) -> None:
        self.first, self.other, self.weight = graph.neighbours
        self.loads: list[int] = graph.loads.tolist()
        self.parts, self.room = parts, list(capacities)
        self.count = len(self.room)
        self.members: list[set[int]] = [set() for _ in self.room]
        for node, part in enumerate(parts):
            self.room[part] -= self.loads[node]
            self.members[part].add(node)
        self.sent: list[list[int]] = []
        for node in range(len(parts)):
            row = [0] * self.count
            for place in range(self.first[node], self.first[node + 1]):
                row[parts[self.other[place]]] += self.weight[place]
            self.sent.append(row)
        self.slack = max(self.loads, default=0)

    @property
    def excess(self) -> int:
        return -sum(room for room in self.room if room < 0)

    def run(self, rng: Random, patience: int) -> tuple[int, bool]:
        """One pass: how much the cut fell, and whether the state is better."""
        parts, sent, room, loads = self.parts, self.sent, self.room, self.loads
        ties = [rng.random() for _ in parts]
        locked = bytearray(len(parts))
        heap: list[tuple[int, float, int, int]] = []
        for node, part in enumerate(parts):
            row = sent[node]
            if sum(row) > row[part]:
                heap.append(self._entry(node, ties[node]))
        heapify(heap)
        moves: list[tuple[int, int]] = []
        gained = best = best_at = 0
        start = least = self.excess
        while len(moves) - best_at < patience:
            full = self._fullest()
            move = self._push_out(full, locked, ties) if full >= 0 else self._pop(heap, locked, ties)
            if move is None:
                break
            node, target = move
            origin = parts[node]
            gained += sent[node][target] - sent[node][origin]
            locked[node] = 1
            moves.append((node, origin))
            for neighbour in self._move(node, target):
                if not locked[neighbour]:
                    heappush(heap, self._entry(neighbour, ties[neighbour]))
            room_short = self.excess if min(room) < 0 else 0
            if room_short < least or (room_short == least and gained > best):
                least, best, best_at = room_short, gained, len(moves)
        for node, origin in reversed(moves[best_at:]):
            self._move(node, origin)
        del loads
        return best, least < start or best > 0

    def _entry(self, node: int, tie: float) -> tuple[int, float, int, int]:
        """The node's best move, whether there is room or not."""
        row, own = self.sent[node], self.parts[node]
        most, target = -1, -1
        for part, value in enumerate(row):
            if value > most and part != own:
                most, target = value, part
        return row[own] - most, tie, node, target

    def _pop(
        self, heap: list[tuple[int, float, int, int]], locked: bytearray, ties: list[float]
    ) -> tuple[int, int] | None:
        """The best move into a part that has room, or would with one node less."""
        parts, sent, room, loads = self.parts, self.sent, self.room, self.loads
        while heap:
            loss, tie, node, target = heappop(heap)
            own = parts[node]
            if locked[node] or target == own or sent[node][own] - sent[node][target] != loss:
                continue
            load = loads[node]
            if room[target] + self.slack >= load and (room[target] >= load or self._can_leave(target, load)):
                return node, target
            # The next best of its targets, if any has room.
            row = sent[node]
            found, most = -1, -1
            for part, value in enumerate(row):
                if part != own and most < value and value <= row[target] and part != target and room[part] >= load:
                    found, most = part, value
            if found >= 0 and (most > 0 or row[own] == 0):
                heappush(heap, (row[own] - most, ties[node], node, found))
                del tie
        return None

    def _can_leave(self, part: int, load: int) -> bool:
        """Whether some other part could take one node of about that load."""
        room = max(room for number, room in enumerate(self.room) if number != part)
        return room + load >= load and len(self.members[part]) > 1

    def _fullest(self) -> int:
        least = min(self.room)
        return self.room.index(least) if least < 0 else -1

    def _push_out(self, full: int, locked: bytearray, ties: list[float]) -> tuple[int, int] | None:
        """The move out of an overfull part that costs least, into one that has room; such that, where possible, one
        is enough."""
        room, loads, short = self.room, self.loads, -self.room[full]
        best: tuple[bool, int, float, int, int] | None = None
        for node in self.members[full]:
            load = loads[node]
            if locked[node] or not load:
                continue
            row = self.sent[node]
            own, tie = row[full], ties[node]
            for part, value in enumerate(row):
                if part != full and room[part] >= load:
                    key = (load < short, own - value, tie, node, part)
                    if best is None or key < best:
                        best = key
        return None if best is None else (best[3], best[4])

    def _move(self, node: int, target: int) -> list[int]:
        """Move the node; its neighbours."""
        origin, load = self.parts[node], self.loads[node]
        self.parts[node] = target
        self.members[origin].discard(node)
        self.members[target].add(node)
        self.room[origin] += load
        self.room[target] -= load
        start, end = self.first[node], self.first[node + 1]
        neighbours = self.other[start:end]
        for neighbour, weight in zip(neighbours, self.weight[start:end], strict=True):
            row = self.sent[neighbour]
            row[origin] -= weight
            row[target] += weight
        return neighbours
