"""What `place` answers for a job on partly used machines."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from estimator.frontends.load import load_any_model
from estimator.pricing.training import WholeTraining, iteration_of, over_limits
from models_zoo.layers import TracedLayer
from planner.many_jobs.placement.machines.describing import Answer, describe_answer
from planner.many_jobs.placement.machines.later import first_wait_s, now_or_later
from planner.many_jobs.placement.machines.making_room import MadeRoom, make_room, moves_needed
from planner.many_jobs.placement.machines.occupied import Machine, Occupied, read_occupied
from planner.many_jobs.placement.machines.placing import (
    JobOnMachines,
    Kind,
    Placed,
    by_kind,
    job_on,
    other_rules,
    place_on,
    plan_whole,
)
from planner.many_jobs.placement.machines.shortage import nothing_fits
from planner.one_job.explicit.recording import record_plan
from planner.one_job.explicit.whole import prices_of, read_whole, train_by
from planner.one_job.planning.whole_training import train_plan, with_prices
from planner.one_job.search.spaces.request import SearchRequest, read_search
from planner.shared.inputs import open_existing, place_of
from planner.shared.options.choices import off_defaults_sentence
from planner.shared.options.place import PlaceOptions
from planner.shared.plan import Plan
from planner.shared.plan_file import save_plan
from profiles.cluster import Cluster
from profiles.errors import NothingFits
from profiles.records import dataclass, replace

OTHERS = (
    "local", "all_sites", "alpha", "affinity", "distance", "affinity_else", "max_spread", "comm", "links", "spares",
    "measure_affinity", "method",
)  # fmt: skip
"""Options that are asked of sites and pods: with one of them these place the job."""


@dataclass(frozen=True, kw_only=True)
class MachinesGround:
    """What a job is placed on: the machines by kind, with the search's request on all of them as if they were free."""

    state: Occupied
    request: SearchRequest
    kinds: Mapping[Kind, tuple[Machine, ...]]


def read_machines(options: PlaceOptions) -> MachinesGround | None:
    """Return the machines that the job of `options` is placed on GPU by GPU; None where it is placed by sites and pods:
    nobody said what is held, the cluster has several sites or too few devices of any type, the options ask something
    of sites and pods, or the job fits on whole machines and moves are not asked for.

    Raise InputError for wrong input.
    """
    said = set(options.changed())
    if options.plan is not None or (options.free is None and options.running is None) or said & set(OTHERS):
        return None
    with open_existing(options.store) as store:
        model = load_any_model(options.model, options.user_code)
        if any(isinstance(layer, TracedLayer) for layer in model.layers):
            return None
        base = place_of(options.cluster, model, options, store=store)
        if len(base.sites) > 1 or (options.free is None and not _has_names(base)):
            return None
        state = read_occupied(base, options)
        assert options.devices is not None, "without a plan the options have it"
        kinds = {
            kind: machines
            for kind, machines in by_kind(state.machines, options.types).items()
            if len(machines) * machines[0].size >= options.devices
        }
        if not kinds or (options.move is None and any(_fits_whole(ones, options.devices) for ones in kinds.values())):
            return None
        if options.reserve and all(options.devices % machines[0].size == 0 for machines in kinds.values()):
            return None  # Whole nodes: as sites and pods have them.
        # Rooms for one type at a time, none of them cut by what is free: ways choose that.
        request = read_search(replace(options, schedule=("1f1b",)), store=store, model=model, place=state.cluster)
    request = with_prices(request, prices_of(options))
    request = replace(request, assumptions=(*off_defaults_sentence(options), *request.assumptions, *state.notes))
    return MachinesGround(state=state, request=request, kinds=kinds)


def _has_names(cluster: Cluster) -> bool:
    return all(site.network.hosts for site in cluster.sites)


def _fits_whole(machines: Sequence[Machine], devices: int) -> bool:
    """Whether idle machines hold the job and none is cut: what is free is then told by whole machines alone."""
    idle = sum(machine.is_idle for machine in machines)
    return not devices % machines[0].size and devices <= idle * machines[0].size


def place_on_machines(options: PlaceOptions, ground: MachinesGround) -> dict[str, Any]:
    """Return the answer of `place`; write the plan where the options say.

    Raise NothingFits where too few GPUs of a kind are free, no plan fits on them, or a whole training goes beyond its
    limits, with the nearest that would do.
    """
    started = time.perf_counter()
    assert options.devices is not None, "without a plan the options have it"
    whole_training = read_whole(options)
    job = job_on(ground.request, options.devices)
    first_s = _first_start_s(ground, options)
    state = replace(ground.state, machines=ground.state.after(first_s))
    kinds = by_kind(state.machines, options.types)
    placed = [one for one in (_place(job, kinds[kind], state, whole_training) for kind in ground.kinds) if one]
    if not placed:
        raise nothing_fits(job, ground.state, ground.kinds)
    job, best, machines = min(placed, key=lambda one: one[1].seated.time_s)
    planned_s = time.perf_counter() - started
    plan = plan_of(ground.request, best)
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
        save_plan(plan_of(ground.request, written), options.output)
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
        raise NothingFits(f"{options.model} on {options.cluster}: placed, but {' and '.join(over)}", result=described)
    return described


def _first_start_s(ground: MachinesGround, options: PlaceOptions) -> float:
    """After how many seconds enough GPUs of a kind are free: 0, or where nodes are to be reserved later."""

    def enough(machines: Sequence[Machine]) -> bool:
        free = (sum(len(machine.free) for machine in ones) for ones in _kinds_of(machines, ground))
        return any(count >= (options.devices or 0) for count in free)

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


def plan_of(request: SearchRequest, placed: Placed) -> Plan:
    """Return the plan record of a placement."""
    seated = placed.seated
    said = (
        f"machines {' + '.join(map(str, seated.choice.shape))}: {placed.looked_at} ways and {len(placed.plans)} plans"
        f" were priced{', all that prices tell apart' if placed.complete else ''}"
    )
    plan = record_plan(
        seated.setup, seated.evaluation, reference=request.reference, assumptions=(*request.assumptions, said)
    )
    size = max(1, placed.looked_at * len(placed.plans))
    return replace(plan, provenance=replace(plan.provenance, search_space_size=size))
