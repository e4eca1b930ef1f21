"""What is placed on machines: a model whose plan is searched where it sits, or a plan that exists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Setup
from planner.many_jobs.placement.machines.choices import Choice
from planner.many_jobs.placement.machines.seating import Seats, ranks_of
from planner.many_jobs.placement.pods_plan import plan_for_pods
from planner.many_jobs.sites.tpa import on_devices, plan_across
from planner.many_jobs.sites.tpa_pipes import Priced
from planner.one_job.search.mixed.space import pricing_of
from planner.one_job.search.spaces.constraints import Constraints
from planner.one_job.search.spaces.request import SearchRequest
from planner.one_job.search.varied import with_constraints
from profiles.cluster import DeviceSlot
from profiles.records import dataclass, replace

FEW_PRICED = 8
"""Plans that are priced in a search on a way's GPUs."""


@dataclass(frozen=True, kw_only=True)
class JobOnMachines:
    """A job of so many devices: `find_plan` returns a plan on the GPUs of a way, `plans` are all that it may run by
    (empty: those that are found on the ways), `seats` prices plans on ways. `fewer` yields the same job on at most so
    many devices, the most first, each with the options that ask for it. `end_s` is when it ends, in seconds from now,
    where somebody said how long it trains."""

    reference: str
    assumptions: tuple[str, ...]
    devices: int
    seats: Seats
    find_plan: Callable[[Choice], Priced | None]
    fewer: Callable[[int], Iterable[tuple[str, JobOnMachines]]]
    plans: tuple[Setup, ...] = ()
    end_s: float | None = None


def job_on(request: SearchRequest, devices: int, seats: Seats | None = None) -> JobOnMachines:
    """Return a job whose plan is searched by `request`, which has all of the cluster as if it were free."""
    seats = seats or Seats(pricing_of(request.spaces))
    return JobOnMachines(
        reference=request.reference,
        assumptions=request.assumptions,
        devices=devices,
        seats=seats,
        find_plan=partial(_search, request),
        fewer=partial(_searched_on_fewer, request, seats),
    )


def job_of_plan(
    setup: Setup, pricing: Pricing, *, reference: str, assumptions: tuple[str, ...], seats: Seats | None = None
) -> JobOnMachines:
    """Return a job that runs by this plan, its degrees and stages as they are, wherever it sits."""
    seats = seats or Seats(pricing)
    job = partial(job_of_plan, pricing=pricing, reference=reference, assumptions=assumptions, seats=seats)
    return JobOnMachines(
        reference=reference,
        assumptions=assumptions,
        devices=ranks_of(setup),
        seats=seats,
        find_plan=partial(_seat_best, setup, seats),
        fewer=partial(_with_fewer_replicas, setup, job),
        plans=(setup,),
    )


def _search(request: SearchRequest, way: Choice) -> Priced | None:
    slots: Sequence[DeviceSlot] = [slot for machine, count in way.takes for slot in machine.slots(count)]
    on_way = on_devices(request, slots)
    in_pods = plan_for_pods(on_way, slots)
    across = plan_across(on_way, most=FEW_PRICED) if in_pods is None else in_pods
    return None if across is None else across.best


def _searched_on_fewer(request: SearchRequest, seats: Seats, most: int) -> Iterator[tuple[str, JobOnMachines]]:
    for devices in range(most, 0, -1):
        yield f"--devices {devices}", job_on(with_constraints(request, partial(_at_most, devices)), devices, seats)


def _at_most(devices: int, limits: Constraints) -> Constraints:
    return replace(limits, most={**limits.most, "devices": devices})


def _seat_best(setup: Setup, seats: Seats, way: Choice) -> Priced | None:
    seated = seats.seat(setup, way)
    if seated is None:
        return None
    best = seats.improve(setup, seated)
    return Priced(setup=best.setup, evaluation=best.evaluation)


def _with_fewer_replicas(
    setup: Setup, job: Callable[[Setup], JobOnMachines], most: int
) -> Iterator[tuple[str, JobOnMachines]]:
    """The plan with its stages and batch on fewer replicas; none where stages differ in their number, divide batches
    unevenly, or divide experts or state over some of them."""
    stages = setup.stages
    replicas = stages[0].dp
    if any(stage.dp != replicas or stage.shares or stage.ep > 1 or stage.shard for stage in stages):
        return
    for dp in range(replicas - 1, 0, -1):
        devices = ranks_of(setup) // replicas * dp
        if devices <= most and not setup.micro_batch % dp:
            fewer = tuple(replace(stage, dp=dp, slots=stage.slots[: len(stage.slots) // replicas * dp])
                          for stage in stages)  # fmt: skip
            yield f"the plan with dp={dp} ({devices} devices)", job(replace(setup, stages=fewer))
