"""The closed forms of one pipeline at a time, path by path, on plain floats: twins of `estimator.schedules`' arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from estimator.schedules.orders import Shape, shape_of
from estimator.schedules.records import ScheduleTime, StageTimes, Transfers, check_counts
from profiles.vocabulary import ScheduleName
from tests.oracles.dualpipe_paths import dualpipe_time
from tests.oracles.interleaved_paths import interleaved_time
from tests.oracles.one_chunk_paths import one_chunk_time

FORMS: dict[ScheduleName, Callable[[Shape, Sequence[StageTimes], Transfers], tuple[float, int]]] = {
    "gpipe": one_chunk_time,
    "1f1b": one_chunk_time,
    "zb-h1": one_chunk_time,
    "interleaved": interleaved_time,
    "dualpipe": dualpipe_time,
}


def time_by_paths(
    schedule: ScheduleName, stages: Sequence[StageTimes], transfers: Transfers, micro_batches: int
) -> ScheduleTime:
    """As `estimator.schedules.time_schedule`."""
    shape = shape_of(schedule, len(stages), check_counts(stages, transfers), micro_batches)
    passes = micro_batches / (2 if schedule == "dualpipe" else 1)
    busy_s = [passes * stage.busy_s for stage in stages]
    longest_s, bottleneck = FORMS[shape.schedule](shape, stages, transfers)
    without = Transfers(forward_s=(0.0,) * len(stages), overlapped=transfers.overlapped)
    free_s = max(FORMS[shape.schedule](shape, stages, without)[0], *busy_s)
    return ScheduleTime(
        bottleneck=bottleneck,
        busy_s=busy_s[bottleneck],
        transfer_s=max(longest_s, free_s) - free_s,
        bubble_s=free_s - busy_s[bottleneck],
    )
