"""What `place` answers for a job on partly used machines."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from estimator.pricing.training import WholeTraining, iteration_of, over_limits
from planner.many_jobs.placement.machines.describing import Answer, describe_answer
from planner.many_jobs.placement.machines.ground import MachinesGround, read_machines
from planner.many_jobs.placement.machines.job import JobOnMachines
from planner.many_jobs.placement.machines.later import first_wait_s, now_or_later
from planner.many_jobs.placement.machines.making_room import MadeRoom, make_room, moves_needed
from planner.many_jobs.placement.machines.occupied import Machine, Occupied
from planner.many_jobs.placement.machines.placing import Placed, by_kind, other_rules, place_on, plan_whole
from planner.many_jobs.placement.machines.shortage import nothing_fits
from planner.one_job.explicit.recording import record_plan
from planner.one_job.explicit.whole import read_whole, train_by
from planner.one_job.planning.whole_training import train_plan
from planner.shared.inputs import open_existing
from planner.shared.options.place import PlaceOptions
from planner.shared.plan import Plan
from planner.shared.plan_file import save_plan
from profiles.errors import NothingFits
from profiles.records import replace


def place_on_machines(options: PlaceOptions) -> dict[str, Any] | None:
    """Return the answer of `place`, and write the plan where the options say; None where sites and pods place the job
    (`planner.many_jobs.placement.machines.ground.read_machines`).

    Raise InputError for wrong input, NothingFits where too few GPUs of a kind are free, no plan fits on them, or a
    whole training goes beyond its limits, with the nearest that would do.
    """
    with open_existing(options.store) as store:
        ground = read_machines(options, store)
        return None if ground is None else _answer(options, ground)


def _answer(options: PlaceOptions, ground: MachinesGround) -> dict[str, Any]:
    started = time.perf_counter()
    job, whole_training = ground.job, read_whole(options)
    first_s = _first_start_s(ground, options)
    state = replace(ground.state, machines=ground.state.after(first_s))
    kinds = by_kind(state.machines, options.types)
    placed = [one for one in (_place(job, kinds[kind], state, whole_training) for kind in ground.kinds) if one]
    if not placed:
        raise nothing_fits(job, ground.state, ground.kinds, move_s=options.move_time)
    job, best, machines = min(placed, key=lambda one: one[1].seated.time_s)
    planned_s = time.perf_counter() - started
    plan = plan_of(job, best)
    training = None if whole_training is None else train_plan(whole_training, plan, state.cluster)
    rooms: tuple[MadeRoom, ...] = ()
    needed = None
    if options.move is not None:
        rooms = make_room(job, machines, state, best, most=options.move, move_s=options.move_time)
        if not rooms:
            needed = moves_needed(job, machines, state, more_than=options.move, move_s=options.move_time)
    later = now_or_later(job, ground.state, best, whole_training, first_s=first_s)
    answer = Answer(
        options=options,
        state=state,
        machines=machines,
        placed=best,
        plan=plan,
        training=training,
        others=other_rules(job, machines, state, best),
        later=later,
        now=ground.state,
        rooms=rooms,
        moves_needed=needed,
    )
    if options.output is not None:
        written = best
        if options.reserve and later is not None:
            written = replace(best, seated=later.seated[later.waiting.starts.index(later.waiting.best)])
        save_plan(plan_of(job, written), options.output)
    timing = {
        "read_s": None,
        "choose_s": planned_s,
        "plan_s": None,
        "pods_s": None,
        "later_s": time.perf_counter() - started - planned_s,
    }
    described = describe_answer(answer) | {"timing": timing}
    over = () if whole_training is None or training is None else over_limits(whole_training, training)
    if over:
        raise NothingFits(f"{ground.text} on {state.cluster.text}: placed, but {' and '.join(over)}", result=described)
    return described


def _first_start_s(ground: MachinesGround, options: PlaceOptions) -> float:
    """After how many seconds enough GPUs of a kind are free: 0, or where nodes are to be reserved later."""

    def enough(machines: Sequence[Machine]) -> bool:
        free = (sum(len(machine.free) for machine in ones) for ones in _kinds_of(machines, ground))
        return any(count >= ground.job.devices for count in free)

    if not options.reserve or enough(ground.state.machines):
        return 0.0
    return first_wait_s(ground.state, enough) or 0.0


def _kinds_of(machines: Sequence[Machine], ground: MachinesGround) -> Iterator[Sequence[Machine]]:
    by = by_kind(machines)
    return (by[kind] for kind in ground.kinds)


def _place(
    job: JobOnMachines, machines: tuple[Machine, ...], state: Occupied, whole: WholeTraining | None
) -> tuple[JobOnMachines, Placed, tuple[Machine, ...]] | None:
    """The job on machines of one kind, placed by when it would end on whole ones, where that is said."""
    if sum(len(machine.free) for machine in machines) < job.devices:
        return None
    on_whole = plan_whole(job, machines)
    placed = place_on(job, machines, state, on_whole)
    if placed is None or whole is None:
        return None if placed is None else (job, placed, machines)
    iteration = iteration_of(placed.seated.setup, placed.seated.evaluation)
    timed = replace(job, end_s=train_by(whole, iteration, model=placed.seated.setup.model.name).seconds)
    again = place_on(timed, machines, state, on_whole, placed.plans)
    return timed, again or placed, machines


def plan_of(job: JobOnMachines, placed: Placed) -> Plan:
    """Return the plan record of a placement."""
    seated = placed.seated
    said = (
        f"machines {' + '.join(map(str, seated.choice.shape))}: {placed.looked_at} ways and {len(placed.plans)}"
        f" plan{'s' * (len(placed.plans) > 1)} were priced{', all that prices tell apart' if placed.complete else ''}"
    )
    plan = record_plan(seated.setup, seated.evaluation, reference=job.reference, assumptions=(*job.assumptions, said))
    size = max(1, placed.looked_at * len(placed.plans))
    return replace(plan, provenance=replace(plan.provenance, search_space_size=size))
