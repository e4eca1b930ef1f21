"""Jobs that take turns on the same devices in a run: what a decision may do to them, and how fast each is.

Nothing here touches a run whose policy grants no turns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from planner.many_jobs.jobs.records import Grant, Use
from planner.many_jobs.scheduling.interleaving import fit_together
from planner.many_jobs.simulation.states import ActiveJob
from planner.many_jobs.simulation.turn_groups import devices_of_grant, interleaved, turns_of

if TYPE_CHECKING:
    from planner.many_jobs.simulation.run_state import RunState

Change = tuple[ActiveJob, Grant]


class Turnover(NamedTuple):
    """Of a decision: jobs whose devices come free (of a group that ends, the last), and grants that take devices (of a
    group that begins, the first)."""

    giving: list[ActiveJob]
    taking: list[Change]


def turnover(run: RunState, stops: Sequence[ActiveJob], changes: Sequence[Change]) -> Turnover:
    """Return whose devices come free and who takes some, where these stop and these change."""
    giving: list[ActiveJob] = []
    gone: dict[str, int] = {}
    for state in (*stops, *(state for state, _ in changes if state.grant is not None)):
        name = turns_of(state)
        gone[name] = gone.get(name, 0) + 1
        if not name or gone[name] == len(run.turns.groups[name]):
            giving.append(state)
    taking: list[Change] = []
    there = {name for name, group in run.turns.groups.items() if len(group) > gone.get(name, 0)}
    for state, grant in changes:
        if grant.turns not in there:
            taking.append((state, grant))
        if grant.turns:
            there.add(grant.turns)
    return Turnover(giving, taking)


def check_turns(run: RunState, stops: Sequence[ActiveJob], changes: Sequence[Change]) -> None:
    """Raise PolicyError where jobs are to take turns that cannot: on other devices than the others of their group, or
    where nobody knows what they need, or memory does not hold it."""
    joining: dict[str, list[Change]] = {}
    for state, grant in changes:
        if grant.turns:
            joining.setdefault(grant.turns, []).append((state, grant))
    leaving = {state.index for state in (*stops, *(state for state, _ in changes))} if joining else set[int]()
    for name, joins in joining.items():
        staying = [member for member in run.turns.groups.get(name, ()) if member.index not in leaving]
        _check_devices(run, staying, joins)
        together = [*((member, member.grant) for member in staying if member.grant is not None), *joins]
        if len(together) > 1:
            _check_memory(run, joins[0][0].job.id, _known_uses(run, together))


def _check_devices(run: RunState, staying: Sequence[ActiveJob], joins: Sequence[Change]) -> None:
    first = joins[0][1] if not staying or staying[0].grant is None else staying[0].grant
    nodes = staying[0].placement if staying else None
    for state, grant in joins:
        id_, stated = state.job.id, f"turns {grant.turns!r} on {grant.parts}"
        if len(grant.parts) != 1 or grant.planner:
            raise run.error(id_, stated, "devices of one pool, as a Cell")
        if grant.parts != first.parts:
            raise run.error(id_, stated, f"{first.parts}, the devices of the others that take these turns")
        if nodes is None:
            if grant.nodes != first.nodes:
                raise run.error(id_, f"nodes {grant.nodes} in turns {grant.turns!r}", f"{first.nodes}, as the others")
            continue
        ((pool, pieces),) = nodes.items()
        seats = tuple((node, mask.bit_count()) for node, mask in pieces)
        if grant.nodes and grant.nodes != ((pool, seats),):
            raise run.error(id_, f"nodes {grant.nodes} in turns {grant.turns!r}", f"{seats}, where the others sit")
        barred = [node for node, _ in pieces if node in run.nodes[pool].barred]
        if barred and not grant.nodes:
            raise run.error(id_, f"{stated}, on reserved nodes {barred[:8]}", "a grant that names its nodes there")


def _known_uses(run: RunState, together: Sequence[Change]) -> list[Use]:
    uses = []
    for state, grant in together:
        use = run.use(state.job, grant)
        if use is None:
            raise run.error(state.job.id, f"turns {grant.turns!r} with others", "none: what it needs is not known")
        uses.append(use)
    return uses


def _check_memory(run: RunState, id_: str, uses: Sequence[Use]) -> None:
    if not fit_together(uses):
        held = " + ".join(f"{use.memory_bytes / 2**30:.1f}" for use in uses)
        has = min(use.device_memory_bytes for use in uses) / 2**30
        raise run.error(id_, f"turns of {len(uses)} jobs that hold {held} GiB", f"no more than the device's {has:.1f}")


def part_of_devices(run: RunState, state: ActiveJob) -> float:
    """Return how many devices a running job holds: of those that several take turns on, its equal part."""
    sharing = len(run.turns.mates(state))
    return devices_of_grant(state) if sharing == 1 else devices_of_grant(state) / sharing


def turn_speeds(run: RunState, by_network: Collection[int]) -> Iterator[tuple[ActiveJob, float]]:
    """Yield the jobs of groups that have changed, with the seconds that an iteration takes now; less those, by number,
    of which the network has said it. What is counted of turns is brought to now."""
    run.turns.count(run.clock.now_s)
    for name in sorted(run.turns.changed):
        members = run.turns.groups.get(name, [])
        told = [member for member in members if member.index not in by_network]
        if told:
            round_takes_s = interleaved(run.use, members, [member.alone_s for member in members])
            yield from ((member, round_takes_s) for member in told)
        run.turns.changed.discard(name)


def count_violations(run: RunState) -> int:
    """Return how many jobs sit where they must not: on devices of another whose grant has not their name of turns, or
    elsewhere than the others of their group."""
    held: dict[tuple[str, int], list[tuple[int, str]]] = {}
    wrong = 0
    for state in run.running.values():
        wrong += state.placement != run.turns.mates(state)[0].placement
        for pool, pieces in state.placement.items():
            for node, mask in pieces:
                others = held.setdefault((pool, node), [])
                wrong += any(
                    mask & other and not (turns_of(state) and turns_of(state) == name) for other, name in others
                )
                others.append((mask, turns_of(state)))
    return wrong
