"""Views made by hand, for tests of policies without a simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from planner.many_jobs.jobs.records import Decision, Grant, Job, NodeView, Pool, Reservation, Use
from profiles.cluster import SiteLink
from profiles.network import Network
from tests.scheduling_examples import FakeCells


@dataclass(kw_only=True)
class HandState:
    """A `JobState` with figures as given."""

    job: Job
    grant: Grant | None = None
    remaining_iterations: float = 0.0
    attained_device_s: float = 0.0
    waited_s: float = 0.0
    granted_s: float | None = None
    restarts: int = 0
    placement: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    iteration_now_s: float | None = None
    iteration_alone_s: float | None = None


def waits(job: Job, *, attained_device_s: float = 0.0, waited_s: float = 0.0, restarts: int = 0) -> HandState:
    """A job that waits, all of its work before it."""
    return HandState(
        job=job,
        remaining_iterations=job.iterations,
        attained_device_s=attained_device_s,
        waited_s=waited_s,
        restarts=restarts,
    )


def runs(
    job: Job, *, pool: str | None = None, devices: int | None = None, granted_s: float = 0.0, left: float = 1.0
) -> HandState:
    """A job that runs, as it asked unless said otherwise, with that share of its work left."""
    return HandState(
        job=job,
        grant=Grant(parts=((pool or job.pool, devices or job.devices),)),
        granted_s=granted_s,
        remaining_iterations=left * job.iterations,
    )


@dataclass(kw_only=True)
class HandView:
    """A `View` of the given states; `free` is counted from who runs, `arrived` is whoever waits unless given."""

    states: Sequence[HandState]
    pools: Mapping[str, Pool]
    cells: FakeCells
    now_s: float = 0.0
    restart: float = 0.0
    predicted: Mapping[str, float] = field(default_factory=dict)
    arrived: Sequence[str] = ()
    departed: Sequence[str] = ()
    site_links: tuple[SiteLink, ...] = ()
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    networks: Mapping[str, Network] = field(default_factory=dict)
    planned: Mapping[str, Job] = field(default_factory=dict)
    reservations: Mapping[str, Reservation] = field(default_factory=dict)
    uses: Callable[[Job, Grant], Use | None] = lambda _job, _grant: None

    @property
    def waiting(self) -> dict[str, HandState]:
        return {state.job.id: state for state in self.states if state.grant is None}

    @property
    def running(self) -> dict[str, HandState]:
        return {state.job.id: state for state in self.states if state.grant is not None}

    @property
    def free(self) -> dict[str, int]:
        left = {name: pool.devices for name, pool in self.pools.items()}
        for state in self.running.values():
            for pool, count in state.grant.parts if state.grant else ():
                left[pool] -= count
        return left

    def neighbours(self, id_: str) -> tuple[str, ...]:
        del id_
        return ()

    def iteration_time_s(self, job: Job, grant: Grant) -> float | None:
        best = self.cells.best(job.workload, *grant.parts[0])
        return None if best is None else best.iteration_time_s

    def use(self, job: Job, grant: Grant) -> Use | None:
        return self.uses(job, grant)

    def restart_s(self, job: Job) -> float:
        del job
        return self.restart

    def predicted_duration_s(self, job: Job) -> float | None:
        return self.predicted.get(job.id)

    def predicted_interval_s(self, job: Job) -> tuple[float, float] | None:
        del job
        return None


def apply(view: HandView, decision: Decision) -> None:
    """Carry a decision out on the view's states; AssertionError where it cannot be."""
    by_id = {state.job.id: state for state in view.states}
    for id_, grant in decision.grants.items():
        state = by_id[id_]
        if grant is None:
            assert state.grant is not None
            state.granted_s = None
        else:
            assert view.iteration_time_s(state.job, grant) is not None
            state.granted_s = view.now_s
        state.grant = grant
    view.states = [state for state in view.states if state.job.id not in decision.dropped]
    assert all(count >= 0 for count in view.free.values())


def started(decision: Decision) -> set[str]:
    """Who got devices."""
    return {id_ for id_, grant in decision.grants.items() if grant is not None}


def suspended(decision: Decision) -> set[str]:
    """Who lost all."""
    return {id_ for id_, grant in decision.grants.items() if grant is None}
