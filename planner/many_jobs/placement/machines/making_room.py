"""Room for a job on whole machines by moving running ones: whom, at what price, what it wins and when that pays."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence

from estimator.pricing.upkeep import HOUR_S
from planner.many_jobs.placement.machines.choices import Choice
from planner.many_jobs.placement.machines.job import JobOnMachines
from planner.many_jobs.placement.machines.moving import cheapest_moves
from planner.many_jobs.placement.machines.occupied import Machine, Occupied
from planner.many_jobs.placement.machines.placing import Placed, place_on
from planner.many_jobs.placement.machines.seating import Seated
from planner.many_jobs.placers.filling import best_fit
from planner.one_job.site_pods.free_nodes import level_of_pods
from planner.shared.options.machines import MOST_MOVED
from profiles.records import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedJob:
    """A job that moves: the GPUs that it gives up by host, and those free ones that best-fit then gives it."""

    job: str
    devices: int
    lost_device_hours: float
    gives_up: tuple[tuple[str, int], ...]
    goes_to: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class MadeRoom:
    """Jobs that move, and the placement that this makes room for; `pod`: all of it is in this pod (None: it may be in
    several, or there are none)."""

    moved: tuple[MovedJob, ...]
    lost_device_hours: float
    seated: Seated
    pod: str | None

    def pays_beyond_s(self, now: Seated, devices: int) -> float | None:
        """Return after how long a training, as it would run now, the job has won back in device-hours what the others
        lost; None where it never does."""
        gain = 1 - self.seated.time_s / now.time_s
        return self.lost_device_hours * HOUR_S / (devices * gain) if gain > 0 else None


def make_room(
    job: JobOnMachines, machines: Sequence[Machine], state: Occupied, placed: Placed, *, most: int, move_s: float
) -> tuple[MadeRoom, ...]:
    """Return the moves of at most `most` jobs that lose the fewest device-hours so that the job fits whole on machines
    of one kind: wherever these are and, where they are in pods, in one pod alone. Empty where none do, where it fits so
    as it is, or where fewer are free than it wants: a move makes no GPU free, what moves takes up as many elsewhere."""
    if sum(len(machine.free) for machine in machines) < job.devices:
        return ()
    cost = move_costs(state, move_s)
    ways: list[MadeRoom] = []
    for pod, zone in _zones(state, machines, job.devices):
        moves = cheapest_moves(zone, job.devices, cost, most)
        if moves is None or not moves.jobs:
            continue
        inside = tuple(machine.without(moves.jobs) for machine in zone)
        seated = place_on(job, inside, state, placed.whole, placed.plans)
        if seated is None:
            continue
        after = [machine.without(moves.jobs) for machine in machines]
        moved = _moved(moves.jobs, machines, after, seated.seated.choice, cost)
        ways.append(MadeRoom(moved=moved, lost_device_hours=moves.lost_device_hours, seated=seated.seated, pod=pod))
    anywhere = [way for way in ways if way.pod is None][:1]
    in_pods = sorted((way for way in ways if way.pod is not None), key=lambda way: (way.lost_device_hours, way.pod))[:1]
    same = anywhere and in_pods and {one.job for one in anywhere[0].moved} == {one.job for one in in_pods[0].moved}
    return tuple(in_pods if same else [*anywhere, *in_pods])


def moves_needed(
    job: JobOnMachines, machines: Sequence[Machine], state: Occupied, *, more_than: int, move_s: float
) -> int | None:
    """Return the fewest jobs, more than so many, whose moves make room for the job on whole machines; None where three
    do not, or it fits so as it is."""
    if sum(len(machine.free) for machine in machines) < job.devices:
        return None
    cost = move_costs(state, move_s)
    for most in range(more_than + 1, MOST_MOVED + 1):
        moves = cheapest_moves(machines, job.devices, cost, most)
        if moves is not None:
            return len(moves.jobs) or None
    return None


def move_costs(state: Occupied, move_s: float) -> dict[str, float]:
    """Return the device-hours that each movable job loses: it stands still for `move_s`, as in a simulation, and does
    again what it did since its last checkpoint."""
    devices: dict[str, int] = {}
    for machine in state.machines:
        for name, gpus in machine.jobs.items():
            devices[name] = devices.get(name, 0) + len(gpus)
    return {
        name: count * (move_s + state.running[name].lost_s) / HOUR_S
        for name, count in devices.items()
        if state.running[name].movable
    }


def _zones(
    state: Occupied, machines: Sequence[Machine], devices: int
) -> Iterator[tuple[str | None, Sequence[Machine]]]:
    """All machines, and those of each pod that could hold the job, where it takes several machines."""
    yield None, machines
    network = state.cluster.site(machines[0].site).network
    level = level_of_pods(network)
    if level is None or devices <= machines[0].size:
        return
    pods: dict[int, list[Machine]] = {}
    for machine in machines:
        pods.setdefault(network.part_of_node[level][machine.node], []).append(machine)
    for number, members in sorted(pods.items()):
        if len(members) * members[0].size >= devices:
            yield network.levels[level].parts[number].name, members


def _moved(
    jobs: Sequence[str],
    before: Sequence[Machine],
    after: Sequence[Machine],
    choice: Choice,
    cost: Mapping[str, float],
) -> tuple[MovedJob, ...]:
    taken = {machine.host: {slot.index for slot in machine.slots(count)} for machine, count in choice.takes}
    left = [
        replace(machine, free=tuple(index for index in machine.free if index not in taken.get(machine.host, ())))
        for machine in after
    ]
    gives_up = {
        job: tuple((machine.host, len(machine.jobs[job])) for machine in before if job in machine.jobs) for job in jobs
    }
    moved = []
    for job in sorted(jobs, key=lambda name: (-sum(count for _, count in gives_up[name]), name)):
        devices = sum(count for _, count in gives_up[job])
        takes = best_fit([len(machine.free) for machine in left], range(len(left)), devices) or ()
        goes_to = tuple((left[place].host, count) for place, count in takes)
        gone = dict(goes_to)
        left = [replace(machine, free=machine.free[gone.get(machine.host, 0) :]) for machine in left]
        moved.append(
            MovedJob(job=job, devices=devices, lost_device_hours=cost[job], gives_up=gives_up[job], goes_to=goes_to)
        )
    return tuple(moved)


def slurm_lines(room: MadeRoom) -> tuple[str, ...]:
    """Return the commands that stop the jobs, give their GPUs back, and let them start again once the new one has its
    own (scontrol(1))."""
    jobs = shlex.quote(",".join(moved.job for moved in room.moved))
    return (f"scontrol suspend {jobs}", f"scontrol requeuehold {jobs}", f"scontrol release {jobs}")


def kubernetes_lines(room: MadeRoom) -> tuple[str, ...]:
    """Return the evictions of the jobs' pods, a job being called NAMESPACE/POD, or POD in the default one (Kubernetes,
    "API-initiated Eviction")."""
    return tuple(_eviction(moved.job) for moved in room.moved)


def _eviction(job: str) -> str:
    namespace, _, pod = job.rpartition("/")
    namespace = namespace or "default"
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
    return f"echo {shlex.quote(json.dumps(body))} | kubectl create --raw {shlex.quote(path)} -f -"
