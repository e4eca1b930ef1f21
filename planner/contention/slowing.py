"""Who slows whom: what a job gains if another is gone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from math import isfinite

import numpy as np

from estimator.network.player.folding import fold
from estimator.network.player.packing import Floats, Packed
from estimator.network.player.play import Played, Settings, mean_bytes_per_s, play
from profiles.records import dataclass, replace

Told = Callable[[int, int, str], None]
"""Hears how many of how many are done, and of what."""

SLOWS = 0.001
"""Who takes less than this of another's iteration is not said to slow it."""
QUICK_SLOWS = 0.01
"""The same of many jobs, whose plays are short: as compute varies, these differ by about as much."""
QUICK_WINDOWS = 4
"""Windows of a short play: a job that they leave unsteady counts as it is."""
QUICK_EVENTS = 4_000
"""Events of a job in a short play: others would go on until one that they hold up has its iterations."""
LEAST_LEFT = 0.05
"""Of a link so much at least is left by jobs that are not played."""
MOST_SHARED = 3
"""Links on which two jobs meet are named, the fullest first."""
FEW = 8
"""So many jobs are not many."""


@dataclass(frozen=True, kw_only=True)
class Slower:
    """Who slows a job: it gains `gained_s` an iteration if that one is gone; the links on which they meet, the fullest
    first."""

    id: str
    gained_s: float
    links: tuple[int, ...]


def slowers_of(
    packed: Sequence[Packed],
    played: Played,
    rates: Floats,
    names: Sequence[str],
    settings: Settings,
    told: Told | None = None,
) -> tuple[list[tuple[Slower, ...]], int]:
    """Return of each job who slows it, most first, and of how many short plays that is (0: whole ones).

    Of few jobs it is what a job takes as they were `played` beyond what it takes in a play without the other. Of many
    it is of a play of the other with those that share links with it, and of one without it, in which all else leaves of
    links what it leaves in the mean: whoever is further away is not said, and what far jobs do to each other as compute
    varies does not hide what near ones do.
    """
    fullness = mean_bytes_per_s(packed, [job.seconds for job in played.jobs], len(rates))
    fullness = fullness / np.where(rates > 0, rates, np.inf)
    found: list[list[Slower]] = [[] for _ in packed]
    plays, many = 0, len(packed) > FEW
    gains = _near_gains if many else _whole_gains
    least = QUICK_SLOWS if many else SLOWS
    for gone, gained in gains(packed, played, rates, names, settings):
        if told is not None:
            told(plays, len(packed), "jobs left out, one after the other")
        plays += 1
        for job, (gained_s, after_s) in gained.items():
            if gained_s > least * after_s:
                shared = np.intersect1d(packed[job].links, packed[gone].links)
                fullest = shared[np.argsort(-fullness[shared], kind="stable")][:MOST_SHARED]
                found[job].append(Slower(id=names[gone], gained_s=gained_s, links=tuple(fullest.tolist())))
    slowers = [tuple(sorted(of_job, key=lambda slower: (-slower.gained_s, slower.id))) for of_job in found]
    return slowers, plays if many else 0


Gains = Iterator[tuple[int, dict[int, tuple[float, float]]]]
"""A job that is gone; of others what they gain in seconds an iteration, and what one takes then."""


def _whole_gains(
    packed: Sequence[Packed], played: Played, rates: Floats, names: Sequence[str], settings: Settings
) -> Gains:
    seconds = [job.seconds for job in played.jobs]
    for part in fold(packed, rates):
        for gone in part.jobs if len(part.jobs) > 1 else ():
            others = [job for job in part.jobs if job != gone]
            after = _seconds(packed, others, rates, names, settings)
            yield gone, {job: (seconds[job] - its, its) for job, its in after.items()}


def _near_gains(
    packed: Sequence[Packed], played: Played, rates: Floats, names: Sequence[str], settings: Settings
) -> Gains:
    seconds = [job.seconds for job in played.jobs]
    carried = mean_bytes_per_s(packed, seconds, len(rates))
    users: defaultdict[int, list[int]] = defaultdict(list)
    for job, its in enumerate(packed):
        for link in its.links.tolist():
            users[link].append(job)
    for gone, its in enumerate(packed):
        near = sorted({job for link in its.links.tolist() for job in users[link]})
        if len(near) < 2:
            continue
        others = mean_bytes_per_s([packed[job] for job in near], [seconds[job] for job in near], len(rates))
        left = np.maximum(rates - np.maximum(carried - others, 0.0), rates * LEAST_LEFT)
        short = replace(settings, most_windows=QUICK_WINDOWS, most_events=QUICK_EVENTS * len(near), log_rows=0)
        before = _seconds(packed, near, left, names, short)
        after = _seconds(packed, [job for job in near if job != gone], left, names, short)
        yield gone, {job: (_gained_s(seconds[job], before[job], after_s), after_s) for job, after_s in after.items()}


def _seconds(
    packed: Sequence[Packed], jobs: Sequence[int], rates: Floats, names: Sequence[str], settings: Settings
) -> dict[int, float]:
    """Of these jobs alone, seconds of an iteration."""
    played = play([packed[job] for job in jobs], rates, settings=settings, names=[names[job] for job in jobs])
    return {job: its.seconds for job, its in zip(jobs, played.jobs, strict=True)}


def _gained_s(seconds: float, before_s: float, after_s: float) -> float:
    """The share that plays say, of what an iteration takes among all. An iteration without an end gains all of it."""
    if not isfinite(after_s):
        return 0.0
    if isfinite(seconds) and isfinite(before_s):
        return seconds * (1.0 - after_s / before_s)
    return min(seconds, before_s) - after_s
