"""`time_schedule` of many pipelines of one shape at once, for a search that compares hundreds of thousands.

The forms are those of `one_chunk`, `interleaved` and `dualpipe`, which say where they come from; here every number of
theirs is an array over the pipelines. Where sums are taken in another order, results differ by rounding alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from estimator.pricing.recipe import ScheduleName
from estimator.schedules.bulk_dualpipe import dualpipe_times
from estimator.schedules.bulk_interleaved import interleaved_times
from estimator.schedules.bulk_one_chunk import one_chunk_times
from estimator.schedules.bulk_records import Candidates, FloatArray, before, check_candidates
from estimator.schedules.orders import Shape, shape_of

LongestPaths = Callable[[Shape, Candidates], FloatArray]

FORMS: dict[ScheduleName, LongestPaths] = {
    "gpipe": one_chunk_times,
    "1f1b": one_chunk_times,
    "zb-h1": one_chunk_times,
    "interleaved": interleaved_times,
    "dualpipe": dualpipe_times,
}


def time_schedules(
    schedule: ScheduleName,
    forward_s: npt.ArrayLike,
    backward_s: npt.ArrayLike,
    weight_s: npt.ArrayLike,
    transfers_s: npt.ArrayLike,
    *,
    overlapped: bool,
    micro_batches: int,
) -> FloatArray:
    """Seconds of one iteration of each of n pipelines: `time_schedule(...).total_s`, up to rounding.

    Args:
        schedule: of all of them.
        forward_s, backward_s, weight_s: stages x chunks x n, as in `StageTimes`.
        transfers_s: stages x n, as `Transfers.forward_s`.
        overlapped: as in `Transfers`, of all of them.
        micro_batches: of all of them.

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
    longest_s = _passes(shape) * candidates.stage_s.max(axis=0)
    form = FORMS[shape.schedule]
    if not candidates.transfers_s.any():
        return np.asarray(np.maximum(longest_s, form(shape, candidates)))
    found = form(shape, candidates.with_and_without_transfers()).reshape(2, -1)
    return np.asarray(np.maximum(longest_s, found.max(axis=0)))


def lower_bounds(
    schedule: ScheduleName, forward_s: npt.ArrayLike, backward_s: npt.ArrayLike, micro_batches: int
) -> FloatArray:
    """Seconds that `time_schedules` never falls short of, whatever the transfers and the weight gradients: cheap.

    Each stage does all its work, and that of the first micro-batch before it and of the last one after it is left:

        max_i  sum_(j<i) (f_j + b_j) + m (busy seconds of stage i)

    with f_j and b_j of the first chunk; without b_j for zb-h1, which may put its weight gradients off, and nothing
    before or after for dualpipe, whose stages all start at once. What equal stages take, where messages take no time,
    for gpipe, 1f1b and interleaved. Arrays are stages x chunks x n.
    """
    forward, backward = np.asarray(forward_s, dtype=np.float64), np.asarray(backward_s, dtype=np.float64)
    shape = _shape(schedule, forward, micro_batches)
    busy = _passes(shape) * (forward.sum(axis=1) + backward.sum(axis=1))
    if shape.schedule == "dualpipe":
        return np.asarray(busy.max(axis=0))
    others = forward[:, 0] if shape.schedule == "zb-h1" else forward[:, 0] + backward[:, 0]
    return np.asarray((before(others) + busy).max(axis=0))


def _shape(schedule: ScheduleName, times_s: FloatArray, micro_batches: int) -> Shape:
    stages, chunks, _ = times_s.shape
    return shape_of(schedule, stages, chunks, micro_batches)


def _passes(shape: Shape) -> float:
    """Each micro-batch of dualpipe comes by one of a stage's two chunks."""
    return shape.micro_batches / (2 if shape.schedule == "dualpipe" else 1)
