"""EASY backfill: whoever does not delay the head of the queue may overtake it."""

from __future__ import annotations

from collections.abc import Sequence

from planner.many_jobs.jobs.records import Decision, Grant, JobState, Stateless, View
from planner.many_jobs.scheduling.queueing import as_asked, expected_remaining_s, running_on, waiting_by_pool


class EasyBackfill(Stateless):
    """Aggressive backfilling with one reservation (Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995; the rule as
    in Mu'alem and Feitelson, TPDS 2001), the heart of what Slurm and Maui do.

    Each pool has a queue of its own, in order of arrival. Jobs start from its head as long as devices last. The first
    that does not fit gets a reservation at the *shadow time*, when by the expected ends of the running jobs enough
    devices are free; what is free then beyond its need are the *extra* devices. A later job may start if devices are
    free and it either ends by the shadow time or takes only extra devices. With exact expectations the head is never
    later than it would be if nobody overtook it.

    Expected ends come from the predictor of the view, else from the duration that the job came with, less the share of
    the work that is done; a job that has outlived its prediction thus gets a later end at every look. A job larger than
    what works of its pool now has no reservation, and gets one once its nodes are repaired.

    Args:
        depth: how many jobs behind the head are looked at (Slurm's `bf_max_job_test`); None: all.
    """

    name = "easy-backfill"

    def __init__(self, *, depth: int | None = None) -> None:
        self._depth = depth

    def decide(self, view: View) -> Decision:
        """Start from each pool's head, then whoever does not delay it."""
        grants, blocked = dict[str, Grant | None](), dict[str, tuple[list[JobState], int]]()
        for pool, queue in waiting_by_pool(view, view.free).items():
            free, position = view.free[pool], 0
            while position < len(queue) and queue[position].job.devices <= free:
                free -= queue[position].job.devices
                grants[queue[position].job.id] = as_asked(queue[position].job)
                position += 1
            if free > 0 and position + 1 < len(queue):
                blocked[pool] = (queue, position)
        running = running_on(view, blocked)
        for pool, (queue, head) in blocked.items():
            ends = [(expected_remaining_s(view, state), count) for state, count in running[pool]]
            ends += [(expected_remaining_s(view, state), state.job.devices) for state in queue[:head]]
            free = view.free[pool] - sum(state.job.devices for state in queue[:head])
            later = queue[head + 1 :] if self._depth is None else queue[head + 1 : head + 1 + self._depth]
            lengths = [(expected_remaining_s(view, state), state.job.devices) for state in later]
            for index in backfilled(free, queue[head].job.devices, ends, lengths):
                grants[later[index].job.id] = as_asked(later[index].job)
        return Decision(grants=grants)


def shadow(free: int, need: int, ends: Sequence[tuple[float, int]]) -> tuple[float, int]:
    """When `need` devices are free, as seconds from now, and how many more than that then are.

    `free` are free now, and `ends` (seconds from now, devices) become so. Infinity and 0 where it never happens.
    """
    ordered = sorted(ends)
    for index, (end_s, count) in enumerate(ordered):
        free += count
        if free >= need and (index + 1 == len(ordered) or ordered[index + 1][0] > end_s):
            return end_s, free - need
    return float("inf"), 0


def backfilled(
    free: int, need: int, ends: Sequence[tuple[float, int]], later: Sequence[tuple[float, int]]
) -> list[int]:
    """Which of the `later` jobs (seconds, devices), in that order, start now without delaying a head that needs `need`
    devices, more than the `free` ones."""
    shadow_s, extra = shadow(free, need, ends)
    chosen = list[int]()
    for index, (length_s, count) in enumerate(later):
        if free == 0:
            break
        if count > free or (length_s > shadow_s and count > extra):
            continue
        free -= count
        if length_s > shadow_s:
            extra -= count
        chosen.append(index)
    return chosen
