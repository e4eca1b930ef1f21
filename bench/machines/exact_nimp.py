"""NIMP (Titan, section III, eq. 1) with its bandwidth constraint, exactly: HiGHS over which rank sits where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_array

from planner.many_jobs.placers.records import Available
from planner.many_jobs.placers.within_bandwidth import Reading, Traffic


def within_bandwidth(
    free: Sequence[int], size: int, ranks: int, traffic: Traffic, available: Available, reading: Reading
) -> tuple[int, int, float] | None:
    """Return O1, then O2, then the least bytes between nodes, with each pair's or link's traffic within what is there
    in every phase; None where no way is. A way is x[rank, node], y[node]; a flow leaves a node, or a part, where its
    sender sits there and its receiver does not."""
    places = _Places(len(free), ranks)
    rows: list[tuple[dict[int, float], float, float]] = [
        ({places.x(rank, node): 1.0 for node in range(len(free))}, 1.0, 1.0) for rank in range(ranks)
    ]
    for node, count in enumerate(free):
        rows.append(({places.x(rank, node): 1.0 for rank in range(ranks)}, 0.0, count))
        rows += [({places.x(rank, node): 1.0, places.y(node): -1.0}, -1.0, 0.0) for rank in range(ranks)]
    groups: dict[object, list[int]] = {("node", node): [node] for node in range(len(free))}
    rates: dict[object, float] = {("node", node): available.nics_bytes_per_s[node] for node in range(len(free))}
    for level, (part_of, there) in enumerate(available.uplinks):
        for part, rate in enumerate(there):
            groups["part", level, part] = [node for node, own in enumerate(part_of) if own == part]
            rates["part", level, part] = rate
    for flows in traffic.rates:
        if reading == "pairs":
            rows += _pair_rows(places, flows, free, groups, rates)
            continue
        for name, members in groups.items():
            for way in (0, 1):
                sums: dict[int, float] = {}
                for a, b, rate in flows:
                    leaves = places.leaves((a, b)[way], (b, a)[way], name, members, rows)
                    sums[leaves] = sums.get(leaves, 0.0) + rate
                rows.append((sums, 0.0, rates[name]))
    across: dict[int, float] = {}
    for phase in traffic.phases:
        for a, b, sent in phase.flows:
            for node in range(len(free)):
                leaves = places.leaves(a, b, ("node", node), [node], rows)
                across[leaves] = across.get(leaves, 0.0) + sent * phase.repeats
    idle = {places.y(node): 1.0 for node, count in enumerate(free) if count == size}
    used = {places.y(node): 1.0 for node in range(len(free))}
    values: list[float] = []
    for objective in (idle, used, across):
        value = places.least(objective, rows)
        if value is None:
            return None
        rows.append((objective, 0.0, value + 1e-6))
        values.append(value)
    return round(values[0]), round(values[1]), values[2]


def _pair_rows(
    places: _Places,
    flows: Sequence[tuple[int, int, float]],
    free: Sequence[int],
    groups: Mapping[object, Sequence[int]],
    rates: Mapping[object, float],
) -> Iterator[tuple[dict[int, float], float, float]]:
    """What is sent from one node to another is within what is there on the way."""
    for here, there in permutations(range(len(free)), 2):
        on_way = [rates[name] for name, members in groups.items() if (here in members) != (there in members)]
        sums: dict[int, float] = {}
        for a, b, rate in flows:
            both = places.new()
            yield {both: 1.0, places.x(a, here): -1.0, places.x(b, there): -1.0}, -1.0, np.inf
            sums[both] = sums.get(both, 0.0) + rate
        yield sums, 0.0, min(on_way)


class _Places:
    """The variables: x, y, and for flows that leave a group of nodes one each."""

    def __init__(self, nodes: int, ranks: int) -> None:
        self.nodes, self.whole = nodes, nodes * (ranks + 1)
        self.count = self.whole
        self.known: dict[object, int] = {}

    def x(self, rank: int, node: int) -> int:
        return rank * self.nodes + node

    def y(self, node: int) -> int:
        return self.whole - self.nodes + node

    def new(self) -> int:
        self.count += 1
        return self.count - 1

    def leaves(self, a: int, b: int, name: object, members: Sequence[int], rows: list[Any]) -> int:
        """1 where rank a sits in the group and b does not: at least x_a - x_b, which is all that counts above."""
        if (a, b, name) not in self.known:
            variable = self.known[a, b, name] = self.new()
            inside = {self.x(a, node): -1.0 for node in members} | {self.x(b, node): 1.0 for node in members}
            rows.append((inside | {variable: 1.0}, 0.0, np.inf))
        return self.known[a, b, name]

    def least(self, objective: Mapping[int, float], rows: Sequence[Any]) -> float | None:
        """The least value; None where there is none."""
        matrix = lil_array((len(rows), self.count))
        for number, (terms, _, _) in enumerate(rows):
            for variable, factor in terms.items():
                matrix[number, variable] = factor
        low, high = np.array([row[1] for row in rows]), np.array([row[2] for row in rows])
        cost = np.zeros(self.count)
        for variable, factor in objective.items():
            cost[variable] = factor
        integral = np.arange(self.count) < self.whole
        constraint = LinearConstraint(matrix.tocsr(), low, high * (1 + 1e-9))
        found = milp(cost, constraints=constraint, bounds=Bounds(0, 1), integrality=integral.astype(float))
        return float(found.fun) if found.status == 0 else None
