"""Announced jobs and reservations in a run: when they begin and end, and what a decision may do beside them; and until
when jobs wait by the rule of placement.

Nothing here touches a run without announced jobs, whose policy neither reserves nor names nodes and whose rule lets
nobody wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from planner.many_jobs.jobs.records import Decision, Grant, Reservation
from planner.many_jobs.simulation.placing import Pieces, shrink
from planner.many_jobs.simulation.run_state import RunState
from planner.many_jobs.simulation.states import ActiveJob

Change = tuple[ActiveJob, Grant]


def next_in_calendar_s(run: RunState) -> float:
    """Return when the next job is announced or should come, the next reservation ends, or the next job waits no longer
    for its place, seconds on the run's clock."""
    now_s = run.clock.now_s
    turns = ((zone.arrival_s if zone.arrival_s > now_s else zone.until_s) for zone in run.reservations.values())
    next_s = min((*turns, *run.place_by_s.values()), default=inf)
    if run.next_announcement < len(run.announcements):
        next_s = min(next_s, run.announcements[run.next_announcement][0])
    return next_s


def turn_calendar(run: RunState, now_s: float) -> bool:
    """Announce the jobs that are known at `now_s`, and end the reservations that last no longer; return whether there
    were any, or jobs that should come now, or wait no longer for their place."""
    since_s, run.calendar_s = run.calendar_s, now_s
    happened = any(since_s < zone.arrival_s <= now_s for zone in run.reservations.values())
    happened = announce(run, now_s) or happened
    for id_ in [id_ for id_, zone in run.reservations.items() if zone.until_s <= now_s]:
        end_zone(run, id_)
        happened = True
    for id_ in [id_ for id_, place_by_s in run.place_by_s.items() if place_by_s <= now_s]:
        del run.place_by_s[id_]
        happened = True
    return happened


def announce(run: RunState, now_s: float) -> bool:
    """Announce the jobs that are known at `now_s` and have not come; return whether there were any."""
    happened = False
    while run.next_announcement < len(run.announcements):
        known_s, number = run.announcements[run.next_announcement]
        if known_s > now_s:
            break
        run.next_announcement += 1
        if number >= run.next_arrival:
            run.planned[run.jobs[number].id] = run.jobs[number]
            happened = True
    return happened


def withdraw(run: RunState, number: int) -> bool:
    """Take the job that comes now from those that are announced; return whether it was cancelled, so that it does not
    come and its reservation ends."""
    job = run.jobs[number]
    run.planned.pop(job.id, None)
    if job.planned is None or not job.planned.cancelled:
        return False
    end_zone(run, job.id)
    run.given_up[number] = "it was cancelled before it came"
    run.departed.append(job.id)
    return True


def end_zone(run: RunState, job: str) -> None:
    """End the reservation for a job, where there is one."""
    if run.reservations.pop(job, None) is not None:
        bar_nodes(run)


def bar_nodes(run: RunState) -> None:
    """Keep devices of reserved nodes from grants that do not name them."""
    for name, nodes in run.nodes.items():
        nodes.barred = frozenset(node for zone in run.reservations.values() if zone.pool == name for node in zone.nodes)


def zones_after(run: RunState, decision: Decision, starting: Iterable[str], leaving: Iterable[str]) -> None:
    """Carry out what a decision says of reservations; those of jobs that start or are dropped end. PolicyError where it
    cannot be."""
    gone = [id_ for id_ in (*starting, *leaving) if id_ in run.reservations]
    if not gone and not decision.reservations:
        return
    zones = dict(run.reservations)
    for id_, zone in decision.reservations.items():
        zones.pop(id_, None)
        if zone is not None:
            leaves = id_ in run.running and decision.grants.get(id_, id_) is None
            _check_zone(run, id_, zone, comes=leaves or id_ in run.planned or id_ in run.waiting)
            zones[id_] = zone
    zones = {id_: zone for id_, zone in zones.items() if id_ not in gone}
    held: dict[tuple[str, int], str] = {}
    for id_, zone in zones.items():
        for node in zone.nodes:
            other = held.setdefault((zone.pool, node), id_)
            if other != id_:
                raise run.error(id_, f"a reservation of node {node} of {zone.pool}", f"one that {other} has not")
    run.reservations.clear()
    run.reservations.update(zones)
    bar_nodes(run)


def _check_zone(run: RunState, id_: str, zone: Reservation, *, comes: bool) -> None:
    if not isinstance(zone, Reservation):
        raise run.error(id_, f"{type(zone).__name__} {zone!r:.80}", "a Reservation, or None")
    if zone.job != id_ or not comes:
        raise run.error(id_, f"a reservation for {zone.job}", "one for this job, which is announced or waits")
    if zone.pool not in run.pools:
        raise run.error(id_, f"a reservation on {zone.pool!r}", "a pool of " + ", ".join(run.pools))
    _check_nodes_of(run, id_, zone.pool, zone.nodes)
    if not (run.clock.now_s < zone.until_s < inf and zone.arrival_s <= zone.until_s):
        stated = f"a reservation for {zone.arrival_s:g} s until {zone.until_s:g} s"
        raise run.error(id_, stated, "one that ends, after now and not before the job comes")


def _check_nodes_of(run: RunState, id_: str, pool: str, nodes: Sequence[int]) -> None:
    count = run.nodes[pool].nodes
    wrong = [node for node in nodes if not (isinstance(node, int) and 0 <= node < count)]
    if not nodes or wrong or len(set(nodes)) != len(nodes):
        stated = f"nodes {list(nodes)[:8]} of {pool}"
        raise run.error(id_, stated, f"some of its nodes 0 to {count - 1}, each once")


def check_named(run: RunState, id_: str, grant: Grant) -> None:
    """Raise PolicyError for nodes that are not there, or are not what the grant's parts say."""
    sums: dict[str, int] = {}
    for pool, counts in grant.nodes:
        if pool not in run.pools:
            raise run.error(id_, f"nodes of {pool!r}", "a pool of " + ", ".join(run.pools))
        _check_nodes_of(run, id_, pool, [node for node, _ in counts])
        if any(not isinstance(count, int) or count < 1 for _, count in counts):
            raise run.error(id_, f"devices {[count for _, count in counts][:8]}", "1 or more of each node")
        sums[pool] = sum(count for _, count in counts)
    if sums != dict(grant.parts) or len(grant.nodes) != len(sums):
        raise run.error(id_, f"nodes with {sums} devices", f"the grant's {dict(grant.parts)}")


def sits_on(state: ActiveJob, grant: Grant) -> bool:
    """Return whether a job has just the devices that the grant names, or it names none."""
    return all(
        [(node, mask.bit_count()) for node, mask in state.placement.get(pool, ())] == list(counts)
        for pool, counts in grant.nodes
    )


def check_nodes(run: RunState, giving: Sequence[ActiveJob], taking: Sequence[Change]) -> None:
    """Raise PolicyError where named devices are not free once those come free that these jobs give, where they lie in
    what is reserved and not lent, or where too few are left outside of reservations for who takes and names none."""
    if not (run.reservations or any(grant.nodes for _, grant in taking)):
        return
    free = {name: list(nodes.counts) for name, nodes in run.nodes.items()}
    wanted = dict.fromkeys(free, 0)
    keeping = {state.index: kept_pieces(state, grant) for state, grant in taking}
    for state in giving:
        kept = keeping.get(state.index, {})
        _give_back(free, {pool: given_back(pieces, kept.get(pool, ())) for pool, pieces in state.placement.items()})
    for state, grant in taking:
        for pool, count in grant.parts:
            if not grant.nodes and pool not in keeping[state.index]:
                wanted[pool] += count
    for state, grant in taking:
        _take_named(run, free, state.job.id, grant)
    for pool, count in wanted.items():
        barred = run.nodes[pool].barred
        outside = sum(left for node, left in enumerate(free[pool]) if node not in barred)
        if count > outside:
            stated = f"{count} devices of {pool} for jobs whose grants name no nodes"
            raise run.error(None, stated, f"no more than the {outside} that are free outside of reservations")


def _take_named(run: RunState, free: Mapping[str, list[int]], id_: str, grant: Grant) -> None:
    for pool, counts in grant.nodes:
        for node, count in counts:
            if count > free[pool][node]:
                stated = f"{count} devices of node {node} of {pool}"
                raise run.error(id_, stated, f"no more than the {free[pool][node]} that are free there")
            free[pool][node] -= count
            if node in run.nodes[pool].barred:
                _check_lent(run, id_, pool, node)


def _check_lent(run: RunState, id_: str, pool: str, node: int) -> None:
    zone = next(zone for zone in run.reservations.values() if zone.pool == pool and node in zone.nodes)
    if not zone.lent:
        raise run.error(id_, f"node {node} of {pool}", f"one that is not kept for {zone.job} alone")


def _give_back(free: Mapping[str, list[int]], placement: Mapping[str, Pieces]) -> None:
    for pool, pieces in placement.items():
        for node, mask in pieces:
            free[pool][node] += mask.bit_count()


def kept_pieces(state: ActiveJob, grant: Grant) -> dict[str, Pieces]:
    """Return what a running job keeps under a new grant: a part of as many devices stays, a smaller one keeps its
    fullest nodes, a larger one is placed anew, as is all where nodes are named or turns are taken."""
    kept: dict[str, Pieces] = {}
    if state.grant is None or grant.nodes or grant.turns or state.grant.turns:
        return kept
    wanted = dict(grant.parts)
    for pool, count in state.grant.parts:
        left = wanted.get(pool, 0)
        if left == count:
            kept[pool] = state.placement[pool]
        elif 0 < left < count:
            kept[pool] = shrink(state.placement[pool], left)[0]
    return kept


def given_back(pieces: Pieces, kept: Pieces) -> Pieces:
    """Return `pieces` without those that are kept."""
    masks = dict(kept)
    rest = ((node, mask & ~masks.get(node, 0)) for node, mask in pieces)
    return tuple((node, mask) for node, mask in rest if mask)


def resume_announcements(run: RunState) -> None:
    """Bring a run that goes on to the announcements of its time."""
    announce(run, run.clock.now_s)
    run.calendar_s = run.clock.now_s
