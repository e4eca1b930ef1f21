"""Which running jobs to move, at most so many, that a job fits whole: those that lose fewest device-hours, exactly.

A machine comes free when all jobs on it go, so that only the sets of jobs on one machine, and where the job has a rest
the sets that make room for it, count. Sets that share jobs grow together; sets that share none add what they free and
what they cost. At most three jobs move: then any two of such groups that share no job are one group and single jobs, of
which the three cheapest that free as much suffice.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from planner.many_jobs.placement.machines.occupied import Machine
from planner.shared.options.machines import MOST_MOVED
from profiles.records import dataclass

Jobs = frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Jobs that move, and the device-hours that are lost with it."""

    jobs: tuple[str, ...]
    lost_device_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Jobs that go together: the machines that then come free, how many of these had room for the rest before, and
    whether one that does not come free then has."""

    jobs: Jobs
    machines: int
    rooms: int
    rest: bool
    cost: float


def cheapest_moves(
    machines: Sequence[Machine], devices: int, cost: Mapping[str, float], most: int = MOST_MOVED
) -> Moves | None:
    """Return the jobs to move, `most` or fewer, after which a job of so many devices fits on whole machines of these
    and, with what is left over, on one more; None where no such moves make room. `cost` has the device-hours that each
    movable job loses, the others stay. Of equal moves those of fewest jobs, the first by name.

    Raise ValueError for more than three jobs.
    """
    if not 0 <= most <= MOST_MOVED:
        raise ValueError(f"{most} jobs to move: exact for 0 to {MOST_MOVED}")
    size = machines[0].size
    whole, rest = divmod(devices, size)
    idle = sum(machine.is_idle for machine in machines)
    rooms = sum(rest <= len(machine.free) < size for machine in machines) if rest else 1
    lacking = whole - idle

    def fits(together: Sequence[_Group]) -> bool:
        freed = sum(group.machines for group in together)
        has_rest = rooms > sum(group.rooms for group in together) or any(group.rest for group in together)
        return freed >= lacking + (not has_rest)

    if fits(()):
        return Moves(jobs=(), lost_device_hours=0.0)
    # With more rooms for the rest than machines are lacking one is left whatever comes free.
    groups = _cheapest_of_class(
        _groups(machines, 0 if rooms > max(0, lacking) else rest, cost, most), max(0, lacking) + 1
    )
    best: tuple[float, int, tuple[str, ...]] | None = None
    for together in _combinations(groups, most):
        if not fits(together):
            continue
        jobs = tuple(sorted(job for group in together for job in group.jobs))
        key = (sum(group.cost for group in together), len(jobs), jobs)
        best = key if best is None or key < best else best
    return None if best is None else Moves(jobs=best[2], lost_device_hours=best[0])


def _groups(machines: Sequence[Machine], rest: int, cost: Mapping[str, float], most: int) -> Iterator[_Group]:
    """Every set of at most `most` jobs that sets of jobs in each other's way grow to, with what it frees."""
    emptying: Counter[Jobs] = Counter()
    with_room: Counter[Jobs] = Counter()
    making_rest: defaultdict[Jobs, list[Jobs | None]] = defaultdict(list)
    for machine in machines:
        if machine.barred or not machine.jobs:
            continue
        on_it = frozenset(machine.jobs) if not machine.held else None
        if on_it is not None and len(on_it) <= most and all(job in cost for job in on_it):
            emptying[on_it] += 1
            with_room[on_it] += 0 < rest <= len(machine.free)
        for jobs in _room_for_rest(machine, rest, cost, most) if len(machine.free) < rest else ():
            making_rest[jobs].append(on_it)
    for jobs in _grown({*emptying, *making_rest}, most):
        parts = [frozenset(some) for size in range(1, len(jobs) + 1) for some in combinations(sorted(jobs), size)]
        yield _Group(
            jobs=jobs,
            machines=sum(emptying[part] for part in parts if part in emptying),
            rooms=sum(with_room[part] for part in parts if part in emptying),
            # A machine that comes free as a whole is counted as that.
            rest=any(on_it is None or not on_it <= jobs for part in parts for on_it in making_rest.get(part, ())),
            cost=sum(cost[job] for job in sorted(jobs)),
        )


def _room_for_rest(machine: Machine, rest: int, cost: Mapping[str, float], most: int) -> Iterator[Jobs]:
    """The smallest sets of jobs on a machine without which it has so many GPUs free."""
    movable = sorted(job for job in machine.jobs if job in cost)
    made: list[Jobs] = []
    for size in range(1, min(most, len(movable)) + 1):
        for some in combinations(movable, size):
            jobs = frozenset(some)
            freed = len(machine.free) + sum(len(machine.jobs[job]) for job in some)
            if freed >= rest and not any(smaller <= jobs for smaller in made):
                made.append(jobs)
                yield jobs


def _grown(sets: set[Jobs], most: int) -> set[Jobs]:
    """The sets, and the unions of those that share jobs, as long as these are not too large."""
    with_job: defaultdict[str, list[Jobs]] = defaultdict(list)
    for jobs in sets:
        for job in jobs:
            with_job[job].append(jobs)
    grown, last = set(sets), set(sets)
    while last:
        last = {
            union
            for jobs in last
            if len(jobs) < most
            for job in jobs
            for other in with_job[job]
            for union in (jobs | other,)
            if len(union) <= most and union not in grown
        }
        grown |= last
    return grown


def _cheapest_of_class(groups: Iterator[_Group], enough: int) -> list[_Group]:
    """Of groups of as many jobs that free as much, `enough` machines or more being one, the cheapest: of single jobs,
    which stand beside others, three; of two jobs also the cheapest without each of these."""
    classes: defaultdict[tuple[int, int, int, bool], list[_Group]] = defaultdict(list)
    for group in groups:
        classes[len(group.jobs), min(group.machines, enough), group.rooms, group.rest].append(group)
    kept: list[_Group] = []
    for (jobs, *_), members in sorted(classes.items()):
        members.sort(key=lambda group: (group.cost, tuple(sorted(group.jobs))))
        kept += members[: MOST_MOVED if jobs == 1 else 1]
        for job in sorted(members[0].jobs) if jobs == 2 else ():
            kept += [next((group for group in members if job not in group.jobs), members[0])]
    return kept


def _combinations(groups: Sequence[_Group], most: int) -> Iterator[tuple[_Group, ...]]:
    """Groups that share no job, of at most `most` jobs together: single jobs, and one of several with single ones."""
    singles = [group for group in groups if len(group.jobs) == 1]
    for number in range(1, most + 1):
        yield from combinations(singles, number)
    for group in groups:
        if len(group.jobs) > 1:
            others = [single for single in singles if not single.jobs & group.jobs]
            for number in range(most - len(group.jobs) + 1):
                for beside in combinations(others, number):
                    yield (group, *beside)
