"""Which jobs to move so that another fits whole, by trying every set of them: shares no line with the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from planner.many_jobs.placement.machines.occupied import Machine


def brute_moves(
    machines: Sequence[Machine], devices: int, cost: Mapping[str, float], most: int
) -> tuple[float, int] | None:
    """Return the fewest device-hours that are lost, and by how many jobs; None where no set makes room."""
    best = None
    for number in range(most + 1):
        for jobs in combinations(sorted(cost), number):
            left = [machine.without(jobs) for machine in machines]
            idle = sum(len(machine.free) == machine.size for machine in left)
            whole, rest = divmod(devices, machines[0].size)
            beside = any(rest <= len(machine.free) < machine.size for machine in left)
            if idle > whole or (idle == whole and (not rest or beside)):
                key = (sum(cost[job] for job in jobs), number)
                best = key if best is None else min(best, key)
    return best
