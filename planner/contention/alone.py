"""What an iteration of a job takes beside nobody. Hashes make its own connections meet, which is no share of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from estimator.network.fabric import Fabric
from estimator.network.player.packing import Floats, Packed, pack
from estimator.network.player.play import Settings, play
from planner.contention.playing import playing_under
from planner.contention.policies.loads import spread_paths
from planner.contention.policies.path_selection import least_congested_paths
from planner.contention.policies.records import Choice, Contender, View
from profiles.records import replace

HELD_BACK = 1e-9
"""An iteration that takes by no more longer, relatively, is not held back."""


def alone_seconds(jobs: Sequence[Contender], fabric: Fabric) -> list[float]:
    """Return the seconds of an iteration of each job by itself: the least of what it takes on the paths of now, on all
    evenly, and each connection on its least congested one."""
    rates = fabric.links.bytes_per_s
    bytes_per_s = tuple(rates.tolist())
    now = [pack(playing_under(job, job.now)) for job in jobs]
    seconds = _played_s(now, rates)
    held = [
        number
        for number, job in enumerate(jobs)
        if seconds[number] > now[number].lasts_s * (1 + HELD_BACK) and any(len(options) > 1 for options in job.paths)
    ]
    views = [View(jobs=(jobs[number],), bytes_per_s=bytes_per_s, levels=1) for number in held]
    ways: tuple[Callable[[View], Sequence[Choice]], ...] = (
        lambda view: spread_paths(view)[0],
        lambda view: least_congested_paths(view, [0])[0],
    )
    for chosen in ways:
        packed = [pack(playing_under(view.jobs[0], chosen(view))) for view in views]
        for number, its in zip(held, _played_s(packed, rates), strict=True):
            seconds[number] = min(seconds[number], its)
    return seconds


def _played_s(jobs: Sequence[Packed], rates: Floats) -> list[float]:
    """Seconds of an iteration of each job. They are played at once, each on links of its own that carry as much as
    those that it uses."""
    begins = np.cumsum([0, *(len(job.links) for job in jobs)]).tolist()
    apart = [
        replace(
            job,
            links=np.arange(first, first + len(job.links)),
            entry_link=first + np.searchsorted(job.links, job.entry_link),
        )
        for job, first in zip(jobs, begins, strict=False)
    ]
    used = np.concatenate([np.empty(0), *(rates[job.links] for job in jobs)])
    played = play(apart, used, settings=Settings(jitter=0.0, compiled=False))
    return [job.seconds for job in played.jobs]
