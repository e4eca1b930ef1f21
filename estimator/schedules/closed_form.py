"""Time of one iteration of a pipeline in closed form, for a search that asks thousands of times.

What the stages do is a graph of tasks; the iteration is its longest path. Every form here is the longest of a family of
paths: fill the pipeline up to a stage, stay on it (or go to and fro between it and others, where messages cost), drain.
A path is a sum, and the longest of sums never falls when a forward, a backward or a transfer grows.

Against `simulate_schedule`, on 500 random pipelines a figure (2 to 10 stages, 1 to 5 micro-batches a stage, backward
1.8 to 2.2 of forward, weight gradients 0.3 to 0.5 of that; uneven: forwards by up to 1.3, the last stage up to 0.4 of a
chunk longer for the head, the first 0.05 for the embedding; transfers 0.1 of a forward, overlapped or waited for): the
mean of the error's size, and the largest errors either way, in percent.

                   equal stages                      uneven stages
                   none   overlapped    waited       none               overlapped         waited
    gpipe          0      0             0            0                  0                  0
    1f1b           0      0             0            0                  0.00  -0.3 +0.0    0
    interleaved    0      0             0.21  +0.8   0.24  -4.2 +0.0    0.26  -4.4 +0.0    0.73  -3.8 +1.7
    zb-h1          0      0             0.00  -0.2   0.02  -0.9 +0.0    0.05  -1.0 +0.0    0.02  -1.0 +0.0
    dualpipe       0      1.02  -2.5    0            0.67  -4.1 +0.5    1.46  -4.9 +0.1    0.77  -3.4 +0.5

Where overlapped transfers take longer than passes (up to 4 forwards, 400 pipelines): gpipe 0, 1f1b 0.40 (-6.5),
interleaved 8.5 (-25): its groups of micro-batches wait for each other around the ring, which no path here follows.
Links that messages over several boundaries pass bound all of them from below (`estimator.schedules.shared_links`).

All forms are written on arrays over n pipelines of one shape, for a search that compares hundreds of thousands; one
pipeline is a family of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from estimator.schedules.candidates import Candidates, FloatArray, Paths, before, check_candidates
from estimator.schedules.dualpipe import dualpipe_paths
from estimator.schedules.in_flight import in_flight
from estimator.schedules.interleaved import interleaved_paths
from estimator.schedules.one_chunk import one_chunk_paths
from estimator.schedules.orders import TIE, Shape, shape_of
from estimator.schedules.records import ScheduleTime, StageTimes, Transfers, check_counts
from estimator.schedules.shared_links import SharedSeconds, shared_floor_s
from profiles.vocabulary import ScheduleName

FORMS: dict[ScheduleName, Callable[[Shape, Candidates], Paths]] = {
    "gpipe": one_chunk_paths,
    "1f1b": one_chunk_paths,
    "zb-h1": one_chunk_paths,
    "interleaved": interleaved_paths,
    "dualpipe": dualpipe_paths,
}


def time_schedule(
    schedule: ScheduleName, stages: Sequence[StageTimes], transfers: Transfers, micro_batches: int
) -> ScheduleTime:
    """Return the seconds of one iteration and where they go.

    `bottleneck` is the stage on which the longest path stays, the first of equally long ones. `transfer_s` is what the
    iteration is longer than the same one without transfers. Raises ValueError where the schedule cannot be run with
    these counts (`schedule_problem`).

    >>> one = StageTimes(forward_s=(1,), backward_s=(2,), weight_s=(1,))
    >>> time_schedule("1f1b", [one] * 4, Transfers(forward_s=(0, 0, 0, 0)), 8)
    ScheduleTime(bottleneck=0, busy_s=24.0, transfer_s=0.0, bubble_s=9.0)
    """
    shape = shape_of(schedule, len(stages), check_counts(stages, transfers), micro_batches)
    seconds = np.array([(stage.forward_s, stage.backward_s, stage.weight_s) for stage in stages], dtype=np.float64)
    candidates = Candidates(
        forward_s=seconds[:, 0, :, None],
        backward_s=seconds[:, 1, :, None],
        weight_s=seconds[:, 2, :, None],
        transfers_s=np.array(transfers.forward_s, dtype=np.float64)[:, None],
        overlapped=transfers.overlapped,
    )
    busy_s = passes_of_stage(schedule, micro_batches) * candidates.stage_s[:, 0]
    shared = [
        (np.array(link.up_s, dtype=np.float64)[:, None], np.array(link.down_s, dtype=np.float64)[:, None])
        for link in transfers.shared
    ]
    paths, free_s = _with_and_without_transfers(shape, candidates)
    longest_s = shared_floor_s(shape, candidates, shared, paths.longest_s)
    by_stage = paths.by_stage_s[:, 0]
    bottleneck = int(np.argmax(by_stage >= by_stage.max() * (1 - TIE)))
    least_s = max(float(free_s[0]), float(busy_s.max()))
    return ScheduleTime(
        bottleneck=bottleneck,
        busy_s=float(busy_s[bottleneck]),
        transfer_s=max(float(longest_s[0]), least_s) - least_s,
        bubble_s=least_s - float(busy_s[bottleneck]),
    )


def time_schedules(
    schedule: ScheduleName,
    forward_s: npt.ArrayLike,
    backward_s: npt.ArrayLike,
    weight_s: npt.ArrayLike,
    transfers_s: npt.ArrayLike,
    *,
    overlapped: bool,
    micro_batches: int,
    shared_s: Sequence[SharedSeconds] = (),
) -> FloatArray:
    """Return the seconds of one iteration of each of n pipelines: `time_schedule(...).total_s`, to rounding.

    Args:
        schedule: of all of them.
        forward_s, backward_s, weight_s: stages x chunks x n, as in `StageTimes`.
        transfers_s: stages x n, as `Transfers.forward_s`.
        overlapped: as in `Transfers`, of all of them.
        micro_batches: of all of them.
        shared_s: of each link that messages over several boundaries pass, `SharedLink.up_s` and `down_s`, both
            stages x n.

    Raises ValueError where the schedule cannot be run with these counts (`schedule_problem`), or a time is none.

    >>> ones = np.ones((4, 1, 3))
    >>> time_schedules("1f1b", ones, 2 * ones, ones, np.zeros((4, 3)), overlapped=False, micro_batches=8)
    array([33., 33., 33.])
    """
    candidates = Candidates(
        forward_s=np.ascontiguousarray(forward_s, dtype=np.float64),
        backward_s=np.ascontiguousarray(backward_s, dtype=np.float64),
        weight_s=np.ascontiguousarray(weight_s, dtype=np.float64),
        transfers_s=np.ascontiguousarray(transfers_s, dtype=np.float64),
        overlapped=overlapped,
    )
    check_candidates(candidates)
    shape = _shape(schedule, candidates.forward_s, micro_batches)
    busy_s = passes_of_stage(schedule, micro_batches) * candidates.stage_s.max(axis=0)
    paths, free_s = _with_and_without_transfers(shape, candidates)
    longest_s = shared_floor_s(shape, candidates, shared_s, paths.longest_s)
    return np.asarray(np.maximum(busy_s, np.maximum(longest_s, free_s)))


def lower_bounds(
    schedule: ScheduleName, forward_s: npt.ArrayLike, backward_s: npt.ArrayLike, micro_batches: int
) -> FloatArray:
    """Return seconds that `time_schedules` never falls short of, whatever transfers and weight gradients: cheap.

    Each stage does all its work, and that of the first micro-batch before it and of the last one after it is left:

        max_i  sum_(j<i) (f_j + b_j) + m (busy seconds of stage i)

    with f_j and b_j of the first chunk; without b_j for zb-h1, which may put its weight gradients off, and nothing
    before or after for dualpipe, whose stages all start at once. What equal stages take, where messages take no time,
    for gpipe, 1f1b and interleaved. Arrays are stages x chunks x n.
    """
    forward, backward = np.asarray(forward_s, dtype=np.float64), np.asarray(backward_s, dtype=np.float64)
    shape = _shape(schedule, forward, micro_batches)
    busy = passes_of_stage(schedule, micro_batches) * (forward.sum(axis=1) + backward.sum(axis=1))
    if shape.schedule == "dualpipe":
        return np.asarray(busy.max(axis=0))
    others = forward[:, 0] if shape.schedule == "zb-h1" else forward[:, 0] + backward[:, 0]
    return np.asarray((before(others) + busy).max(axis=0))


def _with_and_without_transfers(shape: Shape, candidates: Candidates) -> tuple[Paths, FloatArray]:
    """The longest paths, and their seconds where messages take no time."""
    form = FORMS[shape.schedule]
    if not candidates.transfers_s.any():
        paths = form(shape, candidates)
        return paths, paths.longest_s
    both, count = form(shape, candidates.with_and_without_transfers()), candidates.transfers_s.shape[1]
    return Paths(longest_s=both.longest_s[:count], by_stage_s=both.by_stage_s[:, :count]), both.longest_s[count:]


@lru_cache(maxsize=4096)
def flying_micro_batches(schedule: ScheduleName, stages: int, chunks: int, micro_batches: int) -> FloatArray:
    """Return how many micro-batches each stage's chunks keep at most, (stages, chunks): `in_flight` of all stages."""
    flying = np.array(
        [
            in_flight(schedule, stage=stage, stages=stages, chunks=chunks, micro_batches=micro_batches)
            for stage in range(stages)
        ]
    )
    flying.setflags(write=False)
    return flying


def _shape(schedule: ScheduleName, times_s: FloatArray, micro_batches: int) -> Shape:
    stages, chunks, _ = times_s.shape
    return shape_of(schedule, stages, chunks, micro_batches)


def passes_of_stage(schedule: ScheduleName, micro_batches: int) -> float:
    """Return how often a stage does each of its chunks' passes: each micro-batch of dualpipe comes by one of two."""
    return micro_batches / (2 if schedule == "dualpipe" else 1)
