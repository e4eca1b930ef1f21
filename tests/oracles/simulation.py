"""A simulator that shares nothing with ours but the records: no heap, no versions, no sums kept up to date. It looks
for the next time at which anything happens by asking everything, and moves every job there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from planner.many_jobs.jobs.records import CellBook, Grant, Job, Policy, Pool, Reservation, Use
from profiles.cluster import SiteLink
from profiles.network import Network

Device = tuple[str, int, int]
Speed = Callable[[Job, Grant], float | None]


@dataclass(eq=False)
class NaiveJob:
    """A job with all its figures as of now."""

    job: Job
    number: int
    left: float
    grant: Grant | None = None
    devices: set[Device] = field(default_factory=set)
    granted_s: float | None = None
    ready_s: float = 0.0
    iteration_s: float = 0.0
    ran_s: float = 0.0
    attained_device_s: float = 0.0
    waited_s: float = 0.0
    restarts: int = 0
    failures: int = 0
    start_s: float | None = None
    end_s: float | None = None
    status: str = "unfinished"

    @property
    def remaining_iterations(self) -> float:
        return self.left

    @property
    def iteration_now_s(self) -> float | None:
        return None if self.grant is None else self.iteration_s

    @property
    def iteration_alone_s(self) -> float | None:
        return self.iteration_now_s

    @property
    def placement(self) -> Mapping[str, tuple[tuple[int, int], ...]]:
        pieces: dict[str, dict[int, int]] = {}
        for pool, node, index in self.devices:
            pieces.setdefault(pool, {})[node] = pieces.setdefault(pool, {}).get(node, 0) | 1 << index
        return {pool: tuple(sorted(nodes.items())) for pool, nodes in pieces.items()}


@dataclass
class NaiveNodes:
    """The nodes of a pool as the view has them."""

    counts: list[int]
    down: set[int]


@dataclass
class NaiveRun:
    """It is also the view."""

    pools: dict[str, Pool]
    cells: CellBook
    speed: Speed
    restart: float
    checkpoint_interval_s: float
    now_s: float = 0.0
    site_links: tuple[SiteLink, ...] = ()
    networks: Mapping[str, Network] = field(default_factory=dict)
    planned: Mapping[str, Job] = field(default_factory=dict)
    reservations: Mapping[str, Reservation] = field(default_factory=dict)
    waiting: dict[str, NaiveJob] = field(default_factory=dict)
    running: dict[str, NaiveJob] = field(default_factory=dict)
    arrived: list[str] = field(default_factory=list)
    departed: list[str] = field(default_factory=list)
    down: dict[tuple[str, int], float] = field(default_factory=dict)
    gone: list[NaiveJob] = field(default_factory=list)
    throughput_s: float = 0.0
    peak: float = 0.0
    held_s: float = 0.0
    placements: list[tuple[str, tuple[Device, ...]]] = field(default_factory=list)

    def iteration_time_s(self, job: Job, grant: Grant) -> float | None:
        return self.speed(job, grant)

    def use(self, job: Job, grant: Grant) -> Use | None:
        del job, grant
        return None

    def neighbours(self, id_: str) -> tuple[str, ...]:
        del id_
        return ()

    def restart_s(self, job: Job) -> float:
        del job
        return self.restart

    def predicted_duration_s(self, job: Job) -> float | None:
        del job
        return None

    def predicted_interval_s(self, job: Job) -> tuple[float, float] | None:
        del job
        return None

    @property
    def nodes(self) -> Mapping[str, NaiveNodes]:
        free = {name: [device[1] for device in self.unused(name)] for name in self.pools}
        return {
            name: NaiveNodes(
                counts=[free[name].count(node) for node in range(pool.nodes)],
                down={node for other, node in self.down if other == name},
            )
            for name, pool in self.pools.items()
        }

    @property
    def free(self) -> Mapping[str, int]:
        return {name: len(self.unused(name)) for name in self.pools}

    def unused(self, name: str) -> set[Device]:
        """Devices of a pool that work and that nobody holds."""
        pool = self.pools[name]
        all_ = {
            (name, node, index)
            for node in range(pool.nodes)
            if (name, node) not in self.down
            for index in range(pool.devices_per_node)
        }
        return all_ - {device for state in self.running.values() for device in state.devices}


def simulate_naively(
    jobs: Sequence[Job],
    pools: Sequence[Pool],
    cells: CellBook,
    policy: Policy,
    *,
    speed: Speed,
    restart_s: float,
    round_s: float | None = None,
    failures: Sequence[tuple[float, str, int, float]] = (),
    checkpoint_interval_s: float = math.inf,
) -> tuple[NaiveRun, dict[str, NaiveJob]]:
    """The run when nothing happens any more, and all jobs by id."""
    run = NaiveRun(
        pools={pool.name: pool for pool in pools},
        cells=cells,
        speed=speed,
        restart=restart_s,
        checkpoint_interval_s=checkpoint_interval_s,
    )
    future = sorted(jobs, key=lambda job: job.submit_s)
    states = {job.id: NaiveJob(job, number, job.iterations) for number, job in enumerate(future)}
    run.now_s = future[0].submit_s
    to_fail, idle, decided_s = sorted(failures), 0, -math.inf
    while (future or run.waiting or run.running) and idle < 50:
        times = [job.submit_s for job in future[:1]] + [failure[0] for failure in to_fail[:1]] + list(run.down.values())
        times += [state.ready_s + state.left * state.iteration_s for state in run.running.values()]
        if round_s is not None:
            since_s = run.now_s if run.waiting or run.running else min(times)
            number = math.ceil(since_s / round_s)
            times.append(round_s * (number + (number * round_s == decided_s)))
        if not times:
            break
        _move(run, min(times))
        happened = _end(run) + _repair(run)
        while to_fail and to_fail[0][0] == run.now_s:
            _, name, node, repair_s = to_fail.pop(0)
            _fail(run, name, node, repair_s)
            happened += 1
        while future and future[0].submit_s == run.now_s:
            job = future.pop(0)
            run.waiting[job.id] = states[job.id]
            run.arrived.append(job.id)
            happened += 1
        if happened if round_s is None else run.now_s % round_s == 0 and run.now_s != decided_s:
            decided_s = run.now_s
            if run.waiting or run.running or run.arrived or run.departed:
                idle = 0 if future or run.running else idle + 1
                _decide(run, policy, states)
    return run, states


def _move(run: NaiveRun, now_s: float) -> None:
    span_s = now_s - run.now_s
    rate = 0.0
    for state in run.waiting.values():
        state.waited_s += span_s
    for state in run.running.values():
        state.attained_device_s += span_s * len(state.devices)
        run.held_s += span_s * len(state.devices)
        ran_s = max(0.0, now_s - max(state.ready_s, run.now_s))
        state.ran_s += ran_s
        state.left -= ran_s / state.iteration_s
        asked_s = run.speed(state.job, Grant(parts=((state.job.pool, state.job.devices),)))
        assert asked_s is not None
        run.throughput_s += ran_s * asked_s / state.iteration_s
        state.ready_s = max(state.ready_s, now_s)
        rate += asked_s / state.iteration_s if ran_s else 0.0
    run.peak = max(run.peak, rate)
    run.now_s = now_s


def _end(run: NaiveRun) -> int:
    ended = [state for state in run.running.values() if state.left == 0 and state.ready_s <= run.now_s]
    for state in sorted(ended, key=lambda one: one.number):
        _leave(run, state, "finished")
    return len(ended)


def _leave(run: NaiveRun, state: NaiveJob, status: str) -> None:
    run.running.pop(state.job.id, None)
    run.waiting.pop(state.job.id, None)
    state.grant, state.devices, state.status, state.end_s = None, set(), status, run.now_s
    run.departed.append(state.job.id)
    run.gone.append(state)


def _repair(run: NaiveRun) -> int:
    whole = [node for node, at_s in run.down.items() if at_s == run.now_s]
    for name, node in whole:
        del run.down[name, node]
        pool = run.pools[name]
        run.pools[name] = replace(pool, devices=pool.devices + pool.devices_per_node)
    return len(whole)


def _fail(run: NaiveRun, name: str, node: int, repair_s: float) -> None:
    for state in list(run.running.values()):
        if any(device[:2] == (name, node) for device in state.devices):
            state.left += (state.ran_s % run.checkpoint_interval_s) / state.iteration_s
            state.failures += 1
            _suspend(run, state)
    run.down[name, node] = run.now_s + repair_s
    pool = run.pools[name]
    run.pools[name] = replace(pool, devices=pool.devices - pool.devices_per_node)


def _suspend(run: NaiveRun, state: NaiveJob) -> None:
    del run.running[state.job.id]
    state.grant, state.granted_s, state.devices = None, None, set()
    run.waiting[state.job.id] = state


def _decide(run: NaiveRun, policy: Policy, states: Mapping[str, NaiveJob]) -> None:
    decision = policy.decide(run)
    run.arrived, run.departed = [], []
    changes = []
    for id_, grant in decision.grants.items():
        state = states[id_]
        if grant is None:
            if state.grant is not None:
                _suspend(run, state)
                if id_ in decision.dropped:
                    del run.waiting[id_]
        elif not _same(run, state, grant):
            changes.append((state, grant))
    for id_ in decision.dropped:
        if id_ in run.running:
            _suspend(run, states[id_])
    for id_ in decision.dropped:
        _leave(run, states[id_], "dropped")
    for state, grant in changes:
        run.waiting.pop(state.job.id, None)
        run.running.pop(state.job.id, None)
        run.running[state.job.id] = state  # it holds what it keeps while the others are placed
        state.devices = _kept(state, grant)
        state.grant = grant
    for state, grant in sorted(changes, key=lambda change: -change[1].devices):
        _place(run, state, grant)
        run.running[state.job.id] = run.running.pop(state.job.id)


def _same(run: NaiveRun, state: NaiveJob, grant: Grant) -> bool:
    """Equal, or one says the stages that the other leaves to the fastest Cell."""
    if state.grant is None or state.grant.parts != grant.parts:
        return False
    stages = [state.grant.stages, grant.stages]
    if len(grant.parts) == 1:
        best = run.cells.best(state.job.workload, *grant.parts[0])
        assert best is not None
        stages = [one or best.stages for one in stages]
    return stages[0] == stages[1]


def _kept(state: NaiveJob, grant: Grant) -> set[Device]:
    kept: set[Device] = set()
    for name, count in grant.parts:
        own = [device for device in state.devices if device[0] == name]
        if count > len(own):
            continue
        on_node = {device[1]: sum(other[1] == device[1] for other in own) for device in own}
        kept |= set(sorted(own, key=lambda device: (-on_node[device[1]], device[1], device[2]))[:count])
    return kept


def _place(run: NaiveRun, state: NaiveJob, grant: Grant) -> None:
    for name, count in grant.parts:
        lacking = count - sum(device[0] == name for device in state.devices)
        while lacking:
            unused = sorted(run.unused(name))
            free = {node: [one for one in unused if one[1] == node] for node in {one[1] for one in unused}}
            fitting = [node for node in free if len(free[node]) >= lacking]
            if fitting:
                node = min(fitting, key=lambda node: (len(free[node]), node))
            else:
                node = min(free, key=lambda node: (-len(free[node]), node))
            state.devices |= set(free[node][:lacking])
            lacking -= len(free[node][:lacking])
    iteration_s = run.speed(state.job, grant)
    assert iteration_s is not None
    run.placements.append((state.job.id, tuple(sorted(state.devices))))
    state.granted_s, state.iteration_s, state.ran_s = run.now_s, iteration_s, 0.0
    state.ready_s = run.now_s
    if state.start_s is None:
        state.start_s = run.now_s
    else:
        state.restarts += 1
        state.ready_s += run.restart
