"""What policies share: who could run where, how long jobs are expected to take, and what changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from planner.many_jobs.jobs.records import Decision, Grant, Job, JobState, View, grant


def can_run(view: View, job: Job, pool: str | None = None, devices: int | None = None) -> bool:
    """Return whether some Cell of the job fits on `devices` of `pool` (None: what it asked for), were all that work
    free."""
    name, count = pool or job.pool, devices or job.devices
    there = view.pools.get(name)
    return there is not None and count <= there.devices and view.cells.best(job.workload, name, count) is not None


def as_asked(job: Job) -> Grant:
    """Return the grant that the job asked for."""
    return grant(job.pool, job.devices)


def waiting_by_pool(view: View, free: Mapping[str, int] | None = None) -> dict[str, list[JobState]]:
    """Return the waiting jobs by the pool that they asked for, in the order in which they began to wait, less those
    that cannot run there now. With `free`, pools without a free device are left out."""
    queues: dict[str, list[JobState]] = {name: [] for name in view.pools if free is None or free.get(name, 0) > 0}
    for state in view.waiting.values():
        queue = queues.get(state.job.pool)
        if queue is not None and can_run(view, state.job):
            queue.append(state)
    return queues


def running_on(view: View, pools: Iterable[str]) -> dict[str, list[tuple[JobState, int]]]:
    """Return the running jobs that hold devices of these pools, with how many."""
    holders: dict[str, list[tuple[JobState, int]]] = {pool: [] for pool in pools}
    for state in view.running.values():
        for pool, count in state.grant.parts if state.grant else ():
            if pool in holders:
                holders[pool].append((state, count))
    return holders


def expected_duration_s(view: View, job: Job) -> float:
    """Return the seconds that the job should take on what it asked for: the predictor's, else what it was submitted
    with."""
    predicted = view.predicted_duration_s(job)
    return job.duration_s if predicted is None else predicted


def expected_remaining_s(view: View, state: JobState) -> float:
    """Return the seconds until the job should end, on what it asked for from now on.

    The expected duration times the share of the iterations that is left, plus what is left of a restart: all of it
    for one that waits and has run, the rest of it for one that runs and has restarted.
    """
    job = state.job
    left = min(1.0, state.remaining_iterations / job.iterations) if job.iterations > 0 else 0.0
    work_s = expected_duration_s(view, job) * left
    if state.granted_s is None:
        return work_s + (view.restart_s(job) if state.attained_device_s > 0 else 0.0)
    if state.restarts:
        return work_s + max(0.0, state.granted_s + view.restart_s(job) - view.now_s)
    return work_s


def decision_for(view: View, wanted: Mapping[str, Grant], dropped: Iterable[str] = ()) -> Decision:
    """Return what must change so that exactly the jobs in `wanted` run, each with that grant; an equal one changes
    nothing."""
    gone = tuple(dropped)
    changes: dict[str, Grant | None] = {}
    for id_, state in view.running.items():
        want = wanted.get(id_)
        if id_ not in gone and (want is None or state.grant is None or want.parts != state.grant.parts):
            changes[id_] = want
    changes |= {id_: want for id_, want in wanted.items() if id_ in view.waiting and id_ not in gone}
    return Decision(grants=changes, dropped=gone)


def take_in_order(view: View, ordered: Iterable[JobState]) -> dict[str, Grant]:
    """Return grants as asked for whoever still fits, in this order; those that do not fit are passed over."""
    left = {name: pool.devices for name, pool in view.pools.items()}
    grants = dict[str, Grant]()
    for state in ordered:
        job = state.job
        if left.get(job.pool, 0) >= job.devices and can_run(view, job):
            left[job.pool] -= job.devices
            grants[job.id] = as_asked(job)
    return grants


class Rounds:
    """The base of policies that think in rounds, and their clock: a full decision once `round_s` have passed since the
    last, and in between only free devices are handed out. `round_s` 0: every call is a round."""

    def __init__(self, round_s: float) -> None:
        self.round_s = float(round_s)
        self.last_s: float | None = None

    def state(self) -> object:
        """When the last round was."""
        return self.last_s

    def restore(self, state: object) -> None:
        """Take over what `state` gave."""
        assert state is None or isinstance(state, float | int)
        self.last_s = state

    def due(self, now_s: float) -> bool:
        """Whether a round starts now; if so it is noted. A microsecond is forgiven, for clocks that add up rounds."""
        if self.last_s is not None and now_s < self.last_s + self.round_s - 1e-6:
            return False
        self.last_s = now_s
        return True
