"""Now on scattered GPUs, or later on fewer machines? The job placed anew on what is free at each coming end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from estimator.pricing.training import WholeTraining, iteration_of
from planner.many_jobs.placement.machines.occupied import Machine, Occupied
from planner.many_jobs.placement.machines.placing import JobOnMachines, Placed, by_kind, place_on
from planner.many_jobs.placement.machines.seating import Seated
from planner.many_jobs.placement.waiting import Start, Waiting, faster_starts
from planner.one_job.explicit.whole import train_by
from planner.one_job.free_devices.coming_free import EQUAL_S
from profiles.records import dataclass


@dataclass(frozen=True, kw_only=True)
class LaterOnMachines:
    """Starts now and at coming ends, and how each sits."""

    waiting: Waiting
    seated: tuple[Seated, ...]


def now_or_later(
    job: JobOnMachines, state: Occupied, placed: Placed, whole: WholeTraining | None
) -> LaterOnMachines | None:
    """Return the starts that are faster than all before them, by the plans that were tried now; None where nobody said
    which jobs run."""
    occupancy = state.occupancy
    if occupancy is None:
        return None
    seats: dict[float, Seated] = {0.0: placed.seated}
    first = _start(state, placed.seated, 0.0, whole)

    def start_after(wait_s: float) -> Start:
        kind = placed.seated.choice.takes[0][0].kind
        later = place_on(job, by_kind(state.after(wait_s))[kind], state, placed.whole, placed.plans)
        seats[wait_s] = placed.seated if later is None else later.seated
        return _start(state, seats[wait_s], wait_s, whole)

    waiting = faster_starts(occupancy, first, start_after)
    return LaterOnMachines(waiting=waiting, seated=tuple(seats[start.wait_s] for start in waiting.starts))


def first_wait_s(state: Occupied, fits: Callable[[Sequence[Machine]], bool]) -> float | None:
    """Return after how many seconds the machines are such as are asked for; None where they never are, or nobody said
    which jobs run."""
    waits = () if state.occupancy is None else state.occupancy.waits_s
    return next((wait_s for wait_s in waits if fits(state.after(wait_s))), None)


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
