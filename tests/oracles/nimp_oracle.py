"""NIMP (Titan, section III, eq. 1) without its bandwidth constraint: by HiGHS over how many devices each node gives,
and by trying every way. With it: `bench.machines.exact_nimp`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from estimator.communication.phases import bytes_across, collective_phases
from tests.oracles.rank_order_oracle import seatings


def least_nodes(free: Sequence[int], size: int, wanted: int) -> tuple[int, int]:
    """Return O1 and then O2: the fewest idle nodes, and with so many the fewest nodes."""
    nodes = len(free)
    # The counts, then whether each node is used.
    capacity = np.hstack([np.eye(nodes), -np.diag(free)])
    whole = np.concatenate([np.ones(nodes), np.zeros(nodes)])
    constraints = [LinearConstraint(capacity, ub=0), LinearConstraint(whole, wanted, wanted)]
    bounds = Bounds(0, np.concatenate([np.array(free), np.ones(nodes)]))
    idle = np.concatenate([np.zeros(nodes), np.array([count == size for count in free], dtype=float)])
    used = np.concatenate([np.zeros(nodes), np.ones(nodes)])
    first = milp(idle, constraints=constraints, bounds=bounds, integrality=np.ones(2 * nodes))
    opened = round(first.fun)
    constraints.append(LinearConstraint(idle, ub=opened))
    second = milp(used, constraints=constraints, bounds=bounds, integrality=np.ones(2 * nodes))
    return opened, round(second.fun)


def ways(free: Sequence[int], wanted: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to take so many devices, as counts by node."""
    if not free:
        if not wanted:
            yield ()
        return
    for count in range(min(free[0], wanted) + 1):
        yield from ((count, *rest) for rest in ways(free[1:], wanted - count))


def objectives(free: Sequence[int], size: int, counts: Sequence[int]) -> tuple[int, int, float]:
    """Return O1, O2 and the bytes between nodes, in the best order of the ranks, of halving and doubling."""
    given = [count for count in counts if count]
    phases = collective_phases("halving-doubling", "all_reduce", sum(given))
    across = min(bytes_across(phases, seats) for seats in seatings(given))
    idle = sum(left == size and count > 0 for left, count in zip(free, counts, strict=True))
    return idle, len(given), round(across, 9)
