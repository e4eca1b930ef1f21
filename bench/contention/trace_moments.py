"""Lingjun's trace on a fabric as moments: who sends between two changes, and for how long.

Jobs sit where a rule of placement puts them when they come, for as long as the trace says. What they would do longer
when others slow them is left out, so that every policy has the same jobs at the same times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.contention.fabrics import FABRICS, fabric_with_seed
from bench.contention.stand_ins import contender
from bench.network.sitting import Stay, read_jobs, sit
from estimator.network.fabric import Fabric
from planner.contention.policies.records import Contender
from profiles.records import dataclass, replace

DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Seconds between two changes, the jobs that send then by number, and the devices of those that do not: that sit on
    one node, in the mean."""

    seconds: float
    jobs: tuple[int, ...]
    silent: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Cluster:
    """Jobs of the trace on a fabric: those that send, the seconds that they compute in an iteration, the moments that
    are looked at, and the share of all device-seconds of jobs that send which these cover."""

    fabric: Fabric
    stays: tuple[Stay, ...]
    contenders: tuple[Contender, ...]
    compute_s: tuple[float, ...]
    moments: tuple[Moment, ...]
    covered: float


def load(data: Path, name: str, rule: str, seed: int, days: tuple[float, float], cover: float = 1.0) -> Cluster:
    """Return the jobs of these days of the trace on a fabric of `FABRICS`; of the moments those of most device-seconds
    that make up `cover` of all."""
    cluster = FABRICS[name](data)
    fabric = fabric_with_seed(name, cluster, seed)
    stays = sit(read_jobs(data, 2048), cluster, rule, seed)
    begins_s = min(stay.start_s for stay in stays)
    window_s = begins_s + days[0] * DAY_S, begins_s + days[1] * DAY_S
    here = [stay for stay in stays if stay.start_s < window_s[1] and stay.end_s > window_s[0]]
    sending = tuple(stay for stay in here if stay.nodes > 1)
    every = list(moments(sending, here, window_s))
    chosen, covered = most_of(every, [stay.gpus for stay in sending], cover)
    there = sorted({job for moment in chosen for job in moment.jobs})
    number = {job: place for place, job in enumerate(there)}
    chosen = tuple(replace(each, jobs=tuple(number[job] for job in each.jobs)) for each in chosen)
    stays = tuple(sending[job] for job in there)
    made = [contender(stay, fabric, seed) for stay in stays]
    return Cluster(
        fabric=fabric,
        stays=stays,
        contenders=tuple(each for each, _ in made),
        compute_s=tuple(seconds for _, seconds in made),
        moments=chosen,
        covered=covered,
    )


def moments(sending: Sequence[Stay], every: Sequence[Stay], window_s: tuple[float, float]) -> Iterator[Moment]:
    """Yield what is between the changes of those that send."""
    changes: dict[float, list[tuple[int, bool]]] = defaultdict(list)
    for number, stay in enumerate(sending):
        changes[max(stay.start_s, window_s[0])].append((number, True))
        changes[min(stay.end_s, window_s[1])].append((number, False))
    silent = [stay for stay in every if stay.nodes == 1]
    present: set[int] = set()
    times_s = sorted(changes)
    for from_s, to_s in zip(times_s, [*times_s[1:], window_s[1]], strict=True):
        for number, comes in changes[from_s]:
            (present.add if comes else present.discard)(number)
        if to_s > from_s and present:
            overlaps = ((stay.gpus, min(stay.end_s, to_s) - max(stay.start_s, from_s)) for stay in silent)
            held_s = sum(gpus * seconds for gpus, seconds in overlaps if seconds > 0)
            yield Moment(seconds=to_s - from_s, jobs=tuple(sorted(present)), silent=held_s / (to_s - from_s))


def most_of(every: Sequence[Moment], gpus: Sequence[int], cover: float) -> tuple[tuple[Moment, ...], float]:
    """Return, in their order, the moments of most device-seconds that make up this share of all, and what they do."""
    weights = [moment.seconds * sum(gpus[job] for job in moment.jobs) for moment in every]
    whole, covered, chosen = sum(weights), 0.0, []
    for place in sorted(range(len(every)), key=lambda place: -weights[place]):
        if covered >= cover * whole:
            break
        covered += weights[place]
        chosen.append(place)
    return tuple(every[place] for place in sorted(chosen)), covered / whole if whole else 1.0
