"""Muri: jobs that need different things take turns on the same devices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from planner.many_jobs.jobs.records import Decision, Grant, JobState, Use, View, grant_in_turns
from planner.many_jobs.scheduling.interleaving import efficiency
from planner.many_jobs.scheduling.job_matching import Group, Rules, group_kinds
from planner.many_jobs.scheduling.queueing import Rounds, as_asked, can_run, expected_remaining_s
from profiles.records import replace

Order = Literal["attained", "remaining"]
Members = list[JobState]
MEASURED = 1.1
"""How much longer an iteration is than its Cell's is told in powers of this."""


class Muri(Rounds):
    """Multi-resource interleaving (Zhao et al., SIGCOMM 2022, sections 4 and 5).

    Every `round_s` the jobs of a pool stand in order of priority, and as many are admitted as could run if all took
    turns. Where all of them fit by themselves, they do. Else those that asked for equally many devices are grouped by
    matchings of maximum weight (`planner.many_jobs.scheduling.job_matching`), and the groups get devices in the order
    of their most important job; who is left waits, or is suspended. On devices that nobody then needs, jobs that were
    not admitted start, and groups are taken apart, that of the least efficiency first. Between rounds jobs start alone
    on free devices. Of equal jobs those are paired that are together already, then one that runs with one that waits.

    Order: `attained`, Muri-L, by devices times seconds held, in Tiresias' queues; `remaining`, Muri-S, by devices times
    seconds that the job should still take. Of Muri's four resources two are known, what devices compute and what goes
    over links: groups are of `most_jobs` 2 unless said, since two jobs keep two resources busy. A group has to be
    shorter than its jobs one after the other by `least_gain`; their memory must fit together; nobody does worse than by
    equal shares of time. A job that runs needs what is measured of it where it sits, as Muri profiles jobs: on seats
    far apart it sends for longer than its Cell says. One that waits needs what its Cell does. Jobs of which nobody
    knows what they need run alone. Going from one group to another costs a
    restart as any move does; a job whose mates come and go keeps its devices and goes on.
    """

    name = "muri"
    usual_order: Order = "attained"

    def __init__(
        self,
        *,
        order: str = "",
        round_s: float = 360.0,
        most_jobs: int = 2,
        least_gain: float = 0.05,
        thresholds_device_s: Sequence[float] = (3600.0, 36000.0),
    ) -> None:
        super().__init__(round_s)
        if order not in ("", "attained", "remaining"):
            raise ValueError(f"order={order}; attained or remaining")
        if int(most_jobs) < 1:
            raise ValueError(f"most_jobs={most_jobs}; 1 or more")
        if not 0 <= float(least_gain) < 1:
            raise ValueError(f"least_gain={least_gain}; 0 or more, and below 1")
        self._order, self._rules = (
            order or self.usual_order,
            Rules(most_jobs=int(most_jobs), least_gain=float(least_gain)),
        )
        self._thresholds = tuple(float(threshold) for threshold in thresholds_device_s)

    def decide(self, view: View) -> Decision:
        """Groups in rounds; in between who fits on free devices."""
        names = _Names(view)
        if not self.due(view.now_s):
            if not any(view.free.values()):
                return Decision(grants={})
            waiting = [state for state in view.waiting.values() if can_run(view, state.job)]
            started = _fill(self._sorted(view, waiting), dict(view.free))
            return Decision(grants={state.job.id: names.grant([state]) for state in started})
        grants: dict[str, Grant | None] = {}
        for pool in view.pools:
            there = [state for state in (*view.running.values(), *view.waiting.values()) if state.job.pool == pool]
            ordered = self._sorted(view, (state for state in there if can_run(view, state.job)))
            groups = self.choose(view, ordered, view.pools[pool].devices)
            grants |= _changes(view, pool, groups, names)
        return Decision(grants=grants)

    def choose(self, view: View, ordered: Sequence[JobState], devices: int) -> list[Members]:
        """Return who runs on a pool of so many devices, jobs that take turns together, the most important first."""
        admitted = _fill(ordered, {state.job.pool: self._rules.most_jobs * devices for state in ordered})
        if sum(state.job.devices for state in admitted) <= devices:
            groups = [[state] for state in admitted]
        else:
            groups = list(self._grouped(view, admitted))
        place = {state.job.id: number for number, state in enumerate(ordered)}
        chosen: list[Members] = []
        left = devices
        for group in sorted(groups, key=lambda group: min(place[state.job.id] for state in group)):
            if group[0].job.devices <= left:
                left -= group[0].job.devices
                chosen.append(group)
        running = {state.job.id for group in chosen for state in group}
        others = _fill((state for state in ordered if state.job.id not in running), {"": left}, one_pool=True)
        left -= sum(state.job.devices for state in others)
        return [*self._apart(view, chosen, left), *([state] for state in others)]

    def _grouped(self, view: View, admitted: Sequence[JobState]) -> Iterator[Members]:
        """The admitted jobs, those of each size by the best matching."""
        for size in sorted({state.job.devices for state in admitted}, reverse=True):
            kinds: dict[Use, Members] = {}
            for state in admitted:
                if state.job.devices == size:
                    use = _use(view, state)
                    if use is None:
                        yield [state]
                    else:
                        kinds.setdefault(use, []).append(state)
            uses = list(kinds)
            groups = group_kinds(uses, [len(kinds[use]) for use in uses], self._rules)
            yield from _by_name(view, [kinds[use] for use in uses], groups)

    def _apart(self, view: View, groups: Sequence[Members], left: int) -> list[Members]:
        """The groups with those taken apart for whose jobs there is room, the least efficient first."""
        together = [group for group in groups if len(group) > 1]
        alone: set[str] = set()
        for group in sorted(together, key=lambda group: (self._efficiency(view, group), group[0].job.id)):
            size = group[0].job.devices
            for state in group[1:]:
                if size <= left:
                    left -= size
                    alone.add(state.job.id)
        parts = [[state for state in group if state.job.id not in alone] for group in groups]
        return [*parts, *([state] for group in groups for state in group if state.job.id in alone)]

    def _efficiency(self, view: View, group: Members) -> float:
        uses = [_use(view, state) for state in group]
        return efficiency([use for use in uses if use is not None])

    def _sorted(self, view: View, states: Iterable[JobState]) -> Members:
        return sorted(states, key=lambda state: (self._key(view, state), state.job.submit_s, state.job.id))

    def _key(self, view: View, state: JobState) -> float:
        if self._order == "remaining":
            return state.job.devices * expected_remaining_s(view, state)
        return sum(state.attained_device_s >= threshold for threshold in self._thresholds)


class MuriS(Muri):
    """Muri-S: it knows how long jobs take, from `--jct` or as they were submitted."""

    name = "muri-s"
    usual_order = "remaining"


class _Names:
    """Names of turns that nobody has yet."""

    def __init__(self, view: View) -> None:
        self._used = {state.grant.turns for state in view.running.values() if state.grant is not None}

    def grant(self, group: Members) -> Grant:
        """Devices of the group's own, under a new name: its first job's, which no other has."""
        job = group[0].job
        name = job.id
        while name in self._used:
            name += "+"
        self._used.add(name)
        return grant_in_turns(job.pool, job.devices, name)


def _fill(ordered: Iterable[JobState], left: dict[str, int], *, one_pool: bool = False) -> Members:
    """Who still fits, in this order, by pool; those that do not are passed over."""
    chosen: Members = []
    for state in ordered:
        pool = "" if one_pool else state.job.pool
        if state.job.devices <= left.get(pool, 0):
            left[pool] -= state.job.devices
            chosen.append(state)
    return chosen


def _use(view: View, state: JobState) -> Use | None:
    """What an iteration of a job needs: as its Cell says; of one that runs, with what it takes longer by itself where
    it sits, in steps, so that jobs that are nearly alike are one kind."""
    use = view.use(state.job, as_asked(state.job))
    alone_s = state.iteration_alone_s
    if use is None or alone_s is None or alone_s <= use.iteration_s:
        return use
    steps = round(math.log(alone_s / use.iteration_s, MEASURED))
    return replace(use, iteration_s=use.iteration_s * MEASURED**steps)


def _turns(state: JobState) -> str:
    return "" if state.grant is None else state.grant.turns


def _by_name(view: View, kinds: Sequence[Members], groups: Mapping[Group, int]) -> Iterator[Members]:
    """So many groups of these kinds, made of jobs: first those that are groups already."""
    kind_of = {state.job.id: kind for kind, states in enumerate(kinds) for state in states}
    now: dict[str, Members] = {}
    for state in view.running.values():
        now.setdefault(_turns(state), []).append(state)
    left, taken = dict(groups), set[str]()
    for members in now.values():
        own = [kind_of.get(state.job.id, -1) for state in members]
        name = tuple(sorted(own))
        if len(members) > 1 and left.get(name, 0) > 0:
            left[name] -= 1
            taken.update(state.job.id for state in members)
            yield members
    free = [[state for state in states if state.job.id not in taken] for states in kinds]
    for name in sorted(left, key=lambda name: (-len(name), name)):
        for _ in range(left[name]):
            yield [_next(free[kind], runs=not number) for number, kind in enumerate(name)]


def _next(states: Members, *, runs: bool) -> JobState:
    """Take the most important job of a kind that runs, or that waits; the most important where there is no such."""
    chosen = next((state for state in states if (state.grant is not None) == runs), states[0])
    states.remove(chosen)
    return chosen


def _changes(view: View, pool: str, groups: Sequence[Members], names: _Names) -> dict[str, Grant | None]:
    """What changes so that just these groups run. A group keeps the devices of its first job whose devices no other
    keeps."""
    stays: dict[str, Grant | None] = {
        id_: None for id_, state in view.running.items() if state.job.pool == pool and state.grant is not None
    }
    claimed: set[str] = set()
    for group in groups:
        holder = next((state for state in group if _turns(state) and _turns(state) not in claimed), None)
        granted = names.grant(group) if holder is None or holder.grant is None else holder.grant
        claimed.add(granted.turns)
        stays |= {state.job.id: granted for state in group}
    return {
        id_: granted
        for id_, granted in stays.items()
        if granted is None or id_ in view.waiting or view.running[id_].grant != granted
    }
