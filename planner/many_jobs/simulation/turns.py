"""Jobs that take turns on the same devices: who is with whom, what a decision may do to them, how fast each is.

Jobs whose grants have one name of turns are a group. It holds its devices once, from its first job to its last. All of
a group make one iteration in a round (`planner.many_jobs.scheduling.interleaving`), and each is said to hold an equal
part of the devices. Nothing here touches a run whose policy grants no turns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from planner.many_jobs.jobs.records import Grant, Use
from planner.many_jobs.scheduling.interleaving import fit_together, interleaved_s
from planner.many_jobs.simulation.states import ActiveJob
from profiles.records import dataclass

if TYPE_CHECKING:
    from planner.many_jobs.simulation.run_state import RunState

Change = tuple[ActiveJob, Grant]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsTaken:
    """How much of a run jobs took turns: how many jobs ever did, the device-hours of devices on which several did, of
    all that were held, and the most jobs that did on the same devices."""

    jobs: int
    device_hours: float
    share_of_held: float
    most_jobs: int


class Turnover(NamedTuple):
    """Of a decision: jobs whose devices come free (of a group that ends, the last), and grants that take devices (of a
    group that begins, the first)."""

    giving: list[ActiveJob]
    taking: list[Change]


class Turns:
    """The groups by name, each in order of its jobs' numbers; those that have `changed` since speeds were last set; and
    what is counted of them up to `since_s`."""

    __slots__ = ("changed", "device_s", "groups", "most_jobs", "shared", "sharers", "since_s")

    def __init__(self) -> None:
        self.groups: dict[str, list[ActiveJob]] = {}
        self.changed: set[str] = set()
        self.sharers: set[int] = set()
        self.most_jobs = self.shared = 0
        self.device_s = self.since_s = 0.0

    def mates(self, state: ActiveJob) -> Sequence[ActiveJob]:
        """Return who has the job's devices, the job among them; it alone where they are its own."""
        return self.groups.get(turns_of(state), (state,))

    def enter(self, state: ActiveJob, name: str) -> None:
        """The job, which is placed, takes its turns from now on."""
        self.groups[name] = sorted([*self.groups.get(name, ()), state], key=lambda member: member.index)
        self.changed.add(name)

    def leave(self, state: ActiveJob) -> bool:
        """It takes none any more; return whether its devices come free: nobody else has them."""
        name = turns_of(state)
        if not name:
            return True
        self.groups[name].remove(state)
        self.changed.add(name)
        if not self.groups[name]:
            del self.groups[name]
        return name not in self.groups

    def count(self, now_s: float) -> None:
        """Count up to now, and go on with the groups as they are."""
        self.device_s += self.shared * (now_s - self.since_s)
        self.since_s = now_s
        several = [group for group in self.groups.values() if len(group) > 1]
        self.shared = sum(_devices(group[0]) for group in several)
        self.most_jobs = max(self.most_jobs, *map(len, several)) if several else self.most_jobs
        self.sharers.update(member.index for group in several for member in group)

    def counted(self) -> dict[str, Any]:
        """Return what is counted, as values of JSON."""
        return {
            "jobs": sorted(self.sharers),
            "most_jobs": self.most_jobs,
            "devices": self.shared,
            "device_s": self.device_s,
            "since_s": self.since_s,
        }

    def restore(self, counted: Mapping[str, Any] | None) -> None:
        """Go on from what was counted (None: nothing), with the groups as they are."""
        self.changed.clear()
        if counted is not None:
            self.sharers, self.most_jobs = set(counted["jobs"]), counted["most_jobs"]
            self.shared, self.device_s, self.since_s = counted["devices"], counted["device_s"], counted["since_s"]

    def taken(self, now_s: float, held_s: float) -> TurnsTaken | None:
        """Return what came of it by now, when so many device-seconds were held; None where no two jobs took turns."""
        if not self.sharers:
            return None
        device_s = self.device_s + self.shared * (now_s - self.since_s)
        share = device_s / held_s if held_s > 0 else 0.0
        return TurnsTaken(
            jobs=len(self.sharers), device_hours=device_s / 3600, share_of_held=share, most_jobs=self.most_jobs
        )


def turns_of(state: ActiveJob) -> str:
    """Return the name of the turns that a job takes; none while it waits or has devices of its own."""
    return "" if state.grant is None else state.grant.turns


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
    return _devices(state) if sharing == 1 else _devices(state) / sharing


def _devices(state: ActiveJob) -> int:
    return 0 if state.grant is None else state.grant.devices


def rounds_s(run: RunState, members: Sequence[ActiveJob]) -> float:
    """Return the seconds of a round of jobs that share nothing with others."""
    seconds = [run.iteration_s(member.job, _grant(member), member.placement) for member in members]
    return interleaved(run, members, [one for one in seconds if one is not None])


def interleaved(run: RunState, members: Sequence[ActiveJob], seconds: Sequence[float]) -> float:
    """Return the seconds of a round of jobs each of which would take so long without the others of its group."""
    if len(members) == 1:
        return seconds[0]
    uses = _known_uses(run, [(member, _grant(member)) for member in members])
    return interleaved_s([slowed(use, alone_s) for use, alone_s in zip(uses, seconds, strict=True)])


def slowed(use: Use, iteration_s: float) -> Use:
    """Return what a job needs whose iteration takes so long where it sits: what it computes is what it was."""
    return replace(use, iteration_s=max(iteration_s, use.compute_s))


def _grant(state: ActiveJob) -> Grant:
    assert state.grant is not None
    return state.grant


def turn_speeds(run: RunState, by_network: Collection[int]) -> Iterator[tuple[ActiveJob, float]]:
    """Yield the jobs of groups that have changed, with the seconds that an iteration takes now; less those, by number,
    of which the network has said it. What is counted of turns is brought to now."""
    run.turns.count(run.clock.now_s)
    for name in sorted(run.turns.changed):
        members = run.turns.groups.get(name, [])
        told = [member for member in members if member.index not in by_network]
        if told:
            round_takes_s = rounds_s(run, members)
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
