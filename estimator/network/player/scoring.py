"""A part of the network and its jobs as the arrays that the loop of events goes over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from estimator.network.player.folding import FoldedMover, Part
from estimator.network.player.jitter import DRAWS, factors
from estimator.network.player.packing import Floats, Integers, Packed
from estimator.network.player.score import Score
from estimator.network.player.shortening import shorten
from profiles.records import dataclass


@dataclass(frozen=True, kw_only=True)
class Watch:
    """How a part is played: `jitter` of compute by `seed`; how long rates are looked at (`window` 0: never), whether
    states are compared; rows of the log."""

    jitter: float
    seed: int
    window: int
    most_windows: int
    tolerance: float
    compares: bool
    log_rows: int


def make_score(part: Part, packed: Sequence[Packed], names: Sequence[str], bytes_per_s: Floats, watch: Watch) -> Score:
    """Return the arrays of a part, its jobs from 0 in the part's order. `packed` and `names` are of all jobs."""
    jobs = [packed[job] for job in part.jobs]
    steps_of = [shorten(job, movers, watch.jitter) for job, movers in zip(jobs, part.movers, strict=True)]
    steps = [step for of_job in steps_of for step in of_job]
    transfers = [transfer for step in steps for transfer in step.transfers]
    movers = [mover for transfer in transfers for mover in transfer.movers]
    entries = [entry for mover in movers for entry in mover.way]
    links = sorted({link for link, _ in entries})
    number = {link: place for place, link in enumerate(links)}
    movers_of = [sum(len(each.movers) for step in of_job for each in step.transfers) for of_job in steps_of]
    mover_job = np.repeat(np.arange(len(jobs)), movers_of)
    entry_count = [len(mover.way) for mover in movers]
    ranks = {level: rank for rank, level in enumerate(sorted({mover.level for mover in movers}))}
    playings = [job.playing for job in jobs]
    order = sorted(range(len(jobs)), key=lambda job: (playings[job].starts_s, names[part.jobs[job]], job))
    draws = [factors(names[job], watch.seed, watch.jitter) if watch.jitter else np.ones(1) for job in part.jobs]
    return Score(
        step_first=_firsts([len(of_job) for of_job in steps_of]),
        compute_s=_real([step.compute_s for step in steps]),
        begins_s=_real([step.begins_s for step in steps]),
        step_times=_whole([step.times for step in steps]),
        transfer_first=_firsts([len(step.transfers) for step in steps]),
        latency_s=_real([transfer.latency_s for transfer in transfers]),
        transfer_times=_whole([transfer.times for transfer in transfers]),
        mover_first=_firsts([len(transfer.movers) for transfer in transfers]),
        job_mover_first=_firsts(movers_of),
        seconds=_real([mover.seconds for mover in movers]),
        most=_real([mover.most for mover in movers]),
        weight=_real([mover.weight for mover in movers]),
        level=_whole([ranks[mover.level] for mover in movers]),
        levels=np.array([len(ranks)]),
        mover_job=mover_job,
        entry_first=_firsts(entry_count),
        entry_link=_whole([number[link] for link, _ in entries]),
        entry_amount=_real([amount for _, amount in entries]),
        entry_mover=np.repeat(np.arange(len(movers)), entry_count),
        bytes_per_s=np.asarray(bytes_per_s[_whole(links)], dtype=np.float64),
        room_first=_firsts(_room(part.movers, number)),
        starts_s=_real([each.starts_s for each in playings]),
        idle_s=_real([each.idle_s for each in playings]),
        period_s=_real([each.period_s for each in playings]),
        iterations=_real([-1.0 if each.iterations is None else each.iterations for each in playings]),
        lasts_s=_real([job.lasts_s for job in jobs]),
        coming=_whole(order),
        factors=np.concatenate(draws),
        factor_count=np.array([DRAWS if watch.jitter else 1]),
        window=np.array([watch.window]),
        most_windows=np.array([watch.most_windows]),
        tolerance=np.array([watch.tolerance]),
        compares=np.array([int(watch.compares)]),
        log_rows=np.array([watch.log_rows]),
    )


def as_lists(arrays: Any) -> Any:
    """Return a Score or a State with lists in place of arrays."""
    return type(arrays)(*(array.tolist() for array in arrays))


def _room(movers: Sequence[Sequence[Sequence[FoldedMover]]], number: dict[int, int]) -> list[int]:
    """How many movers can be on each link at once."""
    room = [0] * len(number)
    for of_job in movers:
        most: dict[int, int] = {}
        for transfer in of_job:
            here: dict[int, int] = {}
            for mover in transfer:
                for link, _ in mover.way:
                    here[link] = here.get(link, 0) + 1
            for link, count in here.items():
                most[link] = max(most.get(link, 0), count)
        for link, count in most.items():
            room[number[link]] += count
    return room


def _firsts(counts: Iterable[int]) -> Integers:
    return np.array([0, *accumulate(counts)], dtype=np.int64)


def _whole(values: Sequence[int]) -> Integers:
    return np.array(values, dtype=np.int64)


def _real(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)
