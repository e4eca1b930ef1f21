"""Priorities with preemption: who is more important takes devices from who is less."""

from __future__ import annotations

from planner.many_jobs.jobs.records import Decision, Grant, JobState, Stateless, View
from planner.many_jobs.scheduling.queueing import as_asked, running_on, waiting_by_pool


class PriorityPreemption(Stateless):
    """Higher `priority` first, then order of arrival; strictly lower priorities are suspended to make room (Slurm's
    `preempt/partition_prio` with requeueing, Kubernetes' PriorityClass).

    Each pool has a queue of its own. The victims are the least important first, of those the last to have started (the
    least work at stake); whoever turns out not to be needed is spared, the most important first. Where even all lesser
    jobs do not make room, the job waits and, unless `backfill`, so do all behind it.

    Args:
        preempt: False: the order alone, nobody is suspended.
        backfill: whether jobs behind one that does not fit may start.
        least_run_s: a job is safe from preemption for so long after it got its devices.
    """

    name = "priority"

    def __init__(self, *, preempt: bool = True, backfill: bool = False, least_run_s: float = 0.0) -> None:
        self._preempt, self._backfill, self._least_run_s = preempt, backfill, float(least_run_s)

    def decide(self, view: View) -> Decision:
        """Each pool's queue from the most important job down."""
        grants = dict[str, Grant | None]()
        queues = {pool: queue for pool, queue in waiting_by_pool(view).items() if queue}
        running = running_on(view, queues) if self._preempt else {pool: [] for pool in queues}
        for pool, queue in queues.items():
            free = view.free.get(pool, 0)
            lesser = sorted(running[pool], key=lambda entry: least_first(entry[0]))
            for state in sorted(queue, key=lambda state: -state.job.priority):
                job = state.job
                taken = victims(free, job.devices, [entry for entry in lesser if self._may_take(view, entry[0], state)])
                if taken is None:
                    if self._backfill:
                        continue
                    break
                for victim, count in taken:
                    grants[victim.job.id] = None
                    free += count
                lesser = [entry for entry in lesser if entry[0].job.id not in grants]
                free -= job.devices
                grants[job.id] = as_asked(job)
        return Decision(grants=grants)

    def _may_take(self, view: View, victim: JobState, by: JobState) -> bool:
        safe = victim.granted_s is not None and view.now_s < victim.granted_s + self._least_run_s
        return victim.job.priority < by.job.priority and not safe


def least_first(state: JobState) -> tuple[int, float, str]:
    """Return what running jobs are sorted by: the least important first, of those the last to have started."""
    return state.job.priority, -(state.granted_s or 0.0), state.job.id


def victims(free: int, need: int, candidates: list[tuple[JobState, int]]) -> list[tuple[JobState, int]] | None:
    """Of the candidates, least important first, those whose devices make `need` free together with `free`; no one of
    them could be spared. None where all together do not suffice."""
    chosen = list[tuple[JobState, int]]()
    for entry in candidates:
        if free >= need:
            break
        chosen.append(entry)
        free += entry[1]
    if free < need:
        return None
    for entry in reversed(tuple(chosen)):
        if free - entry[1] >= need:
            chosen.remove(entry)
            free -= entry[1]
    return chosen
