"""A job on partly used machines as values that `json.dumps` takes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from estimator.pricing.training import Training
from planner.many_jobs.placement.describing_waiting import describe_reservation, describe_waiting
from planner.many_jobs.placement.existing import score_of_plan
from planner.many_jobs.placement.machines.choices import Choice
from planner.many_jobs.placement.machines.later import LaterOnMachines, held_machines
from planner.many_jobs.placement.machines.making_room import MadeRoom, kubernetes_lines, slurm_lines
from planner.many_jobs.placement.machines.occupied import Machine, Occupied
from planner.many_jobs.placement.machines.placing import EQUAL_TIME, OtherWay, Placed
from planner.many_jobs.placement.machines.seating import Seated
from planner.one_job.explicit.whole import describe_training
from planner.one_job.launchers.node_layout import job_name
from planner.shared.options.place import PlaceOptions
from planner.shared.plan import Plan
from planner.shared.plan_file import plan_to_json
from profiles.records import dataclass


@dataclass(frozen=True, kw_only=True)
class Answer:
    """All that is told of a job on machines of one kind. `state` is how these are when it can start first, `now` how
    they are now. `moves_needed`: so many jobs, more than may, would have to
    move that it fits on whole machines (None: as many as may do, or no moves do)."""

    options: PlaceOptions
    state: Occupied
    machines: tuple[Machine, ...]
    placed: Placed
    plan: Plan
    training: Training | None
    others: tuple[OtherWay, ...]
    later: LaterOnMachines | None
    rooms: tuple[MadeRoom, ...]
    now: Occupied
    moves_needed: int | None = None


def describe_answer(answer: Answer) -> dict[str, Any]:
    """Return the value of `cellplan place --json`, but for `timing`. `machines` are those that the job sits on, with
    its GPUs by index; `score.machines` says what that costs and leaves."""
    placed, plan = answer.placed, answer.plan
    used = {(slot.node, slot.index) for slot in placed.seated.slots}
    granted = [(machine, machine.slots(count)) for machine, count in placed.seated.choice.takes]
    idle = sum((slot.node, slot.index) not in used for _, slots in granted for slot in slots)
    described: dict[str, Any] = {
        "model": plan.model.name,
        "cluster": answer.state.cluster.text,
        "method": "machines",
        "step": "free GPUs of machines",
        "proved": False,
        "local": None,
        "sites": _sites(answer),
        "pods": [],
        "machines": [_machine(machine, count, placed.seated) for machine, count in placed.seated.choice.takes],
        "links": [],
        "routes": [],
        "plan": json.loads(plan_to_json(plan)),
        "score": score_of_plan(plan) | {"pods": None, "idle_devices": idle, "machines": _score(answer)},
        "training": None if answer.training is None else describe_training(answer.training),
        "alternatives": [_other(way, placed.seated, answer.machines) for way in _distinct(answer)],
    }
    if answer.later is not None:
        described["waiting"] = _waiting(answer.later, answer)
    if answer.options.move is not None:
        described["moves"] = [_room(room, answer) for room in answer.rooms]
    return described


def _sites(answer: Answer) -> list[dict[str, Any]]:
    ranks = {(device.node, device.index): device.rank for device in answer.plan.devices}
    takes = answer.placed.seated.choice.takes
    devices = [
        {
            "node": slot.node,
            "host": machine.host,
            "index": slot.index,
            "device": slot.device,
            "rank": ranks.get((slot.node, slot.index)),
        }
        for machine, count in takes
        for slot in machine.slots(count)
    ]
    return [{"name": takes[0][0].site, "devices": devices}]


def _machine(machine: Machine, count: int, seated: Seated) -> dict[str, Any]:
    ranks = {(slot.node, slot.index): rank for rank, slot in enumerate(seated.slots)}
    return {
        "name": machine.host,
        "site": machine.site,
        "node": machine.node,
        "devices": [
            {"index": slot.index, "device": slot.device, "rank": ranks.get((slot.node, slot.index))}
            for slot in machine.slots(count)
        ],
        "size": machine.size,
        "free_before": list(machine.free),
        "jobs": {job: list(gpus) for job, gpus in machine.jobs.items()},
    }


def left_behind(machines: Iterable[Machine], choice: Choice) -> dict[str, int]:
    """Return what a choice leaves: idle machines, free GPUs on machines in use, and how many machines hold these."""
    taken = {machine.host: count for machine, count in choice.takes}
    left = [(machine.size, len(machine.free) - taken.get(machine.host, 0)) for machine in machines]
    pieces = [free for size, free in left if 0 < free < size]
    return {
        "idle_machines": sum(free == size for size, free in left),
        "fragments": sum(pieces),
        "fragmented_machines": len(pieces),
    }


def _score(answer: Answer) -> dict[str, Any]:
    placed = answer.placed
    whole, time_s = placed.whole, placed.seated.time_s
    return {
        "shape": list(placed.seated.choice.shape),
        "iteration_time_s": time_s,
        "whole": None
        if whole is None
        else {
            "machines": whole.machines,
            "iteration_time_s": whole.time_s,
            "slower": time_s / whole.time_s - 1,
        },
        "opened": placed.seated.choice.opened,
        "before": left_behind(answer.machines, Choice(takes=())),
        "after": left_behind(answer.machines, placed.seated.choice),
        "ways": placed.looked_at,
        "plans": len(placed.plans),
        "orders": placed.seated.priced,
        "all_ways": placed.complete,
        "notes": [*answer.state.notes, *_too_few_moves(answer)],
    }


def _too_few_moves(answer: Answer) -> Iterator[str]:
    needed, asked = answer.moves_needed, answer.options.move
    if needed is not None and asked is not None:
        may = f"{asked} job{'s' * (asked > 1)}"
        yield f"no move of {may} makes room on whole machines; --move {needed} would"


def _distinct(answer: Answer) -> Sequence[OtherWay]:
    """Other rules' ways, those that choose alike together, but for what is chosen here; so many as the options want."""
    chosen = answer.placed.seated.choice
    together: dict[object, list[OtherWay]] = {}
    for way in answer.others:
        together.setdefault(_hosts(way.choice), []).append(way)
    ways = [
        OtherWay(name=", ".join(way.name for way in alike), choice=alike[0].choice, seated=alike[0].seated)
        for hosts, alike in together.items()
        if hosts != _hosts(chosen)
    ]
    return ways[: answer.options.alternatives]


def _hosts(choice: Choice) -> frozenset[tuple[str, int]]:
    return frozenset((machine.host, count) for machine, count in choice.takes)


def _other(way: OtherWay, best: Seated, machines: Sequence[Machine]) -> dict[str, Any]:
    site, device, _ = way.choice.takes[0][0].kind
    return {
        "name": way.name,
        "sites": [{"name": site, "devices": {device: sum(way.choice.shape)}}],
        "score": None,
        "iteration_time_s": None if way.seated is None else way.seated.time_s,
        "loses": _why(way, best, machines),
        "machines": {machine.host: count for machine, count in way.choice.takes},
        "shape": list(way.choice.shape),
    }


def _why(way: OtherWay, best: Seated, machines: Sequence[Machine]) -> str:
    if way.seated is None:
        return "none of the plans fits there"
    more = way.seated.time_s / best.time_s - 1
    there, here = left_behind(machines, way.choice), left_behind(machines, best.choice)
    said = []
    if abs(more) > EQUAL_TIME:
        said.append(f"{abs(more):.1%} {'slower' if more > 0 else 'faster'}")
    if there["idle_machines"] != here["idle_machines"]:
        fewer = here["idle_machines"] - there["idle_machines"]
        said.append(f"leaves {abs(fewer)} idle machine{'s' * (abs(fewer) > 1)} {'less' if fewer > 0 else 'more'}")
    if len(way.choice.takes) != len(best.choice.takes):
        other = len(way.choice.takes) - len(best.choice.takes)
        said.append(f"on {abs(other)} machine{'s' * (abs(other) > 1)} {'more' if other > 0 else 'fewer'}")
    if there["fragmented_machines"] > here["fragmented_machines"]:
        said.append(f"leaves free GPUs in pieces on {there['fragmented_machines']} machines, not"
                    f" {here['fragmented_machines']}")  # fmt: skip
    return ", ".join(said) or "as fast, and leaves as much: other machines of equal standing"


def _waiting(later: LaterOnMachines, answer: Answer) -> dict[str, Any]:
    name = job_name(answer.plan)
    described = describe_waiting(later.waiting, name=name, reserve=False)
    if answer.options.reserve:
        described["reservation"] = describe_reservation(held_machines(answer.now, later, name))
    for start, seated in zip(described["starts"], later.seated, strict=True):
        start["shape"] = list(seated.choice.shape)
        start["machines"] = {machine.host: count for machine, count in seated.choice.takes}
    return described


def _room(room: MadeRoom, answer: Answer) -> dict[str, Any]:
    now, devices = answer.placed.seated, sum(answer.placed.seated.choice.shape)
    return {
        "pod": room.pod,
        "jobs": [
            {
                "job": moved.job,
                "devices": moved.devices,
                "lost_device_hours": moved.lost_device_hours,
                "from": dict(moved.gives_up),
                "to": dict(moved.goes_to),
            }
            for moved in room.moved
        ],
        "lost_device_hours": room.lost_device_hours,
        "shape": list(room.seated.choice.shape),
        "machines": _taken(room.seated),
        "iteration_time_s": room.seated.time_s,
        "wins_s": now.time_s - room.seated.time_s,
        "pays_beyond_s": room.pays_beyond_s(now, devices),
        "slurm": list(slurm_lines(room)),
        "kubernetes": list(kubernetes_lines(room)),
    }


def _taken(seated: Seated) -> Mapping[str, list[int]]:
    return {machine.host: [slot.index for slot in machine.slots(count)] for machine, count in seated.choice.takes}
