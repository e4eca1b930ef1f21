"""A part of the network and its jobs as the arrays that the loop of events goes over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from estimator.network.player.folding import FoldedMover, Part
from estimator.network.player.jitter import DRAWS, factors
from estimator.network.player.packing import Floats, Integers, Packed
from estimator.network.player.score import Score
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
    transfers = [transfer for of_job in part.movers for transfer in of_job]
    movers = [mover for transfer in transfers for mover in transfer]
    links = sorted({link for mover in movers for link, _ in mover.way})
    number = {link: place for place, link in enumerate(links)}
    mover_job = np.repeat(np.arange(len(jobs)), [sum(map(len, of_job)) for of_job in part.movers])
    entry_count = np.array([len(mover.way) for mover in movers], dtype=np.int64)
    playings = [job.playing for job in jobs]
    starts_s = np.array([each.starts_s for each in playings], dtype=np.float64)
    order = sorted(range(len(jobs)), key=lambda job: (playings[job].starts_s, names[part.jobs[job]], job))
    draws = [factors(names[job], watch.seed, watch.jitter) if watch.jitter else np.ones(1) for job in part.jobs]
    return Score(
        step_first=_firsts([len(job.step_times) for job in jobs]),
        compute_s=_joined(jobs, "step_compute_s"),
        begins_s=_joined(jobs, "step_begins_s"),
        step_times=_joined(jobs, "step_times"),
        transfer_first=_firsts(_joined(jobs, "transfer_count")),
        latency_s=_joined(jobs, "transfer_latency_s"),
        transfer_times=_joined(jobs, "transfer_times"),
        mover_first=_firsts([len(transfer) for transfer in transfers]),
        seconds=np.array([mover.seconds for mover in movers], dtype=np.float64),
        most=np.array([mover.most for mover in movers], dtype=np.float64),
        weight=np.array([each.weight for each in playings], dtype=np.float64)[mover_job],
        level=np.array([mover.level for mover in movers], dtype=np.int64),
        mover_job=mover_job,
        entry_first=_firsts(entry_count),
        entry_link=np.array([number[link] for mover in movers for link, _ in mover.way], dtype=np.int64),
        entry_amount=np.array([amount for mover in movers for _, amount in mover.way], dtype=np.float64),
        entry_mover=np.repeat(np.arange(len(movers)), entry_count),
        bytes_per_s=np.asarray(bytes_per_s[np.array(links, dtype=np.int64)], dtype=np.float64),
        room_first=_firsts(_room(part.movers, number)),
        starts_s=starts_s,
        idle_s=np.array([each.idle_s for each in playings], dtype=np.float64),
        iterations=np.array([-1.0 if each.iterations is None else each.iterations for each in playings]),
        lasts_s=np.array([job.lasts_s for job in jobs]),
        coming=np.array(order, dtype=np.int64),
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


def _room(movers: Sequence[Sequence[Sequence[FoldedMover]]], number: dict[int, int]) -> Integers:
    """How many movers can be on each link at once."""
    room = np.zeros(len(number), dtype=np.int64)
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


def _firsts(counts: Any) -> Integers:
    return np.concatenate([[0], np.cumsum(np.asarray(counts, dtype=np.int64))]).astype(np.int64)


def _joined(jobs: Sequence[Packed], name: str) -> Any:
    return np.concatenate([getattr(job, name) for job in jobs])
