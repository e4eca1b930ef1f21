"""The simulator: jobs arrive, a policy decides, devices are placed, iterations pass, nodes fail, jobs end.

Between two events nothing changes, so a job's remaining iterations fall on a straight line and its end is known; a
change of its grant makes the event of that end stale. All events of one time are taken together, in the order ends,
repairs, failures, arrivals, moves that the rule of placement proposes; then the policy decides once. With rounds it
decides at the multiples of the round while there are jobs, whatever happens in between.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from planner.many_jobs.jobs.records import CellBook, Job, Policy, Pool, grant
from planner.many_jobs.simulation.applying import (
    apply_decision,
    evict,
    fill_row,
    finish,
    give_up,
    keep_slices,
    produce,
)
from planner.many_jobs.simulation.checkpoint import CheckpointWriter, resume
from planner.many_jobs.simulation.failures import check_listed, up_time_s
from planner.many_jobs.simulation.moving import check_moving, move_jobs, next_moves_s
from planner.many_jobs.simulation.repricing import reprice
from planner.many_jobs.simulation.result import Result, make_result
from planner.many_jobs.simulation.run_state import END, FAIL, REPAIR, RESTARTED, RunState, first_multiple
from planner.many_jobs.simulation.seat_costs import count_seats
from planner.many_jobs.simulation.settings import IntervalPredictor, Settings
from planner.many_jobs.simulation.states import ActiveJob
from planner.many_jobs.simulation.totals import UNFINISHED
from planner.many_jobs.simulation.turns import count_violations
from planner.many_jobs.simulation.zones import next_in_calendar_s, turn_calendar, withdraw
from profiles.errors import InputError

STALLED_DECISIONS = 1000
"""A policy is asked so many times in a row, while no job makes progress and none will arrive, before it is said to
leave the rest waiting for ever."""

MOST_FAILURES = 10_000
"""A job whose nodes failed so often is given up: it would never end."""


def simulate(
    jobs: Sequence[Job],
    pools: Mapping[str, Pool] | Iterable[Pool],
    cells: CellBook,
    policy: Policy,
    *,
    settings: Settings | None = None,
) -> Result:
    """Run all jobs under the policy until none is left, and return what became of them.

    The same arguments give the same result, but for `Result.timing`. InputError where two jobs have one id, one asks
    for a pool that is not there, or the checkpoint is of another run; `settings.PolicyError` where the policy decides
    what cannot be; `settings.Interrupted` where `settings.stop` says so.
    """
    settings = settings or Settings()
    by_name = dict(pools) if isinstance(pools, Mapping) else {pool.name: pool for pool in pools}
    ordered = sorted(jobs, key=lambda job: job.submit_s)
    _check(ordered, by_name)
    check_moving(settings.placer, settings.defragment_s)
    run = RunState(ordered, by_name, cells, policy, settings)
    keeper = CheckpointWriter(run) if settings.checkpoint is not None else None
    if keeper is None or not resume(run):
        _plan_failures(run)
    _close_books(run, _run(run, keeper))
    return make_result(run)


def _check(jobs: Sequence[Job], pools: Mapping[str, Pool]) -> None:
    seen: set[str] = set()
    for job in jobs:
        if job.id in seen:
            raise InputError(where="jobs", key="id", found=f"{job.id} twice", expected="each id once")
        seen.add(job.id)
        if job.pool not in pools:
            raise InputError(where=f"job {job.id}", key="pool", found=job.pool, expected="one of " + ", ".join(pools))
        if not (job.iterations >= 0 and math.isfinite(job.iterations) and math.isfinite(job.submit_s)):
            stated = f"{job.iterations} iterations from {job.submit_s} s"
            raise InputError(where=f"job {job.id}", found=stated, expected="finite figures, iterations of 0 or more")
    for pool in pools.values():
        if pool.devices != pool.nodes * pool.devices_per_node:
            stated = f"{pool.devices} devices of {pool.nodes} nodes of {pool.devices_per_node}"
            raise InputError(where=f"pool {pool.name}", key="devices", found=stated, expected="all nodes to work")


def _plan_failures(run: RunState) -> None:
    failures = run.settings.failures
    if failures is None:
        return
    check_listed(failures, run.pools)
    for number, failure in enumerate(failures.listed):
        run.push(failure.time_s, FAIL, number, 0, (failure.pool, failure.node, failure.repair_s))
    if failures.mtbf_s is not None:
        named = [(pool.name, node) for pool in run.pools.values() for node in range(pool.nodes)]
        for number, (name, node) in enumerate(named):
            at_s = run.clock.now_s + up_time_s(failures, name, node, 0)
            run.push(at_s, FAIL, number, 0, (name, node, failures.repair_s))


def _run(run: RunState, keeper: CheckpointWriter | None) -> bool:
    """From event to event until no job is left (or nothing more happens); whether `until_s` came before that."""
    settings, until_s = run.settings, run.settings.until_s or math.inf
    jobs, totals = run.jobs, run.totals
    steps = 0
    while run.waiting or run.running or run.next_arrival < len(jobs):
        now_s = _next_time(run)
        if math.isinf(now_s) or run.stalled > STALLED_DECISIONS:
            return False
        if now_s > until_s:
            return True
        totals.advance(now_s, len(run.waiting), len(run.running))
        run.clock.now_s = now_s
        happened = _take_events(run, now_s)
        happened = take_arrivals(run, now_s) or happened
        happened = turn_calendar(run, now_s) or happened
        happened = move_jobs(run, now_s) or happened
        if settings.round_s is None:
            if happened:
                _decide(run)
        elif now_s == run.next_round * settings.round_s:
            _decide(run)
            run.next_round += 1
        reprice(run)
        run.count_nodes()
        _end_restarts(run, now_s)
        if settings.series:
            _keep_series(run)
        steps += 1
        if steps % settings.look_every == 0:
            _look_up(run, keeper)
    return False


def _look_up(run: RunState, keeper: CheckpointWriter | None) -> None:
    """Progress, checkpoint, and whether to stop."""
    settings = run.settings
    if settings.progress is not None:
        settings.progress(len(run.ended), len(run.jobs), None, f"{run.clock.now_s / 3600:.1f} h simulated")
    stop = settings.stop is not None and settings.stop()
    if keeper is not None:
        keeper.write(now=stop)
    if stop:
        raise KeyboardInterrupt


def _next_time(run: RunState) -> float:
    """When the next thing happens; infinity if nothing does. Events that are stale are dropped."""
    events = run.events
    while events and events[0][1] in (END, RESTARTED):
        state = events[0][4]
        assert isinstance(state, ActiveJob)
        if state.version == events[0][3]:
            break
        run.pop()
    next_s = events[0][0] if events else math.inf
    if run.next_arrival < len(run.jobs):
        next_s = min(next_s, run.jobs[run.next_arrival].submit_s)
    next_s = min(next_s, next_in_calendar_s(run), next_moves_s(run))
    round_s = run.settings.round_s
    if round_s is None:
        return next_s
    # A round without a job decides nothing: the next one is the first after the next event.
    since_s = run.clock.now_s if run.waiting or run.running else next_s
    if math.isfinite(since_s):
        run.next_round = max(run.next_round, first_multiple(since_s, round_s))
        next_s = min(next_s, run.next_round * round_s)
    return next_s


def _take_events(run: RunState, now_s: float) -> bool:
    """All events of this time but ends of restarts; whether any was more than stale."""
    happened = False
    events = run.events
    while events and events[0][0] <= now_s and events[0][1] != RESTARTED:
        _, kind, number, version, about = run.pop()
        if kind == END:
            assert isinstance(about, ActiveJob)
            if about.version != version:
                continue
            finish(run, about)
        else:
            assert isinstance(about, tuple)
            (_fail_node if kind == FAIL else _repair_node)(run, number, version, *about)
        happened = True
    return happened


def take_arrivals(run: RunState, now_s: float) -> bool:
    """Let the jobs wait that were submitted up to `now_s` (seconds on the run's clock); return whether there were
    any."""
    jobs, number = run.jobs, run.next_arrival
    first = number
    while number < len(jobs) and jobs[number].submit_s <= now_s:
        job = jobs[number]
        if job.planned is not None and withdraw(run, number):
            number += 1
            continue
        state = ActiveJob(job, number, run.clock, reference_s=asked_s(run, job), jobs_before=run.totals.jobs_s)
        if run.settings.predictor is not None:
            state.predicted_s = run.settings.predictor.submitted(job, now_s)
            if isinstance(run.settings.predictor, IntervalPredictor):
                state.predicted_interval_s = run.settings.predictor.interval_s(job)
        run.wait(state)
        run.arrived.append(job.id)
        number += 1
    run.next_arrival = number
    return number > first


def asked_s(run: RunState, job: Job) -> float:
    """Seconds of an iteration on the Cell that the job asked for, to which rates are relative; where that does not fit,
    as the trace has it."""
    cell_s = run.iteration_s(job, grant(job.pool, job.devices), None)
    if cell_s is not None:
        return cell_s
    return job.duration_s / job.iterations if job.iterations > 0 and job.duration_s > 0 else 1.0


def _decide(run: RunState) -> None:
    if not (run.waiting or run.running or run.arrived or run.departed or run.planned):
        return
    idle = run.totals.producing == 0 and run.next_arrival == len(run.jobs)
    run.stalled = run.stalled + 1 if idle else 0
    decision = run.ask()
    run.totals.decisions += 1
    arrived, run.arrived, run.departed = run.arrived, [], []
    apply_decision(run, decision)
    for state in [run.waiting[id_] for id_ in arrived if id_ in run.waiting]:
        run.totals.held_back += state.job.devices <= run.free[state.job.pool]


def _end_restarts(run: RunState, now_s: float) -> None:
    events = run.events
    while events and events[0][0] <= now_s and events[0][1] == RESTARTED:
        _, _, _, version, state = run.pop()
        assert isinstance(state, ActiveJob)
        if state.version == version:
            produce(run, state)


def _fail_node(run: RunState, number: int, count: int, pool: str, node: int, repair_s: float) -> None:
    nodes = run.nodes[pool]
    if nodes.counts[node] < nodes.size:
        for state in [sitting for sitting in run.running.values() if _sits_on(sitting, pool, node)]:
            evict(run, state)
            if state.failures >= MOST_FAILURES:
                give_up(run, state, f"its nodes failed {MOST_FAILURES} times")
    run.nodes[pool].fail(node)
    _change_devices(run, pool, -run.nodes[pool].size)
    run.totals.failures += 1
    run.push(run.clock.now_s + repair_s, REPAIR, number, count, (pool, node, repair_s))


def _repair_node(run: RunState, number: int, count: int, pool: str, node: int, repair_s: float) -> None:
    run.nodes[pool].repair(node)
    _change_devices(run, pool, run.nodes[pool].size)
    failures = run.settings.failures
    if failures is not None and failures.mtbf_s is not None:
        at_s = run.clock.now_s + up_time_s(failures, pool, node, count + 1)
        run.push(at_s, FAIL, number, count + 1, (pool, node, repair_s))


def _sits_on(state: ActiveJob, pool: str, node: int) -> bool:
    return any(held == node for held, _ in state.placement.get(pool, ()))


def _change_devices(run: RunState, pool: str, more: int) -> None:
    run.free[pool] += more
    run.pools[pool] = replace(run.pools[pool], devices=run.pools[pool].devices + more)
    run.totals.working += more


def _keep_series(run: RunState) -> None:
    totals = run.totals
    values = (
        run.clock.now_s,
        totals.throughput,
        totals.held,
        totals.working,
        len(run.waiting),
        len(run.running),
        totals.in_use,
    )
    for column, value in zip(run.series, values, strict=True):
        column.append(value)


def _close_books(run: RunState, cut: bool) -> None:
    """Those that did not end, with the reason; and the last invariants."""
    until_s = run.settings.until_s
    if cut and until_s is not None and until_s > run.clock.now_s:
        run.totals.advance(until_s, len(run.waiting), len(run.running))
        run.clock.now_s = until_s
    for state in (*run.waiting.values(), *run.running.values()):
        fill_row(run, state, UNFINISHED)
        if state.grant is not None:
            count_seats(run, state)
        if run.settings.slices:
            keep_slices(run, state)
        doing = "waiting" if state.grant is None else "restarting"
        never = f"policy {run.policy.name} leaves it {doing} for ever"
        run.given_up[state.index] = f"the simulation ended at {until_s:g} s" if cut else never
    for number in range(run.next_arrival, len(run.jobs)):
        run.given_up[number] = f"it was submitted after the end of the simulation at {until_s:g} s"
    _check_books(run)


def _check_books(run: RunState) -> None:
    totals = run.totals
    totals.violations += count_violations(run)
    holders = [state for state in run.running.values() if run.turns.mates(state)[0] is state]
    for pool, nodes in run.nodes.items():
        totals.violations += nodes.violations
        held = sum(count for state in holders for name, count in state_parts(state) if name == pool)
        totals.violations += run.free[pool] != sum(nodes.counts)
        totals.violations += run.free[pool] + held != run.pools[pool].devices
    totals.violations += len(run.ended) + len(run.given_up) != len(run.jobs)
    attained = math.fsum(run.table.attained_device_s)
    totals.violations += abs(attained - totals.held_s) > 1e-6 * (1.0 + attained)


def state_parts(state: ActiveJob) -> tuple[tuple[str, int], ...]:
    """The parts of a job's grant; none while it waits."""
    return () if state.grant is None else state.grant.parts
