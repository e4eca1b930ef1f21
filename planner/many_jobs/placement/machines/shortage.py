"""What is said where a job does not fit on the GPUs that are free: the nearest that does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from planner.many_jobs.placement.machines.later import first_wait_s
from planner.many_jobs.placement.machines.occupied import Machine, Occupied
from planner.many_jobs.placement.machines.placing import JobOnMachines, Kind, by_kind, place_on
from planner.one_job.free_devices.nodes import brief
from planner.one_job.search.spaces.constraints import Constraints
from planner.one_job.search.varied import with_constraints
from profiles.errors import NothingFits
from profiles.records import replace

MOST_TRIED = 4
"""Of fewer devices so many numbers are tried, the largest first."""


def nothing_fits(job: JobOnMachines, state: Occupied, kinds: Mapping[Kind, Sequence[Machine]]) -> NothingFits:
    """Return what is raised for a job that has no placement now: why, and the most devices and the earliest time that
    do."""
    free = {kind: sum(len(machine.free) for machine in machines) for kind, machines in kinds.items()}
    most = max(free, key=lambda kind: free[kind])
    of_type = f" ({most[1]})" if len(kinds) > 1 else ""
    if free[most] < job.devices:
        said = f"{job.devices} devices wanted, {free[most]} free now{of_type}: {job.devices - free[most]} too few"
    else:
        said = f"no plan fits on {job.devices} of the {free[most]} {most[1]} that are free"
    nearest = [_later(job, state, most), _fewer(job, state, kinds[most], free[most])]
    helps = [sentence for sentence in nearest if sentence]
    return NothingFits("; ".join([f"{state.cluster.text}: {said}", *helps]))


def _fewer(job: JobOnMachines, state: Occupied, machines: Sequence[Machine], free: int) -> str:
    last = min(free, job.devices - 1)
    for devices in range(last, max(0, last - MOST_TRIED), -1):
        request = with_constraints(job.request, partial(_at_most, devices))
        placed = place_on(replace(job, request=request, devices=devices), machines, state, None)
        if placed is not None:
            return f"--devices {devices} would do, on {' + '.join(map(str, placed.seated.choice.shape))}"
    return f"nor does a plan on {last}" if last else ""


def _at_most(devices: int, limits: Constraints) -> Constraints:
    return replace(limits, most={**limits.most, "devices": devices})


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
