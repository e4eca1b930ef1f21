"""Which machines give how many GPUs: all ways that machines of equal standing leave apart.

A way is a partition of the job's GPUs over machines. Machines in the same parts of the network's tree are one to every
price, so that of each partition the tightest machines are taken, and among equal ones those whose other jobs end about
when the others' do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice

from planner.many_jobs.placement.machines.occupied import Machine
from planner.many_jobs.placers.dividing import partitions
from profiles.records import dataclass

MOST_PARTITIONS = 240
"""Of each zone of the tree and number of machines so many partitions are looked at, those with large parts first."""
MORE_MACHINES = 2
"""Beyond the fewest machines that hold the job so many more are looked at."""

EndOf = Callable[[Machine], float | None]
"""When the last job on a machine ends, in seconds from now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Machines with the GPUs that each gives, the most first."""

    takes: tuple[tuple[Machine, int], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """GPUs by machine, the most first."""
        return tuple(count for _, count in self.takes)

    @property
    def opened(self) -> int:
        """Idle machines that it takes GPUs of."""
        return sum(machine.is_idle for machine, _ in self.takes)

    @property
    def fragments(self) -> int:
        """GPUs that it leaves free on its machines."""
        return sum(len(machine.free) - count for machine, count in self.takes)

    @property
    def key(self) -> tuple[object, ...]:
        """What its price depends on: where its machines are, and how many GPUs each gives of each of its islands."""
        return tuple(
            (machine.kind, machine.parts, tuple(Counter(slot.index // machine.island for slot in slots).items()))
            for machine, count in self.takes
            for slots in (machine.slots(count),)
        )


def choice_of(takes: Sequence[tuple[Machine, int]]) -> Choice:
    """Return a choice, the machines that give most first, of equal ones in the cluster's order."""
    return Choice(takes=tuple(sorted(takes, key=lambda take: (-take[1], take[0].node))))


def fewest_machines(machines: Sequence[Machine], devices: int) -> int | None:
    """Return on how many machines the job fits at least; None where they have too few free GPUs."""
    left = devices
    for number, free in enumerate(sorted((len(machine.free) for machine in machines), reverse=True), 1):
        left -= free
        if left <= 0:
            return number
    return None


def enumerate_choices(
    machines: Sequence[Machine],
    devices: int,
    end_of: EndOf,
    *,
    end_s: float | None = None,
    more: int = MORE_MACHINES,
) -> tuple[tuple[Choice, ...], bool]:
    """Return the ways to give a job GPUs of machines of one kind, and whether these are all that prices tell apart: on
    as few machines as whole ones would be where that is free, else on the fewest there are and up to so many `more`.
    `end_s` is when the job itself ends, where that is known.

    >>> enumerate_choices([], 4, lambda machine: None)
    ((), True)
    """
    choices: dict[object, Choice] = {}
    complete = True
    fewest = fewest_machines(machines, devices)
    if fewest is None:
        return (), True
    ideal = -(-devices // machines[0].size)
    last = ideal if fewest <= ideal else min(fewest + more, devices)
    for zone in _zones(machines):
        free = sorted((len(machine.free) for machine in zone if machine.free), reverse=True)
        for number in range(fewest, last + 1):
            ways = partitions(devices, free[:number]) if len(free) >= number else iter(())
            for parts in islice(ways, MOST_PARTITIONS):
                choice = seat_parts(parts, zone, end_of, end_s=end_s)
                choices.setdefault((choice.key, choice.opened, choice.fragments), choice)
            complete &= next(ways, None) is None
        complete &= fewest <= ideal or last >= min(devices, len(free))
    # Of a tree's parts only whole ones, and all together, are looked at.
    return tuple(choices.values()), complete and len({machine.parts for machine in machines}) == 1


def seat_parts(
    parts: Sequence[int], machines: Sequence[Machine], end_of: EndOf, *, end_s: float | None = None
) -> Choice:
    """Return each part on the tightest machine that holds it, of equal ones that whose other jobs end nearest to
    `end_s`, or where that is not known to the end of the first one's."""
    left, takes = list(machines), []
    for part in parts:
        fitting = [machine for machine in left if len(machine.free) >= part]
        tightest = min(len(machine.free) for machine in fitting)
        equal = [machine for machine in fitting if len(machine.free) == tightest]
        machine = min(equal, key=lambda other: (_apart_s(end_of(other), end_s), other.node))
        end_s = end_of(machine) if end_s is None else end_s
        left.remove(machine)
        takes.append((machine, part))
    return choice_of(takes)


def _apart_s(end_s: float | None, target_s: float | None) -> float:
    return 0.0 if target_s is None or end_s is None else abs(end_s - target_s)


def _zones(machines: Sequence[Machine]) -> list[list[Machine]]:
    """All machines, and those of each part of every level of the tree that prices tell apart."""
    zones: dict[tuple[int, ...], list[Machine]] = {}
    for machine in machines:
        for level in range(len(machine.parts)):
            zones.setdefault((level, *machine.parts[level:]), []).append(machine)
    return [list(machines), *zones.values()]
