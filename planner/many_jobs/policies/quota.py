"""Quotas for virtual clusters, which lend what they do not use and take it back when they need it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import cast

from planner.many_jobs.jobs.records import Decision, Grant, JobState, View
from planner.many_jobs.policies.priority import least_first, victims
from planner.many_jobs.scheduling.queueing import as_asked, can_run, expected_duration_s, running_on
from planner.many_jobs.scheduling.quotas import Queue, demand_quotas, load_queues, read_queues

Usage = dict[str, dict[str, int]]


class Quota:
    """Queues with nominal quotas in cohorts, as Kueue's ClusterQueues (`reclaimWithinCohort: Any`, BestEffortFIFO).

    A job's queue is its virtual cluster. In order of priority, then of waiting, each job starts that keeps its queue
    within its nominal quota; where the devices are lent out, running jobs of queues of its cohort that are above
    theirs are suspended, the least important and last started first, never below their owner's quota. After that, jobs
    that exceed their queue's quota start on what is free, while the cohort as a whole stays within its quotas and the
    queue within its borrowing limit. Whoever does not fit is passed over.

    Without `quotas` each pool is split among the virtual clusters in proportion to the device-seconds that they have
    submitted so far (largest remainders), and split anew every `requota_s`, or when a new one appears.

    Args:
        quotas: a mapping, or the path of a YAML or JSON file, see `planner.many_jobs.scheduling.quotas.read_queues`.
        borrowing: False: nobody exceeds a nominal quota.
        reclaim: False: what is lent comes back only when its job ends.
        requota_s: see above.
    """

    name = "quota"

    def __init__(
        self,
        *,
        quotas: Mapping[str, object] | str | None = None,
        borrowing: bool = True,
        reclaim: bool = True,
        requota_s: float = 86400.0,
    ) -> None:
        self._fixed = load_queues(quotas) if isinstance(quotas, str) else None
        if quotas is not None and self._fixed is None:
            self._fixed = read_queues(cast("Mapping[str, object]", quotas), where="quotas")
        self._borrowing, self._reclaim, self._requota_s = borrowing, reclaim, float(requota_s)
        self._demand: dict[str, dict[str, float]] = {}
        self._split: dict[str, Queue] = {}
        self._split_s: float | None = None

    def decide(self, view: View) -> Decision:
        """First within quotas, then by borrowing."""
        queues = self.queues(view)
        running = running_on(view, view.pools)
        usage: Usage = {pool: defaultdict(int) for pool in view.pools}
        for pool, entries in running.items():
            for state, count in entries:
                usage[pool][state.job.virtual_cluster] += count
        free, grants = dict(view.free), dict[str, Grant | None]()
        ordered = sorted(view.waiting.values(), key=lambda state: -state.job.priority)
        above: list[JobState] = []
        for state in ordered:
            job = state.job
            if not can_run(view, job):
                continue
            queue = queues.get(job.virtual_cluster, Queue())
            if usage[job.pool][job.virtual_cluster] + job.devices > queue.nominal(job.pool):
                above.append(state)
                continue
            lent = free[job.pool] < job.devices and self._reclaim
            taken = (
                self._lent(queues, running[job.pool], usage[job.pool], state, free[job.pool], grants) if lent else []
            )
            if taken is None or (free[job.pool] < job.devices and not taken):
                continue
            for victim, count in taken:
                grants[victim.job.id] = None
                usage[job.pool][victim.job.virtual_cluster] -= count
                free[job.pool] += count
            _start(state, free, usage, grants)
        for state in above if self._borrowing else ():
            if free[state.job.pool] >= state.job.devices and _may_borrow(queues, usage, state):
                _start(state, free, usage, grants)
        return Decision(grants=grants)

    def _lent(
        self,
        queues: Mapping[str, Queue],
        running: list[tuple[JobState, int]],
        usage: Mapping[str, int],
        state: JobState,
        free: int,
        grants: Mapping[str, Grant | None],
    ) -> list[tuple[JobState, int]] | None:
        """Whom to suspend so that the job fits; None where what is lent does not suffice."""
        job = state.job
        cohort = queues.get(job.virtual_cluster, Queue()).cohort
        over = {
            name: used - queues.get(name, Queue()).nominal(job.pool)
            for name, used in usage.items()
            if name != job.virtual_cluster and queues.get(name, Queue()).cohort == cohort
        }
        candidates = list[tuple[JobState, int]]()
        for entry in sorted(running, key=lambda entry: least_first(entry[0])):
            owner = entry[0].job.virtual_cluster
            if over.get(owner, 0) > 0 and entry[0].job.id not in grants:
                over[owner] -= entry[1]
                candidates.append(entry)
        return victims(free, job.devices, candidates)

    def queues(self, view: View) -> Mapping[str, Queue]:
        """The queues by virtual cluster: those given, else split by demand so far."""
        if self._fixed is not None:
            return self._fixed
        fresh = False
        for id_ in view.arrived:
            state = view.waiting.get(id_) or view.running.get(id_)
            if state is not None:
                demand = self._demand.setdefault(state.job.pool, {})
                fresh |= state.job.virtual_cluster not in demand
                area = state.job.devices * max(1.0, expected_duration_s(view, state.job))
                demand[state.job.virtual_cluster] = demand.get(state.job.virtual_cluster, 0.0) + area
        if fresh or self._split_s is None or view.now_s >= self._split_s + self._requota_s:
            sizes = {pool.name: pool.nodes * pool.devices_per_node for pool in view.pools.values()}
            self._split, self._split_s = demand_quotas(sizes, self._demand), view.now_s
        return self._split

    def state(self) -> object:
        """The demand so far, and the split in force."""
        split = {name: dict(queue.devices) for name, queue in self._split.items()}
        return {"demand": self._demand, "split": split, "split_s": self._split_s}

    def restore(self, state: object) -> None:
        """What `state` gave."""
        held = cast("dict[str, object]", state)
        self._demand = cast("dict[str, dict[str, float]]", held["demand"])
        split = cast("dict[str, dict[str, int]]", held["split"])
        self._split = {name: Queue(devices=devices) for name, devices in split.items()}
        self._split_s = cast("float | None", held["split_s"])


def _may_borrow(queues: Mapping[str, Queue], usage: Usage, state: JobState) -> bool:
    """Whether the queue's limit and the cohort's quotas leave room."""
    job = state.job
    asking = queues.get(job.virtual_cluster, Queue())
    used = usage[job.pool]
    limit = asking.borrowing_limit
    if limit is not None and used[job.virtual_cluster] + job.devices > asking.nominal(job.pool) + limit:
        return False
    names = {name for name, queue in queues.items() if queue.cohort == asking.cohort}
    names |= {name for name in used if queues.get(name, Queue()).cohort == asking.cohort}
    nominal = sum(queues[name].nominal(job.pool) for name in names if name in queues)
    return sum(used[name] for name in names if name in used) + job.devices <= nominal


def _start(state: JobState, free: dict[str, int], usage: Usage, grants: dict[str, Grant | None]) -> None:
    job = state.job
    grants[job.id] = as_asked(job)
    free[job.pool] -= job.devices
    usage[job.pool][job.virtual_cluster] += job.devices
