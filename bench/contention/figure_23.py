"""Figure 23: lingjun's trace on five fabrics under every policy of the network; figure 24: links by GPU intensity.

Jobs sit where a rule of placement puts them when they come (at random, or below as few switches as hold them, as the
cluster's own scheduler tries), for as long as the trace says; what they would do longer when others slow them is left
out, so that every policy has the same jobs at the same times. Whenever a job that sends comes or goes the policy decides
anew for all that are there: from the paths that hashes chose, and `ours` from what it has decided before, with few plays
each time. Then the jobs are played until their rates are steady; compute takes as long in every iteration. Both ways in
which the paper uses "GPU utilisation" are summed over time: the share of the devices held that compute, and the work
done beside what the same jobs do alone. The bound is a linear programme for the busiest moments, as many as said.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import mean

import numpy as np

from bench.contention.fabrics import FABRICS, fabric_with_seed
from bench.contention.stand_ins import contender
from bench.network.sitting import Stay, read_jobs, sit
from estimator.network.fabric import Fabric
from estimator.network.player.packing import Packed, pack
from estimator.network.player.play import Settings, play
from planner.contention.policies.catalogue import make_network_policy
from planner.contention.policies.records import Choice, Contender, Decision, NetworkPolicy, View
from planner.contention.policies.rehearsals import Rehearsals
from planner.contention.viewing import playing_under
from profiles.records import dataclass, replace

LEVELS = 8
DAY_S = 86_400.0
STEADY = Settings(jitter=0.0, window=10, most_windows=3, most_events=int(__import__("os").environ.get("ME", "4000")))


@dataclass(frozen=True, kw_only=True)
class Period:
    """Seconds between two changes, the jobs that send in them by number, and all devices held."""

    seconds: float
    jobs: tuple[int, ...]
    held: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Cluster:
    """Jobs of the trace on a fabric: those that send, what they compute, and the periods."""

    fabric: Fabric
    stays: tuple[Stay, ...]
    contenders: tuple[Contender, ...]
    compute_s: tuple[float, ...]
    periods: tuple[Period, ...]


def load(data: Path, name: str, rule: str, seed: int, days: tuple[float, float]) -> Cluster:
    """Return the jobs of these days of the trace on a fabric of `FABRICS`."""
    cluster = FABRICS[name](data)
    fabric = fabric_with_seed(name, cluster, seed)
    stays = sit(read_jobs(data, 2048), cluster, rule, seed)
    begins_s = min(stay.start_s for stay in stays)
    window_s = begins_s + days[0] * DAY_S, begins_s + days[1] * DAY_S
    here = [stay for stay in stays if stay.start_s < window_s[1] and stay.end_s > window_s[0]]
    sending = tuple(stay for stay in here if stay.nodes > 1)
    made = [contender(stay, fabric, seed) for stay in sending]
    return Cluster(
        fabric=fabric,
        stays=sending,
        contenders=tuple(each for each, _ in made),
        compute_s=tuple(seconds for _, seconds in made),
        periods=tuple(periods(sending, here, window_s)),
    )


def periods(sending: Sequence[Stay], all_stays: Sequence[Stay], window_s: tuple[float, float]) -> Iterator[Period]:
    """Yield what is between the changes of those that send."""
    changes: dict[float, list[tuple[int, bool]]] = defaultdict(list)
    for number, stay in enumerate(sending):
        changes[max(stay.start_s, window_s[0])].append((number, True))
        changes[min(stay.end_s, window_s[1])].append((number, False))
    present: set[int] = set()
    times_s = sorted(changes)
    for from_s, to_s in zip(times_s, [*times_s[1:], window_s[1]], strict=True):
        for number, comes in changes[from_s]:
            (present.add if comes else present.discard)(number)
        if to_s > from_s and present:
            overlap = ((stay.gpus, min(stay.end_s, to_s) - max(stay.start_s, from_s)) for stay in all_stays)
            held = sum(gpus * seconds for gpus, seconds in overlap if seconds > 0) / (to_s - from_s)
            yield Period(seconds=to_s - from_s, jobs=tuple(sorted(present)), held=round(held))
