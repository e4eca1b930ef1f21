"""A decision, checked and carried out; and how jobs start, stop, and end."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from planner.many_jobs.jobs.records import Decision, Grant, NodeCounts
from planner.many_jobs.placers.records import Later, no_price
from planner.many_jobs.simulation.asking_placers import take_by_rule
from planner.many_jobs.simulation.placing import Pieces
from planner.many_jobs.simulation.run_state import END, RESTARTED, RunState, describe, restart_s
from planner.many_jobs.simulation.seat_costs import count_seats, network_budget
from planner.many_jobs.simulation.settings import NetworkShares
from planner.many_jobs.simulation.states import ActiveJob
from planner.many_jobs.simulation.totals import DROPPED, FINISHED, UNFINISHED
from planner.many_jobs.simulation.turns import check_turns, turnover
from planner.many_jobs.simulation.zones import (
    check_named,
    check_nodes,
    end_zone,
    given_back,
    kept_pieces,
    sits_on,
    zones_after,
)

Change = tuple[ActiveJob, Grant]


def apply_decision(run: RunState, decision: Decision) -> bool:
    """Carry the decision out, all at once; PolicyError, before anything is changed, where it cannot be. Whether it
    changed anything."""
    stops, changes = _read(run, decision)
    dropped = _read_dropped(run, decision, stops) if decision.dropped else {}
    if not stops and not changes and not dropped and not decision.reservations:
        return False
    check_turns(run, stops, changes)
    giving, taking = turnover(run, stops, changes)
    _check_devices(run, giving, taking)
    zones_after(run, decision, (state.job.id for state, _ in changes), dropped)
    check_nodes(run, giving, taking)
    for state in stops:
        stop(run, state)
        if state.job.id not in dropped:
            run.wait(state)
    for id_, state in dropped.items():
        if id_ in run.waiting:
            state.settle()
            run.stop_waiting(state)
        end_job(run, state, DROPPED)
    # Who waits for devices that others give up does not make them wait in vain.
    may_wait = not stops and all(state.grant is None for state, _ in changes)
    came_back = {state.job.id: _release(run, state, grant) for state, grant in changes if state.grant is not None}
    if len(changes) > 1:
        changes.sort(key=lambda change: (not change[1].nodes, -change[1].devices))
    for state, grant in changes:
        _start(run, state, grant, came_back.get(state.job.id), may_wait=may_wait)
    return True


def _read(run: RunState, decision: Decision) -> tuple[list[ActiveJob], list[Change]]:
    """Whom to stop, and whom to give what; what changes nothing is left out."""
    stops: list[ActiveJob] = []
    changes: list[Change] = []
    for id_, grant in decision.grants.items():
        state = run.waiting.get(id_) or run.running.get(id_)
        if state is None:
            raise run.error(id_, "a grant", "none for a job that neither waits nor runs")
        if not isinstance(grant, Grant | None):
            raise run.error(id_, f"{type(grant).__name__} {grant!r:.80}", "a Grant, or None")
        if grant is None:
            if state.grant is not None:
                stops.append(state)
        elif state.grant is None or not _same(run, state, grant):
            _check_grant(run, state, grant)
            changes.append((state, grant))
    return stops, changes


def _read_dropped(run: RunState, decision: Decision, stops: list[ActiveJob]) -> dict[str, ActiveJob]:
    """Who is dropped; those of them that run are added to `stops`."""
    leaving: dict[str, ActiveJob] = {}
    for id_ in decision.dropped:
        state = run.waiting.get(id_) or run.running.get(id_)
        if state is None or id_ in leaving:
            raise run.error(id_, "it dropped", "a job that waits or runs, and once")
        if decision.grants.get(id_) is not None:
            raise run.error(id_, "both devices for it and it dropped", "one of them")
        leaving[id_] = state
        if state.grant is not None and id_ not in decision.grants:
            stops.append(state)
    return leaving


def _same(run: RunState, state: ActiveJob, grant: Grant) -> bool:
    """Whether the grant is what the job has: the same devices, and stages that come to the same."""
    have = state.grant
    if have is None or (have.parts, have.planner, have.turns) != (grant.parts, grant.planner, grant.turns):
        return False
    if grant.nodes and not sits_on(state, grant):
        return False
    if have.stages == grant.stages:
        return True
    if len(grant.parts) != 1 or None not in (have.stages, grant.stages):
        return False
    best = run.cells.best(state.job.workload, *grant.parts[0])
    return best is not None and best.stages in (have.stages, grant.stages)


def _check_grant(run: RunState, state: ActiveJob, grant: Grant) -> None:
    id_, parts = state.job.id, grant.parts
    for pool, count in parts:
        if pool not in run.pools:
            raise run.error(id_, f"devices of {pool!r}", "a pool of " + ", ".join(run.pools))
        if not isinstance(count, int) or count < 1:
            raise run.error(id_, f"{count} devices of {pool}", "a whole number of 1 or more")
    if not parts or (len(parts) > 1 and len({pool for pool, _ in parts}) != len(parts)):
        raise run.error(id_, f"a grant of {describe(grant) or 'nothing'}", "some devices, and each pool once")
    if not isinstance(grant.turns, str):
        raise run.error(id_, f"turns {grant.turns!r:.80}", "a name, or none")
    if grant.nodes:
        check_named(run, id_, grant)
    if run.iteration_s(state.job, grant, None) is None:
        raise run.error(id_, f"a grant of {describe(grant)}", "one where the job fits")


def _check_devices(run: RunState, giving: list[ActiveJob], taking: list[Change]) -> None:
    need: dict[str, int] = {}
    for state in giving:
        for pool, count in () if state.grant is None else state.grant.parts:
            need[pool] = need.get(pool, 0) - count
    for _, grant in taking:
        for pool, count in grant.parts:
            need[pool] = need.get(pool, 0) + count
    for pool, more in need.items():
        if more > run.free[pool]:
            names = [state.job.id for state, grant in taking if any(part[0] == pool for part in grant.parts)]
            shown = ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")
            raise run.error(
                None,
                f"{more} devices of {pool} more than it takes back, for {shown}",
                f"no more than the {run.free[pool]} that are free",
            )


def _release(run: RunState, state: ActiveJob, grant: Grant) -> Mapping[str, Pieces]:
    """Take from a running job what it does not keep under its new grant (`kept_pieces`); returns what it keeps."""
    comes_free = _close(run, state)
    del run.running[state.job.id]
    kept = kept_pieces(state, grant)
    if not comes_free:
        return kept
    for pool, pieces in state.placement.items():
        rest = given_back(pieces, kept.get(pool, ()))
        run.nodes[pool].give(rest)
        run.free[pool] += sum(mask.bit_count() for _, mask in rest)
    run.totals.held -= state.grant.devices if state.grant else 0
    return kept


def _start(run: RunState, state: ActiveJob, grant: Grant, kept: Mapping[str, Pieces] | None, *, may_wait: bool) -> None:
    """Place the job under its new grant and let it run; or leave it waiting, where the rule of placement says so."""
    placement: dict[str, Pieces] = {}
    named = dict(grant.nodes)
    others = run.turns.groups.get(grant.turns)
    for pool, count in grant.parts:
        if others:
            placement[pool] = others[0].placement[pool]
            continue
        if kept and pool in kept:
            placement[pool] = kept[pool]
            continue
        pieces = run.nodes[pool].take_on(named[pool]) if named else _take(run, state, grant, pool, count, may_wait)
        if isinstance(pieces, Later):
            run.place_later(state, pieces.until_s)
            return
        placement[pool] = pieces
        run.free[pool] -= count
    if kept is None:
        state.settle()
        run.stop_waiting(state)
    run_on(run, state, grant, placement)


def run_on(run: RunState, state: ActiveJob, grant: Grant, placement: Mapping[str, Pieces]) -> None:
    """Let a job that is in no list run under the grant on these devices, which are taken: at once if it never ran, else
    after a restart."""
    now_s, job = run.clock.now_s, state.job
    iteration_s = run.iteration_s(job, grant, placement)
    if iteration_s is None:
        raise run.error(job.id, f"a grant of {describe(grant)}", "one where the job fits on the nodes that it got")
    state.grant, state.granted_s, state.placement, state.held = grant, now_s, placement, grant.devices
    state.iteration_time_s, state.relative_rate = iteration_s, state.reference_s / iteration_s
    state.version += 1
    state.since_s = state.progress_from_s = now_s
    if state.first_start_s is None:
        state.first_start_s = now_s
        state.progress_from_s += run.settings.start_s
    else:
        state.restarts += 1
        state.progress_from_s += restart_s(run.settings, job)
    state.began_s, state.began_with = state.progress_from_s, state.remaining_at
    run.running[job.id] = state
    run.granted.add(grant.parts)
    _count_start(run, state)
    run.totals.held += 0 if run.turns.groups.get(grant.turns) else grant.devices
    state.alone_s = iteration_s
    sit_down(run, state, grant)
    if state.progress_from_s > now_s:
        run.push(state.progress_from_s, RESTARTED, state.index, state.version, state)
    else:
        produce(run, state)
    expect_end(run, state)


def sit_down(run: RunState, state: ActiveJob, grant: Grant) -> None:
    """Let a job that is placed, and whose time alone there is known, share from now on what it shares with others."""
    mates = run.turns.groups.get(grant.turns, [])
    if run.shared is not None and mates:
        run.shared.leave(mates)
    if run.settings.placer is not None and mates:
        run.sitting.leave(mates)
    if grant.turns:
        run.turns.enter(state, grant.turns)
        mates = run.turns.groups[grant.turns]
    if run.shared is not None:
        run.shared.enter(mates or [state])
        state.alone_s = run.shared.alone_s(state)
    if run.settings.placer is not None:
        run.sitting.enter(mates or [state])


def _get_up(run: RunState, state: ActiveJob) -> bool:
    """Let a job share nothing any more; return whether its devices come free, as nobody else takes turns there."""
    mates = list(run.turns.mates(state))
    if run.shared is not None:
        run.shared.leave(mates)
    if run.settings.placer is not None:
        run.sitting.leave(mates)
    comes_free = run.turns.leave(state)
    mates.remove(state)
    if mates and run.shared is not None:
        run.shared.enter(mates)
    if mates and run.settings.placer is not None:
        run.sitting.enter(mates)
    return comes_free


def _count_start(run: RunState, state: ActiveJob) -> None:
    """On how many nodes the job starts, and whether fewer would have held it."""
    run.table.nodes[state.index] = sum(map(len, state.placement.values()))
    if state.held > 1:
        run.totals.starts_on_several += 1
        run.totals.scattered += any(
            len(pieces) > -(-sum(mask.bit_count() for _, mask in pieces) // run.nodes[pool].size)
            for pool, pieces in state.placement.items()
        )


def _take(run: RunState, state: ActiveJob, grant: Grant, pool: str, count: int, may_wait: bool) -> Pieces | Later:
    """Devices by the run's rule of placement; by the one that is built in where it has none. A job on several pools
    never waits for one of them."""
    placer, nodes = run.settings.placer, run.nodes[pool]
    if placer is None:
        return nodes.take(count)
    alone, told = len(grant.parts) == 1, run.settings.seat_times

    def price(counts: NodeCounts) -> float | None:
        return told and told(state.job, grant, {pool: tuple((node, (1 << some) - 1) for node, some in counts)})

    known = alone and isinstance(run.settings.sharing, NetworkShares)
    first = state.first_start_s is None and (state.place_by_s is None or run.clock.now_s < state.place_by_s)
    return take_by_rule(
        placer,
        nodes,
        run.sitting,
        state,
        pool,
        count,
        run.view.networks[pool],
        price=price if alone and told else no_price,
        budget=partial(network_budget, run, state, grant) if known else None,
        may_wait=may_wait and alone and first and not grant.turns,
    )


def expect_end(run: RunState, state: ActiveJob) -> None:
    """When the job ends if nothing changes."""
    end_s = state.progress_from_s + state.remaining_at * state.iteration_time_s
    run.push(end_s, END, state.index, state.version, state)


def produce(run: RunState, state: ActiveJob) -> None:
    """The job's restart is over, or it needed none: from now on it makes progress."""
    state.producing = True
    run.totals.produce(state.relative_rate)


def _close(run: RunState, state: ActiveJob) -> bool:
    """Bring a running job's figures to now, as its grant ends; return whether its devices come free."""
    comes_free = _get_up(run, state)
    if run.settings.slices:
        keep_slices(run, state)
    if state.producing:
        state.producing = False
        run.totals.pause(state.relative_rate)
    count_seats(run, state)
    state.settle()
    return comes_free


def keep_slices(run: RunState, state: ActiveJob) -> None:
    """Remember where the job sat since it was granted its devices."""
    now_s, from_s = run.clock.now_s, state.since_s if state.granted_s is None else state.granted_s
    restarted_s = min(max(state.began_s, from_s), now_s)
    for pool, pieces in state.placement.items():
        run.slices += ((state.index, pool, node, mask, from_s, restarted_s, now_s) for node, mask in pieces)


def stop(run: RunState, state: ActiveJob) -> None:
    """Take all devices from a running job. It is in no list until it waits or ends."""
    comes_free = _close(run, state)
    del run.running[state.job.id]
    if comes_free and state.grant is not None:
        for pool, pieces in state.placement.items():
            run.nodes[pool].give(pieces)
        for pool, count in state.grant.parts:
            run.free[pool] += count
        run.totals.held -= state.grant.devices
    state.grant = state.granted_s = None
    state.placement, state.held = {}, 0
    state.version += 1


def finish(run: RunState, state: ActiveJob) -> None:
    """The job's last iteration is done."""
    ran_s = max(0.0, run.clock.now_s - state.progress_from_s)
    unsettled = state.done + ran_s / state.iteration_time_s
    whole_s = state.job.iterations * state.iteration_time_s
    allowed_s = 1e-6 * (1.0 + whole_s) + 1e-15 * abs(run.clock.now_s) * (2 + state.restarts)
    if abs(unsettled - state.job.iterations) * state.iteration_time_s > allowed_s:
        run.totals.violations += 1
    stop(run, state)
    state.remaining_at = 0.0
    end_job(run, state, FINISHED)
    if run.settings.predictor is not None:
        run.settings.predictor.finished(state.job, run.clock.now_s)


def evict(run: RunState, state: ActiveJob) -> None:
    """A node of the job failed: it loses what it did since its last checkpoint, and waits."""
    ran_s = max(0.0, run.clock.now_s - state.began_s)
    interval_s = run.settings.checkpoint_interval_s
    lost = (ran_s % interval_s if interval_s else 0.0) / state.iteration_time_s
    stop(run, state)
    lost = min(lost, state.began_with - state.remaining_at)
    state.remaining_at += lost
    state.done -= lost
    state.failures += 1
    run.totals.lost_iterations += lost
    run.wait(state)


def end_job(run: RunState, state: ActiveJob, status: int) -> None:
    """Write down what became of a job that is in no list any more."""
    fill_row(run, state, status)
    run.table.end_s[state.index] = run.clock.now_s
    run.departed.append(state.job.id)
    run.ended.append(state.index)
    run.ended_after.append(run.next_arrival)


def give_up(run: RunState, state: ActiveJob, reason: str) -> None:
    """A waiting job will never end: it leaves, unfinished."""
    state.settle()
    run.stop_waiting(state)
    end_zone(run, state.job.id)
    fill_row(run, state, UNFINISHED)
    run.given_up[state.index] = reason
    run.departed.append(state.job.id)


def fill_row(run: RunState, state: ActiveJob, status: int) -> None:
    """The job's row of the table, but for its end."""
    table, number = run.table, state.index
    table.status[number] = status
    if state.first_start_s is not None:
        table.start_s[number] = state.first_start_s
    table.waited_s[number] = state.waited_s
    table.attained_device_s[number] = state.attained_device_s
    table.restarts[number] = state.restarts
    table.asked_s[number] = state.reference_s
    table.failures[number] = state.failures
    span_s = run.clock.now_s - state.job.submit_s
    table.sharing[number] = (run.totals.jobs_s - state.jobs_before) / span_s if span_s > 0 else 1.0
