"""Random pipelines for the tests of schedules."""

from __future__ import annotations

import random

from estimator.pricing.recipe import ScheduleName
from estimator.schedules.records import StageTimes, Transfers

SCHEDULES: tuple[ScheduleName, ...] = ("gpipe", "1f1b", "interleaved", "zb-h1", "dualpipe")


def random_counts(rng: random.Random, schedule: ScheduleName, most: int = 8) -> tuple[int, int, int]:
    """Stages, chunks and micro-batches, at least as many of these as stages, that the schedule can be run with."""
    stages = rng.randint(2, most)
    if schedule == "interleaved":
        return stages, rng.randint(2, 4), stages * rng.randint(1, 5)
    if schedule == "dualpipe":
        stages += stages % 2
        return stages, 2, 2 * stages + 2 * rng.randint(0, 2 * stages)
    return stages, 1, rng.randint(stages, 5 * stages)


def random_stages(
    rng: random.Random, schedule: ScheduleName, stages: int, chunks: int, uneven: float = 0.3
) -> list[StageTimes]:
    """Backward about twice forward; uneven: `uneven` more at most, and the head and the embedding at the ends."""
    base, ratio, share = rng.uniform(0.5, 2), rng.uniform(1.8, 2.2), rng.uniform(0.3, 0.5)
    rows = [[base * (1 + rng.uniform(0, uneven))] * (1 if schedule == "dualpipe" else chunks) for _ in range(stages)]
    if uneven:
        rows[0][0] += base * rng.uniform(0, 0.05)
        rows[-1][-1] += base * rng.uniform(0, 0.4)
    if schedule == "dualpipe":
        rows = [[rows[i][0], rows[stages - 1 - i][0]] for i in range(stages)]
    return [
        StageTimes(
            forward_s=tuple(row),
            backward_s=tuple(ratio * x for x in row),
            weight_s=tuple(share * ratio * x for x in row),
        )
        for row in rows
    ]


def equal_stages(forward_s: float, backward_s: float, weight_s: float, *, stages: int, chunks: int) -> list[StageTimes]:
    """The same times everywhere."""
    one = StageTimes(forward_s=(forward_s,) * chunks, backward_s=(backward_s,) * chunks, weight_s=(weight_s,) * chunks)
    return [one] * stages


def no_transfers(stages: int, *, overlapped: bool = True) -> Transfers:
    """Messages that take no time."""
    return Transfers(forward_s=(0.0,) * stages, overlapped=overlapped)
