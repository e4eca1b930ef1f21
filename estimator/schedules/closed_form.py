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

The cost is of the order of stages squared where paths from every stage to every other are compared: 0.1 to 0.6 ms for 8
stages on a server's core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from estimator.pricing.recipe import ScheduleName
from estimator.schedules.dualpipe import dualpipe_time
from estimator.schedules.interleaved import interleaved_time
from estimator.schedules.one_chunk import one_chunk_time
from estimator.schedules.orders import Shape, shape_of
from estimator.schedules.records import ScheduleTime, StageTimes, Transfers, check_counts

LongestPath = Callable[[Shape, Sequence[StageTimes], Transfers], tuple[float, int]]

FORMS: dict[ScheduleName, LongestPath] = {
    "gpipe": one_chunk_time,
    "1f1b": one_chunk_time,
    "zb-h1": one_chunk_time,
    "interleaved": interleaved_time,
    "dualpipe": dualpipe_time,
}


def time_schedule(
    schedule: ScheduleName, stages: Sequence[StageTimes], transfers: Transfers, micro_batches: int
) -> ScheduleTime:
    """Seconds of one iteration and where they go.

    `bottleneck` is the stage on which the longest path stays, the first of equally long ones. `transfer_s` is what the
    iteration is longer than the same one without transfers. Raises ValueError where the schedule cannot be run with
    these counts (`schedule_problem`).

    >>> one = StageTimes(forward_s=(1,), backward_s=(2,), weight_s=(1,))
    >>> time_schedule("1f1b", [one] * 4, Transfers(forward_s=(0, 0, 0, 0)), 8)
    ScheduleTime(bottleneck=0, busy_s=24.0, transfer_s=0.0, bubble_s=9.0)
    """
    chunks = check_counts(stages, transfers)
    shape = shape_of(schedule, len(stages), chunks, micro_batches)
    # Each micro-batch of dualpipe comes by one of a stage's two chunks.
    passes = micro_batches / (2 if schedule == "dualpipe" else 1)
    busy_s = [passes * stage.busy_s for stage in stages]
    form = FORMS[shape.schedule]
    total_s, bottleneck = form(shape, stages, transfers)
    free_s = total_s
    if any(transfers.forward_s):
        free_s, _ = form(shape, stages, Transfers(forward_s=(0.0,) * len(stages), overlapped=transfers.overlapped))
    free_s = max(free_s, *busy_s)
    total_s = max(total_s, free_s)
    return ScheduleTime(
        bottleneck=bottleneck,
        busy_s=busy_s[bottleneck],
        transfer_s=total_s - free_s,
        bubble_s=free_s - busy_s[bottleneck],
    )
