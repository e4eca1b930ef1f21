"""Now on scattered GPUs, or later on fewer machines? The job placed anew on what is free at each coming end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from estimator.pricing.training import WholeTraining, iteration_of
from planner.many_jobs.placement.holding import Held, held_for
from planner.many_jobs.placement.machines.job import JobOnMachines
from planner.many_jobs.placement.machines.occupied import Machine, Occupied
from planner.many_jobs.placement.machines.placing import Placed, by_kind, place_on
from planner.many_jobs.placement.machines.seating import FEW_ORDERS, Seated
from planner.many_jobs.placement.waiting import Start, Waiting, best_start, faster_starts
from planner.one_job.explicit.whole import train_by
from planner.one_job.free_devices.coming_free import EQUAL_S
from planner.one_job.site_pods.placing import EQUAL_TIME
from profiles.records import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class LaterOnMachines:
    """Starts now and at coming ends, and how each sits."""

    waiting: Waiting
    seated: tuple[Seated, ...]


def now_or_later(
    job: JobOnMachines, state: Occupied, placed: Placed, whole: WholeTraining | None, *, first_s: float = 0.0
) -> LaterOnMachines | None:
    """Return the starts that are faster than all before them, by the plans that were tried for the first, which is
    after so long; None where nobody said which jobs run."""
    occupancy = state.occupancy
    if occupancy is None:
        return None
    kind = placed.seated.choice.takes[0][0].kind

    def seated_after(wait_s: float, orders: int | None) -> Seated:
        machines = by_kind(state.after(wait_s))[kind]
        later = place_on(job, machines, state, placed.whole, placed.plans, orders=orders)
        return placed.seated if later is None else later.seated

    def start_after(wait_s: float) -> Start:
        return _start(state, seated_after(wait_s, None), wait_s, whole)

    # Ends are compared by a few orders of the ranks each, and those that win are told with the best that is found.
    quick = faster_starts(occupancy, start_after(first_s), start_after)
    starts, seats = [_start(state, placed.seated, first_s, whole)], [placed.seated]
    for start in quick.starts[1:]:
        seated = seated_after(start.wait_s, FEW_ORDERS)
        if seated.time_s < seats[-1].time_s * (1 - EQUAL_TIME):
            starts.append(_start(state, seated, start.wait_s, whole))
            seats.append(seated)
    waiting = replace(quick, starts=tuple(starts), best=best_start(starts))
    return LaterOnMachines(waiting=waiting, seated=tuple(seats))


def first_wait_s(state: Occupied, fits: Callable[[Sequence[Machine]], bool]) -> float | None:
    """Return after how many seconds the machines are such as are asked for; None where they never are, or nobody said
    which jobs run."""
    waits = () if state.occupancy is None else state.occupancy.waits_s
    return next((wait_s for wait_s in waits if fits(state.after(wait_s))), None)


def held_machines(state: Occupied, later: LaterOnMachines, name: str) -> Held:
    """Return the machines of the best start as they are to be held for a job of this name, whole: who manages a cluster
    reserves nodes. Its GPUs are idle from when the last of the jobs on them ends."""
    best = later.waiting.best
    seated = later.seated[later.waiting.starts.index(best)]
    free_s: dict[str, float] = {}
    for machine in state.machines:
        taken = {slot.index for slot in seated.slots if (slot.site, slot.node) == (machine.site, machine.node)}
        ends = [state.end_s(job) for job, gpus in machine.jobs.items() if taken & set(gpus)]
        free_s[machine.host] = max(ends, default=0.0)
    held = held_for(later.waiting, best, name)
    nodes = tuple(replace(node, free_s=min(free_s[node.host], best.wait_s)) for node in held.nodes)
    return replace(held, nodes=nodes)


def _start(state: Occupied, seated: Seated, wait_s: float, whole: WholeTraining | None) -> Start:
    occupancy = state.occupancy
    assert occupancy is not None, "somebody said which jobs run"
    used = {(slot.site, slot.node, slot.index) for slot in seated.slots}
    before = {
        job
        for machine in state.machines
        for job, gpus in machine.jobs.items()
        if any((machine.site, machine.node, index) in used for index in gpus)
    }
    chance = 1.0
    for job in sorted(before):
        chance *= occupancy.endings[job].chance_by(occupancy.now_s + wait_s + EQUAL_S)
    iteration = iteration_of(seated.setup, seated.evaluation)
    return Start(
        wait_s=wait_s,
        jobs=occupancy.ending_at(wait_s) if wait_s else (),
        free_devices=sum(len(machine.free) for machine in state.after(wait_s)),
        setup=seated.setup,
        evaluation=seated.evaluation,
        in_pods=None,
        training=None if whole is None else train_by(whole, iteration, model=seated.setup.model.name),
        chance_free=chance,
    )
