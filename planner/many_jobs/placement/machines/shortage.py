"""What is said where a job does not fit on the GPUs that are free: the nearest that does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice

from planner.many_jobs.placement.machines.job import JobOnMachines
from planner.many_jobs.placement.machines.later import first_wait_s
from planner.many_jobs.placement.machines.making_room import move_costs
from planner.many_jobs.placement.machines.occupied import Machine, Occupied
from planner.many_jobs.placement.machines.placing import Kind, by_kind, place_on
from planner.one_job.free_devices.nodes import brief
from profiles.errors import NothingFits

MOST_TRIED = 4
"""Of fewer devices so many numbers are tried, the largest first."""


def nothing_fits(
    job: JobOnMachines, state: Occupied, kinds: Mapping[Kind, Sequence[Machine]], *, move_s: float
) -> NothingFits:
    """Return what is raised for a job that has no placement now: why, and what would do: the earliest time, the most
    devices, and the fewest running jobs that would have to make way, each standing still for `move_s` at least."""
    free = {kind: sum(len(machine.free) for machine in machines) for kind, machines in kinds.items()}
    most = max(free, key=lambda kind: free[kind])
    of_type = f" ({most[1]})" if len(kinds) > 1 else ""
    lacking = job.devices - free[most]
    if lacking > 0:
        said = f"{job.devices} devices wanted, {free[most]} free now{of_type}: {lacking} too few"
    else:
        said = f"no plan fits on {job.devices} of the {free[most]} {most[1]} that are free"
    nearest = [
        _later(job, state, most),
        _fewer(job, state, kinds[most], free[most]),
        _stopping(job, state, kinds[most], lacking, move_s),
    ]
    helps = [sentence for sentence in nearest if sentence]
    return NothingFits("; ".join([f"{state.cluster.text}: {said}", *helps]))


def _fewer(job: JobOnMachines, state: Occupied, machines: Sequence[Machine], free: int) -> str:
    last = min(free, job.devices - 1)
    for asked, smaller in islice(job.fewer(last), MOST_TRIED):
        placed = place_on(smaller, machines, state, None)
        if placed is not None:
            return f"{asked} would do, on {' + '.join(map(str, placed.seated.choice.shape))}"
    return f"nor does a plan on {last}" if last and not job.plans else ""


def _later(job: JobOnMachines, state: Occupied, kind: Kind) -> str:
    """When enough come free. A plan that does not fit on the devices that are free fits on no others of that kind."""

    def enough(machines: Sequence[Machine]) -> bool:
        return sum(len(machine.free) for machine in by_kind(machines)[kind]) >= job.devices

    if state.occupancy is None or enough(state.machines):
        return ""
    wait_s = first_wait_s(state, enough)
    if wait_s is None:
        return "they never come free by what is known of the jobs that run"
    jobs = list(state.occupancy.ending_at(wait_s))
    free = sum(len(machine.free) for machine in by_kind(state.after(wait_s))[kind])
    return (
        f"{free} are in {wait_s / 3600:.3g} h, when job{'s' * (len(jobs) > 1)} {brief(jobs, 4)}"
        f" end{'s' * (len(jobs) == 1)} (--reserve places the job then)"
    )


def _stopping(job: JobOnMachines, state: Occupied, machines: Sequence[Machine], lacking: int, move_s: float) -> str:
    """The fewest movable jobs whose GPUs would do. To make way is not to move: there is no room for all of them."""
    cost = move_costs(state, move_s)
    jobs = fewest_to_stop(machines, lacking, cost) if lacking > 0 else None
    if jobs is None:
        return ""
    after = [machine.without(jobs) for machine in machines]
    placed = place_on(job, after, state, None)
    if placed is None:
        return ""
    several = len(jobs) > 1
    lost = sum(cost[name] for name in jobs)
    return (
        f"now, on {' + '.join(map(str, placed.seated.choice.shape))}, if {len(jobs)} job{'s' * several} that may be"
        f" moved made way, {brief(list(jobs), 4)}: {lost:.3g} device-hours lost, and the wait for room elsewhere"
    )


def fewest_to_stop(machines: Sequence[Machine], lacking: int, cost: Mapping[str, float]) -> tuple[str, ...] | None:
    """Return the fewest of the jobs with a `cost` that hold so many GPUs of these machines; None where all of them hold
    fewer. Those that hold most come first, and of the last one the cheapest that is enough is taken."""
    freed: Counter[str] = Counter()
    for machine in machines:
        if not machine.barred:
            freed.update({job: len(gpus) for job, gpus in machine.jobs.items() if job in cost})
    stopped: list[str] = []
    for job in sorted(freed, key=lambda name: (-freed[name], cost[name], name)):
        if lacking <= freed[job]:
            enough = [other for other in freed if other not in stopped and freed[other] >= lacking]
            return (*stopped, min(enough, key=lambda name: (cost[name], name)))
        stopped.append(job)
        lacking -= freed[job]
    return None
