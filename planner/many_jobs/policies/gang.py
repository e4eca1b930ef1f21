"""Gang admission: a job gets all its devices or none, and holds on to what comes free for a limited time."""

from __future__ import annotations

from typing import cast

from planner.many_jobs.jobs.records import Decision, Grant, JobState, View
from planner.many_jobs.scheduling.queueing import as_asked, waiting_by_pool


class Gang:
    """All or nothing with time-outs, in the manner of Kueue's `waitForPodsReady` with `blockAdmission` and its
    requeueing back-off, and of Slurm's holding of nodes for the job on top.

    Each pool has a queue, by priority, then by the time of (re)queueing. Whoever fits starts. The first that does not
    fit *holds* the pool: what comes free is kept for it, and nobody else starts there, one gang at a time, so that two
    never hold parts of what both need. If it has not got all within `hold_s`, it lets go and is queued again behind the
    others; for a while (`backoff_s`, doubled at each time-out up to `most_backoff_s`) it may start where it fits
    but not hold. Each time-out also doubles how long it may hold next, so that it gets its devices at last.

    Time-outs are noticed when the policy is next asked.
    """

    name = "gang"

    def __init__(self, *, hold_s: float = 300.0, backoff_s: float = 60.0, most_backoff_s: float = 3600.0) -> None:
        self._hold_s, self._backoff_s, self._most_backoff_s = float(hold_s), float(backoff_s), float(most_backoff_s)
        self._holds: dict[str, tuple[str, float]] = {}
        self._requeued: dict[str, tuple[int, float]] = {}

    def decide(self, view: View) -> Decision:
        """Each pool's holder first, then who fits."""
        for id_ in view.departed:
            self._requeued.pop(id_, None)
        grants = dict[str, Grant | None]()
        queues = waiting_by_pool(view)
        for pool in [pool for pool in self._holds if pool not in queues]:
            del self._holds[pool]
        for pool, queue in queues.items():
            self._serve(view, pool, queue, grants)
        return Decision(grants=grants)

    def _serve(self, view: View, pool: str, queue: list[JobState], grants: dict[str, Grant | None]) -> None:
        free = view.free.get(pool, 0)
        held = self._holds.pop(pool, None)
        holder = next((state for state in queue if held and state.job.id == held[0]), None)
        if held and holder:
            count = self._requeued.get(held[0], (0, 0.0))[0]
            if holder.job.devices > free:
                if view.now_s < held[1] + self._hold_s * 2.0**count:
                    self._holds[pool] = held
                    return
                self._requeued[held[0]] = (count + 1, view.now_s)
            else:
                free -= holder.job.devices
                grants[holder.job.id] = as_asked(holder.job)
        for state in sorted(queue, key=self._order):
            id_, devices = state.job.id, state.job.devices
            if id_ in grants:
                continue
            if devices <= free:
                free -= devices
                grants[id_] = as_asked(state.job)
            elif self._may_hold(id_, view.now_s):
                self._holds[pool] = (id_, view.now_s)
                return

    def _order(self, state: JobState) -> tuple[int, float, float]:
        queued_s = self._requeued.get(state.job.id, (0, state.job.submit_s))[1]
        return -state.job.priority, queued_s, state.job.submit_s

    def _may_hold(self, id_: str, now_s: float) -> bool:
        count, since_s = self._requeued.get(id_, (0, 0.0))
        return not count or now_s >= since_s + min(self._most_backoff_s, self._backoff_s * 2.0 ** (count - 1))

    def state(self) -> object:
        """Who holds which pool since when, and who was queued again how often and when."""
        return {
            "holds": {pool: list(held) for pool, held in self._holds.items()},
            "requeued": {id_: list(entry) for id_, entry in self._requeued.items()},
        }

    def restore(self, state: object) -> None:
        """What `state` gave."""
        held = cast("dict[str, dict[str, list[object]]]", state)
        self._holds = {pool: (cast("str", at[0]), cast("float", at[1])) for pool, at in held["holds"].items()}
        self._requeued = {id_: (cast("int", at[0]), cast("float", at[1])) for id_, at in held["requeued"].items()}
