"""The best placement of a job on partly used machines, what the same job takes on whole ones, and other ways.

Plans are searched on whole machines (as if they were free) and on the GPUs of the ways that look best; each plan is
tried on every way. On one machine, or as few as whole ones would be, where that is free; else where an iteration takes
least; of equal times the way that opens fewest idle machines and leaves fewest GPUs in pieces.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from estimator.pricing.recipe import Setup
from planner.many_jobs.placement.machines.choices import (
    MORE_MACHINES,
    Choice,
    choice_of,
    enumerate_choices,
    fewest_machines,
)
from planner.many_jobs.placement.machines.job import JobOnMachines
from planner.many_jobs.placement.machines.occupied import Machine, Occupied
from planner.many_jobs.placement.machines.rules import RULES, choose_by
from planner.many_jobs.placement.machines.seating import FEW_ORDERS, MOST_ORDERS, Seated, ranks_of, reseat
from planner.many_jobs.sites.tpa_pipes import Priced
from profiles.records import dataclass

EQUAL_TIME = 5e-3
"""Times nearer to each other than this share are as good."""
MOST_SEARCHED = 2
"""On so many ways the plan is searched anew, those that look best by the plans that there are."""
MOST_IMPROVED = 2
"""Of so many ways the ranks are exchanged, those that look best."""
FEW_WAYS = 16
"""So many ways are priced where coming ends are compared."""

Kind = tuple[str, str, int]


@dataclass(frozen=True, kw_only=True)
class Whole:
    """The job on whole machines of one kind, as if they were free."""

    best: Priced
    machines: int

    @property
    def time_s(self) -> float:
        """Seconds of an iteration."""
        return self.best.time_s


@dataclass(frozen=True, kw_only=True)
class OtherWay:
    """What a known rule chooses, and its plan (None: none of those that there are fits there)."""

    name: str
    choice: Choice
    seated: Seated | None


@dataclass(frozen=True, kw_only=True)
class Placed:
    """The best placement, what whole machines would take (None: the cluster has too few, or no plan fits), and the
    `plans` that were tried everywhere. `looked_at` ways were priced, which are `complete` where nothing that prices
    tell apart was left out."""

    seated: Seated
    whole: Whole | None
    plans: tuple[Setup, ...]
    looked_at: int
    complete: bool


def by_kind(machines: Sequence[Machine], types: Sequence[str] = ()) -> Mapping[Kind, tuple[Machine, ...]]:
    """Return machines of one site, device type and size together, of these device types (empty: of any)."""
    kinds: defaultdict[Kind, list[Machine]] = defaultdict(list)
    for machine in machines:
        if not types or machine.device in types:
            kinds[machine.kind].append(machine)
    return {kind: tuple(members) for kind, members in kinds.items()}


def plan_whole(job: JobOnMachines, machines: Sequence[Machine]) -> Whole | None:
    """Return the plan on as few whole machines of these, which are of one kind, as hold the job, as near as can be;
    None where there are too few, or no plan fits."""
    size = machines[0].size
    number = -(-job.devices // size)
    if len(machines) < number:
        return None
    left, takes = job.devices, []
    for machine in _nearest(machines, number):
        takes.append((machine.idle(), min(left, size)))
        left -= size
    best = job.find_plan(choice_of(takes))
    return None if best is None else Whole(best=best, machines=number)


def _nearest(machines: Sequence[Machine], number: int) -> list[Machine]:
    """So many machines of the smallest part of the tree that has them, the first such."""
    depth = len(machines[0].parts)
    for level in range(depth):
        parts: defaultdict[tuple[int, ...], list[Machine]] = defaultdict(list)
        for machine in machines:
            parts[machine.parts[level:]].append(machine)
        enough = [members for members in parts.values() if len(members) >= number]
        if enough:
            return enough[0][:number]
    return list(machines[:number])


def place_on(
    job: JobOnMachines,
    machines: Sequence[Machine],
    state: Occupied,
    whole: Whole | None,
    plans: Sequence[Setup] = (),
    *,
    orders: int | None = MOST_ORDERS,
) -> Placed | None:
    """Return the best placement of a job on free GPUs of machines of one kind, by `plans` (empty: the job's own) and
    that on `whole`, and where neither has any by plans searched on the ways that look best; None where no plan fits, or
    too few are free. Of the ways that look best so many `orders` of the ranks are priced; None: only a few, of a few
    ways on the fewest machines."""
    plans = plans or job.plans
    more = 0 if orders is None else MORE_MACHINES
    ways, complete = enumerate_choices(machines, job.devices, state.comes_free_s, end_s=job.end_s, more=more)
    if orders is None:
        ways = ways[:FEW_WAYS]
    if not ways:
        return None
    tried = [*plans] if plans else [*_whole_plans(whole)]
    if not plans:
        tried += _plans_on(job, [ways[0]], tried)
    seated = _seat_all(job, tried, ways)
    if not plans and seated:
        near = [one.choice for _, one in seated if one.choice is not ways[0]][: MOST_SEARCHED - 1]
        others = _plans_on(job, near, tried)
        if others:
            tried += others
            seated = _seat_all(job, tried, ways)
    if not seated:
        return None
    best = seated[0][1]
    if orders is not None:
        best = _best([job.seats.improve(plan, one, most=orders) for plan, one in seated[:MOST_IMPROVED]])
    return Placed(seated=best, whole=whole, plans=tuple(tried), looked_at=len(ways), complete=complete)


def _whole_plans(whole: Whole | None) -> Iterator[Setup]:
    if whole is not None:
        yield whole.best.setup


def _plans_on(job: JobOnMachines, ways: Sequence[Choice], known: Sequence[Setup]) -> list[Setup]:
    """The plans that a search finds on each way, but for those that differ from one that is known in places alone."""
    plans: list[Setup] = []
    for way in ways:
        best = job.find_plan(way)
        if best is None:
            continue
        setup = best.setup
        stands = [slot for stage in setup.stages for slot in stage.slots]
        if all(
            ranks_of(other) != len(stands) or reseat(other, stands, setup.cluster) != setup
            for other in (*known, *plans)
        ):
            plans.append(setup)
    return plans


def _seat_all(job: JobOnMachines, plans: Sequence[Setup], ways: Sequence[Choice]) -> list[tuple[Setup, Seated]]:
    """Each way with the plan that is fastest there, and how it sits, in the order of choosing."""
    seated = []
    for way in ways:
        tried = [(plan, one) for plan in plans for one in [job.seats.seat(plan, way)] if one is not None]
        if tried:
            seated.append(min(tried, key=lambda pair: pair[1].time_s))
    least_s = min((one.time_s for _, one in seated), default=0.0)
    return sorted(seated, key=lambda pair: _key(pair[1], least_s))


def _best(seated: Sequence[Seated]) -> Seated:
    least_s = min(one.time_s for one in seated)
    return min(seated, key=lambda one: _key(one, least_s))


def _key(seated: Seated, least_s: float) -> tuple[bool, float, int, int, float]:
    """Near the least time: what it leaves behind; else the time."""
    near = seated.time_s <= least_s * (1 + EQUAL_TIME)
    choice = seated.choice
    return not near, 0.0 if near else seated.time_s, choice.opened, choice.fragments, seated.time_s


def other_rules(
    job: JobOnMachines, machines: Sequence[Machine], state: Occupied, placed: Placed
) -> tuple[OtherWay, ...]:
    """Return what each of the simulator's rules would choose, with the plan of those that were tried that is fastest
    there, its ranks in the best order that is found."""
    if fewest_machines(machines, job.devices) is None:
        return ()
    ways = []
    by_key: dict[object, Seated | None] = {placed.seated.choice.key: placed.seated}
    for name in RULES:
        choice = choose_by(name, machines, job.devices, state.comes_free_s, model=job.reference, end_s=job.end_s)
        if choice is None:
            continue
        if choice.key not in by_key:
            seated = _seat_all(job, placed.plans, [choice])
            by_key[choice.key] = job.seats.improve(*seated[0], most=FEW_ORDERS) if seated else None
        ways.append(OtherWay(name=name, choice=choice, seated=by_key[choice.key]))
    return tuple(ways)
