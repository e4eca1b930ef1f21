"""A job on partly used machines for people: which GPUs of which machine, what that costs and leaves, whom to move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from planner.cli.later_output import format_wait, print_reservation
from planner.cli.output import format_seconds, print_notes, print_table, print_text, spans


def print_machines(result: Mapping[str, Any]) -> None:
    """Print the machines of the value of `planner.api.place`; nothing where it has none."""
    if not result.get("machines"):
        return
    score = result["score"]["machines"]
    rows = [
        (
            machine["name"],
            len(machine["free_before"]),
            ",".join(spans([device["index"] for device in machine["devices"]])),
            " ".join(_rank(device["rank"]) for device in machine["devices"]),
        )
        for machine in result["machines"]
    ]
    print_table("", ("machine", "free", "takes GPUs", "ranks on them"), rows)
    print_text(_cost(score), indent="  ")
    print_text(_leaves(score), indent="  ")
    print_notes("of what is free:", score["notes"])
    if "waiting" in result:
        _print_later(result["waiting"])
    if "moves" in result:
        _print_moves(result["moves"], score)
    print()


def _rank(rank: int | None) -> str:
    return "idle" if rank is None else str(rank)


def _shape(counts: Sequence[int]) -> str:
    return " + ".join(map(str, counts))


def _cost(score: Mapping[str, Any]) -> str:
    time_s, whole = format_seconds(score["iteration_time_s"]), score["whole"]
    said = f"on {_shape(score['shape'])}: {time_s} an iteration"
    if whole is not None:
        machines = f"{whole['machines']} whole machine{'s' * (whole['machines'] > 1)}"
        beside = f"{abs(whole['slower']):.1%} {'slower' if whole['slower'] >= 0 else 'faster'} than on {machines}"
        equal = abs(whole["slower"]) < 5e-4
        said += f", {f'as on {machines}' if equal else beside} ({format_seconds(whole['iteration_time_s'])})"
    looked = f"{score['ways']} way{'s' * (score['ways'] > 1)} to take them by {score['plans']} plan"
    return f"{said}; {looked}{'s' * (score['plans'] > 1)}{', all that prices tell apart' if score['all_ways'] else ''}"


def _leaves(score: Mapping[str, Any]) -> str:
    before, after = score["before"], score["after"]

    def pieces(left: Mapping[str, int]) -> str:
        free, machines = left["fragments"], left["fragmented_machines"]
        return f"{free} free GPU{'s' * (free != 1)} in pieces on {machines} machine{'s' * (machines != 1)}"

    return (
        f"leaves {after['idle_machines']} of {before['idle_machines']} whole machines idle, and {pieces(after)}"
        f" (before: {pieces(before)})"
    )


def _print_later(waiting: Mapping[str, Any]) -> None:
    starts = waiting["starts"]
    first = starts[0]
    soonest = (
        "now" if not first["wait_s"] else f"in {format_wait(first['wait_s'])}, the first time that enough are free,"
    )
    said = f"{soonest} on {_shape(first['shape'])}: {format_seconds(first['iteration_time_s'])} an iteration"
    if len(starts) == 1:
        others = len(waiting["ends"])
        print_text(f"{said}; of {others} coming end{'s' * (others != 1)} none makes it faster", indent="  ")
    for start in starts[1:]:
        jobs = start["jobs"]
        ends = (
            f"job{'s' * (len(jobs) != 1)} {', '.join(jobs[:4])}{' ...' * (len(jobs) > 4)} end{'s' * (len(jobs) == 1)}"
        )
        print_text(
            f"{said}; on {_shape(start['shape'])} from {_clock(waiting['now_s'] + start['wait_s'])}, in"
            f" {format_wait(start['wait_s'])} ({ends}, {start['chance_free']:.0%}):"
            f" {format_seconds(start['iteration_time_s'])}; for more than {format_wait(start['pays_beyond_s'])} of"
            " training wait",
            indent="  ",
        )
    by = "their time limits" if waiting["ends_by"] == "time limit" else "the predictions (likely ends)"
    print_text(f"jobs end by {by}; what is free and what comes free is taken to be this job's", indent="  ")
    best = starts[waiting["best"]]
    if best["end_s"] is not None:
        when = "now" if not best["wait_s"] else f"in {format_wait(best['wait_s'])}"
        chance = "" if best["chance_pays"] is None else f" (sooner than from now: {best['chance_pays']:.0%})"
        print_text(f"best: start {when}, the training ends in {format_wait(best['end_s'])}{chance}", indent="  ")
    if waiting["reservation"] is not None:
        print_reservation(waiting["reservation"])
        print_text("nodes are held whole, the GPUs of them that it does not take, too", indent="  ")


def _clock(seconds: float) -> str:
    """A time of day as Slurm prints it, in this machine's zone."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%H:%M")


def _print_moves(moves: Sequence[Mapping[str, Any]], score: Mapping[str, Any]) -> None:
    if not moves:
        whole = score["whole"]
        sits = whole is not None and len(score["shape"]) <= whole["machines"]
        said = "it sits on as few machines as there can be: none is to be moved" if sits else "no such moves make room"
        print_text(f"moves: {said}", indent="  ")
    for room in moves:
        _print_room(room)


def _print_room(room: Mapping[str, Any]) -> None:
    where = f" of {room['pod']}" if room["pod"] else ""
    jobs = len(room["jobs"])
    pays = "never pays" if room["pays_beyond_s"] is None else f"pays beyond {format_wait(room['pays_beyond_s'])}"
    print_text(
        f"moving {jobs} job{'s' * (jobs > 1)} makes room for {_shape(room['shape'])} on"
        f" {', '.join(room['machines'])}{where}: {format_seconds(room['iteration_time_s'])} an iteration,"
        f" {room['lost_device_hours']:.3g} device-hours lost, which {pays} of training",
        indent="  ",
    )
    for moved in room["jobs"]:
        print_text(f"  job {moved['job']}: from {_places(moved['from'])} to {_places(moved['to'])}", indent="    ")
    print_text("Slurm, the last line once the new job has its GPUs (nothing is carried out here):", indent="  ")
    for line in room["slurm"]:
        print(f"    {line}")
    print_text("Kubernetes, where the jobs' names are those of their pods:", indent="  ")
    for line in room["kubernetes"]:
        print(f"    {line}")


def _places(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{host} ({count})" for host, count in counts.items())
