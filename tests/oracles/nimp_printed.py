"""Titan's algorithms 1, 2 and 3 and its set function H, line by line as printed (sections III and IV): to show what
they do, never to place anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random

from estimator.communication.phases import Phase

Workers = frozenset[int]


def reduction(chosen: Sequence[Workers], workers: Workers) -> int:
    """H of eq. 4: the sets that are not empty, and whether workers are left, less one."""
    covered = frozenset[int]().union(*chosen)
    return sum(bool(some) for some in chosen) + bool(workers - covered) - bool(workers)


def most_used(machines: int, workers: int) -> int:
    """C_max of section IV-A."""
    return max(machines, workers)


def feasible_workers(
    machine: int,
    unplaced: Collection[int],
    seats: Mapping[int, int],
    phases: Sequence[Phase],
    existing: Callable[[int, int], float],
    bandwidth: Callable[[int, int], float],
) -> tuple[Workers, int]:
    """Algorithm 1: A(s), and how often line 9 is asked. `seats` has the machine of each worker that is placed."""
    feasible: set[int] = set()
    asked = 0
    for worker in unplaced:
        for other, there in seats.items():
            for phase in phases:
                asked += 1
                sent = sum(size for a, b, size in phase.flows if {a, b} == {worker, other})
                if sent + existing(machine, there) <= bandwidth(machine, there):
                    feasible.add(worker)
    return frozenset(feasible), asked


def merge(machines: Sequence[int], idle: Collection[int], workers: Workers, rng: Random) -> list[Workers]:
    """Algorithm 2 on a set of machines, without its line 16, which changes nothing where bandwidth is ample. N* is set
    nowhere, so that it is empty at first."""
    at_first: dict[int, set[int]] = {machine: set() for machine in machines}
    for worker in sorted(workers):
        at_first[rng.choice(list(machines))].add(worker)
    chosen: list[Workers] = []
    best: Workers = frozenset()
    while len(chosen) <= len(machines) - 1:
        highest = 0
        for machine in idle:
            for worker in sorted(at_first.get(machine, set()) - frozenset[int]().union(*chosen)):
                value = reduction([*chosen, frozenset((worker,))], workers)
                if value > highest:
                    highest, best = value, best | {worker}
        chosen.append(best)
    chosen.append(workers - frozenset[int]().union(*chosen))
    return chosen


def place(free: Sequence[int], size: int, workers: Workers, rng: Random) -> list[Workers]:
    """Algorithm 3: the sets of line 8, in the order in which they were chosen."""
    idle = [machine for machine, count in enumerate(free) if count == size]
    used = [machine for machine, some in zip(idle, merge(idle, idle, workers, rng), strict=False) if some]
    beside = [machine for machine, count in enumerate(free) if 0 < count < size]
    return merge([*beside, *used], idle, workers, rng)


def allowed_by_the_ratio(machines: int, needed: int) -> int:
    """Return up to how many machines in use 1 - 1/e of the machines that could be left free still is."""
    return math.floor(machines - (1 - 1 / math.e) * (machines - needed))
