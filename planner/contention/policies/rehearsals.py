"""What jobs would do under a decision: groups of jobs that share links are played, each case of them once.

Jobs that share no link say nothing to each other, so that a decision is played in parts. What a part does depends on
the amounts that its jobs put on links, not on which links these are (the other spine of a fabric is the same), and on
the levels of those who share a link, before, after or equal, not on their numbers. A case that was played is
remembered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from estimator.network.player.packing import Packed, pack
from estimator.network.steps import Playing, Step
from planner.contention.policies.axes import AxisLevels, levelled
from planner.contention.policies.loads import steps_on
from planner.contention.policies.records import Choice, Decision, View
from profiles.records import dataclass

Floats = NDArray[np.float64]
Rates = Callable[["Sequence[Playing | Packed]", Floats], Sequence[float]]
"""Iterations a second of each of several jobs on links of so many bytes/s."""

MOST_EVENTS = 30_000
"""Of a group; a rate that is not steady by then is taken as it is."""


def played_rates(
    jobs: Sequence[Playing | Packed], bytes_per_s: Floats, *, jitter: float = 0.0, seed: int = 0
) -> tuple[float, ...]:
    """Return iterations a second, by `estimator.network.player`; compute times vary by up to the share `jitter`."""
    from estimator.network.player.play import Settings, play

    how = Settings(jitter=jitter, seed=seed, most_events=MOST_EVENTS)
    return tuple(1.0 / job.seconds for job in play(jobs, bytes_per_s, settings=how).jobs)


Amounts = tuple[tuple[int, float], ...]
"""Of the movers of a job, by number, which put how many bytes/s on a link."""
Loads = tuple[float, tuple[tuple[int, Amounts], ...]]
"""A link's bytes/s, and by job what its movers put there."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Jobs that links join, on their paths. `links`: what they put on each, equal ones once. `sharing`: the pairs that
    share one, by place in `jobs`."""

    jobs: tuple[int, ...]
    links: frozenset[Loads]
    sharing: tuple[tuple[int, int], ...]
    choices: tuple[tuple[Choice, ...], ...]

    @property
    def case(self) -> Hashable:
        """What tells it from other groups, as far as playing goes."""
        return self.links, self.jobs


@dataclass(frozen=True, kw_only=True)
class Extras:
    """What a decision has beside paths and levels, of each job: levels by axis, when it begins, the period that it is
    held to (0: none)."""

    axis_levels: tuple[AxisLevels, ...]
    offsets_s: tuple[float, ...]
    periods_s: tuple[float, ...]

    @property
    def are_none(self) -> bool:
        """Whether it changes nothing."""
        return not (any(self.axis_levels) or any(self.offsets_s) or any(self.periods_s))

    def of(self, jobs: Sequence[int]) -> Extras | None:
        """Return those of some jobs; None where they change nothing."""
        its = Extras(
            axis_levels=tuple(self.axis_levels[job] for job in jobs),
            offsets_s=tuple(self.offsets_s[job] for job in jobs),
            periods_s=tuple(self.periods_s[job] for job in jobs),
        )
        return None if its.are_none else its


def extras_of(decision: Decision) -> Extras:
    """Return what a decision has beside paths and levels."""
    jobs = len(decision.paths)
    return Extras(
        axis_levels=decision.axis_levels or ((),) * jobs,
        offsets_s=decision.offsets_s or (0.0,) * jobs,
        periods_s=tuple(period_s or 0.0 for period_s in decision.periods_s) or (0.0,) * jobs,
    )


class Rehearsals:
    """Plays decisions on a view, and counts how many cases it `played`. A job that meets nobody is no case: what it
    does is seen from an iteration or two."""

    def __init__(self, view: View, rates: Rates = played_rates) -> None:
        self.view, self.played = view, 0
        self._rates, self._bytes_per_s = rates, np.array(view.bytes_per_s)
        self._made: dict[Hashable, Packed] = {}
        self._steps: dict[tuple[int, tuple[Choice, ...]], tuple[tuple[Step, ...], dict[int, Amounts]]] = {}
        self._known: dict[Hashable, tuple[float, ...]] = {}
        self._last: tuple[Hashable, list[Group]] = None, []

    def rates_of(self, decision: Decision) -> tuple[float, ...]:
        """Return the rate of each job under a decision, with all that it says."""
        return self.iterations_per_s(decision.paths, decision.levels, extras_of(decision))

    def would_play(self, decision: Decision) -> int:
        """Return how many cases would be played to say what `rates_of` says."""
        return self.cases_of(decision.paths, decision.levels, extras_of(decision))

    def cases_of(
        self, paths: Sequence[Sequence[Choice]], levels: Sequence[int | None], extras: Extras | None = None
    ) -> int:
        """Return how many cases would be played to say what `iterations_per_s` says: those that are not known."""
        return sum(
            len(group.jobs) > 1
            and self._case(
                group, [levels[job] or 0 for job in group.jobs], None if extras is None else extras.of(group.jobs)
            )
            not in self._known
            for group in self.groups(paths)
        )

    def iterations_per_s(
        self, paths: Sequence[Sequence[Choice]], levels: Sequence[int | None], extras: Extras | None = None
    ) -> tuple[float, ...]:
        """Return the rate of each job under these paths and levels; all begin at once unless `extras` say else."""
        rates = [0.0] * len(self.view.jobs)
        for group in self.groups(paths):
            its_extras = None if extras is None else extras.of(group.jobs)
            its = self.group_rates(group, [levels[job] or 0 for job in group.jobs], its_extras)
            for job, rate in zip(group.jobs, its, strict=True):
                rates[job] = rate
        return tuple(rates)

    def groups(self, paths: Sequence[Sequence[Choice]]) -> list[Group]:
        """Return the groups of jobs that share links on these paths; each job is in one."""
        key = tuple(map(tuple, paths))
        if key != self._last[0]:
            self._last = key, self._grouped(key)
        return self._last[1]

    def _grouped(self, paths: tuple[tuple[Choice, ...], ...]) -> list[Group]:
        users: dict[int, list[int]] = defaultdict(list)
        for job, choices in enumerate(paths):
            for link in self._on_links(job, choices)[1]:
                users[link].append(job)
        leader = list(range(len(paths)))
        for jobs in users.values():
            _join(leader, jobs)
        members: dict[int, list[int]] = defaultdict(list)
        links: dict[int, list[int]] = defaultdict(list)
        for job in range(len(paths)):
            members[_leader(leader, job)].append(job)
        for link, jobs in users.items():
            links[_leader(leader, jobs[0])].append(link)
        return [self._group(jobs, paths, users, links[first]) for first, jobs in members.items()]

    def group_rates(self, group: Group, levels: Sequence[int], extras: Extras | None = None) -> tuple[float, ...]:
        """Return the rate of each job of a group under these levels, by place in it; `extras` are the group's."""
        case = self._case(group, levels, extras)
        if case not in self._known:
            self._known[case] = self._play(group, levels, extras)
        return self._known[case]

    def _case(self, group: Group, levels: Sequence[int], extras: Extras | None) -> Hashable:
        """What is played: all that rates depend on."""
        # Where an axis has a level of its own, it counts where that stands among all.
        if extras is not None and any(extras.axis_levels):
            return group.case, tuple(levels), extras
        return group.case, tuple(_sign(levels[one] - levels[other]) for one, other in group.sharing), extras

    def _play(self, group: Group, levels: Sequence[int], extras: Extras | None) -> tuple[float, ...]:
        self.played += len(group.jobs) > 1
        jobs = [
            self._packed(job, choices, level, () if extras is None else extras.axis_levels[place])
            for place, (job, choices, level) in enumerate(zip(group.jobs, group.choices, levels, strict=True))
        ]
        if extras is not None:
            jobs = [
                replace(job, playing=replace(job.playing, starts_s=starts_s, period_s=period_s))
                for job, starts_s, period_s in zip(jobs, extras.offsets_s, extras.periods_s, strict=True)
            ]
        return tuple(self._rates(jobs, self._bytes_per_s))

    def _packed(self, job: int, choices: tuple[Choice, ...], level: int, axis_levels: AxisLevels) -> Packed:
        """A job as it is played, made once for each of its paths and levels."""
        key = job, choices, level, axis_levels
        if key not in self._made:
            steps = self._on_links(job, choices)[0]
            if axis_levels:
                steps = levelled(self.view.jobs[job], steps, axis_levels)
            self._made[key] = pack(Playing(steps=steps, level=level, weight=self.view.jobs[job].weight))
        return self._made[key]

    def _on_links(self, job: int, choices: tuple[Choice, ...]) -> tuple[tuple[Step, ...], dict[int, Amounts]]:
        """A job's steps on its paths, and for each link what each of its movers puts there."""
        key = job, choices
        if key not in self._steps:
            steps = steps_on(self.view.jobs[job], choices)
            movers = [m for step in steps for transfer in step.transfers for m in transfer.movers]
            amounts: dict[int, list[tuple[int, float]]] = defaultdict(list)
            for number, mover in enumerate(movers):
                for link, bytes_per_s in mover.way:
                    amounts[link].append((number, bytes_per_s))
            self._steps[key] = steps, {link: tuple(its) for link, its in amounts.items()}
        return self._steps[key]

    def _group(
        self, jobs: list[int], paths: Sequence[tuple[Choice, ...]], users: dict[int, list[int]], links: list[int]
    ) -> Group:
        choices = tuple(paths[job] for job in jobs)
        amounts = {job: self._on_links(job, its)[1] for job, its in zip(jobs, choices, strict=True)}
        loads = frozenset(
            (self.view.bytes_per_s[link], tuple((job, amounts[job][link]) for job in users[link])) for link in links
        )
        place = {job: number for number, job in enumerate(jobs)}
        on_links = {tuple(users[link]) for link in links}
        sharing = {(place[a], place[b]) for its in on_links for n, a in enumerate(its) for b in its[n + 1 :]}
        return Group(jobs=tuple(jobs), links=loads, sharing=tuple(sorted(sharing)), choices=choices)


def _sign(difference: int) -> int:
    return (difference > 0) - (difference < 0)


def _leader(leader: list[int], job: int) -> int:
    while leader[job] != job:
        leader[job] = leader[leader[job]]
        job = leader[job]
    return job


def _join(leader: list[int], jobs: Sequence[int]) -> None:
    first = _leader(leader, jobs[0])
    for job in jobs[1:]:
        other = _leader(leader, job)
        first, other = min(first, other), max(first, other)
        leader[other] = first
