"""ElasticFlow's progressive filling: the smallest share of the devices with which a job makes its deadline."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from planner.many_jobs.scheduling.beliefs import Ladder
from profiles.records import dataclass

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A job with a deadline: its `work` in iterations, when it is due (seconds from now), and how fast it is."""

    work: float
    due_s: float
    ladder: Ladder


def slot_edges(slot_s: float, last_s: float, *, equal: int = 48, growth: float = 1.25) -> Floats:
    """Return the edges of the time slots in seconds from 0 to at least `last_s`: `equal` of `slot_s`, then each
    `growth` times as long. The paper's are all equal; far ones are coarser here, since they are planned again before
    they come."""
    edges, length = [0.0], slot_s
    while edges[-1] < last_s or len(edges) < 2:
        if len(edges) > equal:
            length *= growth
        edges.append(edges[-1] + length)
    return np.array(edges)


def minimum_share(free: Ints, edges: Floats, demand: Demand) -> Ints | None:
    """The devices of each slot that the job needs to make its deadline with the smallest cap; None if it cannot.

    Progressive filling (ElasticFlow, ASPLOS 2023, section 4.1, Algorithm 1, lines 8-20): with cap x a slot gives the
    largest count on the job's ladder that is at most x and free there; x rises until the work is done by the deadline.
    All x are tried at once.

    Args:
        free: devices of each slot that nobody has, shape (slots,).
        edges: of the slots, seconds from now, shape (slots + 1,).
    """
    counts, rates = demand.ladder.counts, demand.ladder.rates
    slots = int(edges[:-1].searchsorted(demand.due_s))
    if not counts or slots == 0:
        return None if demand.work > 0 else np.zeros_like(free)
    length_s = np.minimum(edges[1 : slots + 1], demand.due_s) - edges[:slots]
    ladder = np.array((0, *counts))
    speed = np.array((0.0, *rates))
    most = ladder.searchsorted(free[:slots], side="right") - 1
    rungs = np.minimum(most[None, :], np.arange(1, ladder.size)[:, None])
    enough = (speed[rungs] @ length_s) >= demand.work * (1 - 1e-9)
    cap = int(enough.argmax())
    if not enough[cap]:
        return None
    done = np.cumsum(speed[rungs[cap]] * length_s)
    last = int(done.searchsorted(demand.work * (1 - 1e-9)))
    share = np.zeros_like(free)
    share[: last + 1] = ladder[rungs[cap, : last + 1]]
    return share


class Plan:
    """The shares of admitted jobs, filled in order of deadlines."""

    def __init__(self, capacity: int, edges: Floats) -> None:
        self._edges = edges
        self._dues: list[float] = []
        self._entries: list[tuple[str, Demand, Ints]] = []
        self._free = [np.full(len(edges) - 1, capacity, np.int64)]

    def add(self, id_: str, demand: Demand) -> bool:
        """Admit the job if it and all admitted ones with later deadlines still have their share (Algorithm 1); else
        nothing changes. Earlier ones are not touched by it."""
        place = bisect_right(self._dues, demand.due_s)
        free, entries, frees = self._free[place], list[tuple[str, Demand, Ints]](), list[Ints]()
        for name, wanted in [(id_, demand), *((name, wanted) for name, wanted, _ in self._entries[place:])]:
            share = minimum_share(free, self._edges, wanted)
            if share is None:
                return False
            free = free - share
            entries.append((name, wanted, share))
            frees.append(free)
        self._dues.insert(place, demand.due_s)
        self._entries[place:] = entries
        self._free[place + 1 :] = frees
        return True

    def shares(self) -> dict[str, Ints]:
        """Devices of each slot for each admitted job."""
        return {name: share for name, _, share in self._entries}
