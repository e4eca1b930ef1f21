"""First come, first served: a job starts with what it asked for when all before it have started."""

from __future__ import annotations

from planner.many_jobs.jobs.records import Decision, Grant, Stateless, View, grant
from planner.many_jobs.scheduling.queueing import can_run


class Fcfs(Stateless):
    """Strict order of arrival; nobody overtakes (Kubernetes' and Yarn's default, Crius section 8.1).

    A queue for each pool, as partitions are; `one_queue`: one for all pools, so that a job that waits for one pool
    holds up whoever wants another. Jobs that cannot run now even on an empty pool (larger than its working devices, no
    Cell that fits, pool gone) are passed over, since they would block all others for ever. Time: the jobs it starts,
    and those that it passes over.
    """

    name = "fcfs"

    def __init__(self, *, one_queue: bool = False) -> None:
        self.one_queue = one_queue

    def decide(self, view: View) -> Decision:
        """Start from the heads of the queues as long as devices last."""
        free, grants = dict(view.free), dict[str, Grant | None]()
        queues = {pool for pool, count in free.items() if count}
        for id_, state in view.waiting.items():
            if not queues:
                break
            job = state.job
            if job.pool not in queues and not self.one_queue:
                continue
            if not can_run(view, job):
                continue
            if free.get(job.pool, 0) < job.devices:
                if self.one_queue:
                    break
                queues.discard(job.pool)
                continue
            free[job.pool] -= job.devices
            grants[id_] = grant(job.pool, job.devices)
        return Decision(grants=grants)
