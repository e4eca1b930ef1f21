"""Ways of connections that somebody told or found: they come before what a hash says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from estimator.network.links import Links
from estimator.network.wires import Integers
from profiles.errors import InputError
from profiles.routing import KnownPath, Routing


class KnownWays:
    """The ways that a cluster file tells, by the numbers of their NICs and vertices."""

    def __init__(self, links: Links, routing: Routing) -> None:
        self._links = links
        self._by_pair: defaultdict[tuple[int, int], list[KnownPath]] = defaultdict(list)
        if not routing.paths:
            return
        self._numbers = {name: number for number, name in enumerate(links.names)}
        for path in routing.paths:
            pair = (self._nic(path.source, path.source_nic), self._nic(path.destination, path.destination_nic))
            self._by_pair[pair].append(path)

    def _nic(self, host: str, nic: int) -> int:
        return int(self._links.nic_begins[self._numbers[host]]) + nic

    def taken(
        self, sources: Integers, destinations: Integers, ports: Integers
    ) -> tuple[list[tuple[int, Integers]], Integers]:
        """Return connections whose way is known, with its links, and whether each connection is one of them. A way with
        a cable that is down is none: what it says was before that."""
        found: list[tuple[int, Integers]] = []
        is_known = np.zeros(len(sources), dtype=bool)
        if not self._by_pair:
            return found, is_known
        for flow, (source, destination, port) in enumerate(
            zip(sources.tolist(), destinations.tolist(), ports.tolist(), strict=True)
        ):
            for path in self._by_pair.get((source, destination), ()):
                if any(first <= port <= last for first, last in path.ports):
                    way = self._way(source, destination, path, port)
                    if way is not None:
                        found.append((flow, way))
                        is_known[flow] = True
                        break
        return found, is_known

    def _way(self, source: int, destination: int, path: KnownPath, port: int) -> Integers | None:
        """The links of the way, of parallel cables one by the port; None where one of its links is down."""
        links, through = self._links, [self._numbers[name] for name in path.through]
        own = links.ports[links.port_begins[source] : links.port_begins[source + 1]]
        last = links.ports[links.port_begins[destination] : links.port_begins[destination + 1]] ^ 1
        steps = [
            [int(link) for link in own if links.ends[link, 1] == through[0]],
            *(links.between(first, second) for first, second in pairwise(through)),
            [int(link) for link in last if links.ends[link, 0] == through[-1]],
        ]
        self._check_cables(path, steps)
        up = [[link for link in step if links.bytes_per_s[link] > 0] for step in steps]
        if not all(up):
            return None
        return np.array([step[port % len(step)] for step in up], dtype=np.int64)

    def _check_cables(self, path: KnownPath, steps: Sequence[Sequence[int]]) -> None:
        """Raise InputError for a step of a way where there is no cable at all."""
        names = (path.source, *path.through, path.destination)
        for step, (first, second) in zip(steps, pairwise(names), strict=True):
            if not step:
                raise InputError(
                    where=f"way from {path.source} to {path.destination}",
                    key="through",
                    found=f"no cable from {first} to {second}",
                    expected="switches that are joined one after the other",
                )
