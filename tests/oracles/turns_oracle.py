"""Jobs that take turns, second by second: rounds made slot by slot, and groups replayed from nothing but a list of who
is with whom."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product

from planner.many_jobs.jobs.records import Use


def shortest_round_s(uses: Sequence[Use]) -> float:
    """The shortest round of all that there are: in each of two slots a job is on the devices or on the network, in the
    other one on the other; whoever is at one place goes after those before him."""
    best_s = math.inf
    for first in product(("devices", "network"), repeat=len(uses)):
        round_takes_s = 0.0
        for slot in (0, 1):
            busy_until = {"devices": 0.0, "network": 0.0}
            for use, place in zip(uses, first, strict=True):
                on_devices = (place == "devices") == (slot == 0)
                if on_devices:
                    busy_until["devices"] += use.compute_s
                    busy_until["network"] += use.hidden_s
                else:
                    busy_until["network"] += use.iteration_s - use.compute_s
            round_takes_s += max(busy_until.values())
        best_s = min(best_s, round_takes_s)
    return best_s


def muri_round_s(times: Sequence[Sequence[float]]) -> float:
    """Muri's formula as printed, for no more jobs than resources: job j is at resource (i + j) mod k in slot i, in the
    best order of the jobs. `times[j][r]`: seconds of job j at resource r."""
    count = len(times[0])
    return min(
        sum(max(job[(slot + place) % count] for place, job in enumerate(order)) for slot in range(count))
        for order in permutations(times)
    )


@dataclass
class Replayed:
    """What became of a job."""

    left: float
    end_s: float | None = None
    held_s: float = 0.0
    waited_s: float = 0.0
    restarts: int = -1
    ready_s: float = 0.0
    group: str = ""


def replay(
    work: Mapping[str, float],
    uses: Mapping[str, Use],
    script: Sequence[Mapping[str, str]],
    *,
    interval_s: float,
    restart_s: float,
) -> dict[str, Replayed]:
    """What becomes of jobs that all come at 0, with so many iterations each, where at the n-th multiple of an interval
    each job named goes to that group ("": it is suspended). Each group has a device of its own."""
    jobs = {id_: Replayed(left=left) for id_, left in work.items()}
    now_s = 0.0
    for number in range(len(script) + 1):
        until_s = number * interval_s
        while now_s < until_s:
            now_s = _advance(jobs, uses, now_s, until_s)
        for id_, group in (script[number] if number < len(script) else {}).items():
            job = jobs[id_]
            if job.end_s is None and group != job.group:
                job.group = group
                job.restarts += bool(group)
                job.ready_s = now_s + (restart_s if job.restarts and group else 0.0)
    while any(job.end_s is None and job.group for job in jobs.values()):
        now_s = _advance(jobs, uses, now_s, math.inf)
    return jobs


def _advance(jobs: Mapping[str, Replayed], uses: Mapping[str, Use], now_s: float, until_s: float) -> float:
    """To the next end, the next end of a restart, or the time given."""
    there = {id_: job for id_, job in jobs.items() if job.end_s is None and job.group}
    mates = {id_: [other for other in there if there[other].group == job.group] for id_, job in there.items()}
    speed_s = {id_: shortest_round_s([uses[other] for other in own]) for id_, own in mates.items()}
    for id_, own in mates.items():
        if len(own) == 1:
            speed_s[id_] = uses[id_].iteration_s
    ends = [max(job.ready_s, now_s) + job.left * speed_s[id_] for id_, job in there.items()]
    next_s = min([until_s, *ends, *(job.ready_s for job in there.values() if job.ready_s > now_s)])
    for id_, job in jobs.items():
        if id_ in there:
            job.held_s += (next_s - now_s) / len(mates[id_])
            job.left -= max(0.0, next_s - max(job.ready_s, now_s)) / speed_s[id_]
        elif job.end_s is None:
            job.waited_s += next_s - now_s
    for job in there.values():
        if job.left < 1e-9:
            job.end_s, job.group = next_s, ""
    return next_s
