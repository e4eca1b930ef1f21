"""How much the stages of a pipeline that share a machine slow each other: only those that are busy do.

Cores of one machine share its memory and its clock. A pass is priced as if the other stages of its pipeline idled; in a
slot of the schedule with k busy workers everything takes s(k) times as long as alone. The schedule in seconds of a
lone worker has T seconds, in which the workers of a machine are busy W worker-seconds, W / T of them on average, so

    iteration = sum over slots of (seconds alone) s(busy workers) = T s(W / T)    where s is a straight line,

as it is between 1 and the count that was measured. Ramps and the waiting of unequal stages count by themselves: W / T
of p equal stages with m micro-batches is p m / (m + p - 1). Where s bends between several measured counts this is
within 6% of the sum (`tests/estimator/schedules/test_crowding.py`). A machine with some of the stages alone is without
any busy one for a while: instead of T it has the busiest one's passes, and of each other one those of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from estimator.schedules.candidates import FloatArray
from estimator.schedules.closed_form import passes_of_stage, time_schedules
from profiles.cluster import DeviceSlot, most_on_one_node
from profiles.records import dataclass
from profiles.vocabulary import Device, ScheduleName


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """The workers of a pipeline: of each stage how many on each machine, (machines, stages), the most of its `own` on
    one, and its device, which knows how much busy neighbours slow it."""

    workers: tuple[tuple[int, ...], ...]
    own: tuple[int, ...]
    devices: tuple[Device, ...]


def crowd_of(stages: Sequence[tuple[Sequence[DeviceSlot], Device]]) -> Crowd | None:
    """Return the crowd of stages on these places of these devices; None where no stage can slow another: there is one
    alone, nobody measured contention, or no two share a machine."""
    if len(stages) == 1 or not any(device.contention for _, device in stages):
        return None
    nodes = dict.fromkeys((slot.site, slot.node) for slots, _ in stages for slot in slots)
    workers = tuple(
        tuple(sum((slot.site, slot.node) == node for slot in slots) for slots, _ in stages) for node in nodes
    )
    if all(sum(map(bool, on_node)) == 1 for on_node in workers):
        return None
    return Crowd(
        workers=workers,
        own=tuple(most_on_one_node(slots) for slots, _ in stages),
        devices=tuple(device for _, device in stages),
    )


def crowding(
    schedule: ScheduleName,
    forward_s: FloatArray,
    backward_s: FloatArray,
    weight_s: FloatArray,
    micro_batches: int,
    crowd: Crowd,
) -> FloatArray:
    """Return how many times as long each stage's passes take beside the others as with its own workers alone, at least
    1, (stages, n).

    Args:
        schedule: of all n pipelines.
        forward_s, backward_s, weight_s: seconds with a stage's own workers alone, stages x chunks x n, as
            `time_schedules` takes them.
        micro_batches: of all of them.
        crowd: who sits where.

    Messages between stages count as waiting: nobody is busy with them.
    """
    alone = np.array([device.slowdown(own) for device, own in zip(crowd.devices, crowd.own, strict=True)])
    forward_s, backward_s, weight_s = (seconds / alone[:, None, None] for seconds in (forward_s, backward_s, weight_s))
    nothing = np.zeros((len(crowd.own), forward_s.shape[2]))
    total_s = time_schedules(
        schedule, forward_s, backward_s, weight_s, nothing, overlapped=False, micro_batches=micro_batches
    )
    once_s = forward_s.sum(axis=1) + backward_s.sum(axis=1)
    busy_s = passes_of_stage(schedule, micro_batches) * once_s
    beside = np.zeros_like(once_s)
    for workers in np.array(crowd.workers):
        here = workers > 0
        some_s = total_s
        if not here.all():
            some_s = np.minimum(total_s, busy_s[here].max(axis=0) + once_s[here].sum(axis=0) - once_s[here].max(axis=0))
        among = workers @ busy_s / np.where(some_s > 0, some_s, 1.0)
        beside[here] = np.maximum(beside[here], among)
    slower = np.array([_slowdowns(device, among) for device, among in zip(crowd.devices, beside, strict=True)])
    return np.asarray(np.maximum(1.0, slower / alone[:, None]))


def _slowdowns(device: Device, workers: FloatArray) -> FloatArray:
    """`Device.slowdown` of many means."""
    counts, slowdowns = zip((1, 1.0), *device.contention, strict=True)
    return np.asarray(np.interp(workers, counts, slowdowns))
