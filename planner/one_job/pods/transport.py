"""A transportation problem in whole cells: supplies, each with pods that may take it, into pods with limited room."""

from __future__ import annotations

from collections.abc import Sequence

Flow = list[dict[int, int]]
"""For every supply, the cells that go to each of its pods."""

Path = list[tuple[int, int]]
"""(unit, the pod that it takes more of), then the unit that gives way there and where it goes instead, ..."""


def transport(supply: Sequence[int], chosen: Sequence[Sequence[int]], room: Sequence[int]) -> Flow | None:
    """Return how many cells of each supply go to which of its `chosen` pods, no pod beyond its room; None where it does
    not fit. A maximum flow by shortest augmenting paths (Edmonds and Karp 1972)."""
    flow = [dict.fromkeys(pods, 0) for pods in chosen]
    left = list(room)
    for unit, pods in enumerate(chosen):
        wanted = supply[unit]
        for pod in pods:
            moved = min(wanted, left[pod])
            flow[unit][pod] += moved
            left[pod] -= moved
            wanted -= moved
        while wanted:
            path = _path(flow, left, unit)
            if path is None:
                return None
            moved = min([wanted, left[path[-1][1]], *(flow[giver][pod] for giver, pod in _givers(path))])
            _push(flow, left, path, moved)
            wanted -= moved
    return flow


def _givers(path: Path) -> list[tuple[int, int]]:
    """Return who gives way on the path, and in which pod."""
    return [(path[step + 1][0], path[step][1]) for step in range(len(path) - 1)]


def _path(flow: Flow, left: list[int], start: int) -> Path | None:
    """The shortest chain of moves that lets unit `start` have one more cell."""
    frontier: list[tuple[int, int | None]] = [(start, None)]
    reached: dict[int, tuple[int, int | None]] = {}
    seen = {start}
    while frontier:
        later: list[tuple[int, int | None]] = []
        for unit, through in frontier:
            for pod in flow[unit]:
                if pod in reached:
                    continue
                reached[pod] = (unit, through)
                if left[pod]:
                    return _back(reached, pod)
                for other, held in enumerate(flow):
                    if other not in seen and held.get(pod):
                        seen.add(other)
                        later.append((other, pod))
        frontier = later
    return None


def _back(reached: dict[int, tuple[int, int | None]], pod: int | None) -> Path:
    path: Path = []
    while pod is not None:
        unit, through = reached[pod]
        path.append((unit, pod))
        pod = through
    return path[::-1]


def _push(flow: Flow, left: list[int], path: Path, moved: int) -> None:
    for unit, pod in path:
        flow[unit][pod] += moved
    for giver, pod in _givers(path):
        flow[giver][pod] -= moved
    left[path[-1][1]] -= moved
