"""Of decisions that do nearly as much work, one that changes fewest jobs: each change costs whoever makes it, and a
thousandth of the work is less than such figures are good for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from planner.contention.policies.arithmetic import works_by_arithmetic
from planner.contention.policies.exhaustive import Paths, bound_by_links, every_path, weak_orders
from planner.contention.policies.keeping import changed_jobs, fitting_numbers, relabelled, restored
from planner.contention.policies.levelling import needed_levels
from planner.contention.policies.records import Decision, View
from planner.contention.policies.rehearsals import Group, Rehearsals
from planner.contention.policies.stepwise import BETTER, Start
from planner.contention.policies.worth import excess_of, slowdowns, work_per_s
from profiles.records import dataclass, replace

SHARE = 1e-3
"""Of the work, which may be given up where fewer jobs change for it."""
FEW_CHANGES = 6
"""Of so many jobs all sets are tried; of more those come first that lose least by arithmetic."""
MOST_RANKED = 200
"""Of more jobs, those come first that do least: arithmetic of each by itself would take longer than plays."""

Tried = Callable[[Sequence[int]], Decision | None]
"""The decision without the changes of these jobs; None where that loses too much, or plays are spent."""


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Levels of some jobs, with the jobs that change under them and what these do."""

    changes: int
    flops_per_s: float
    levels: tuple[tuple[int, int], ...]


def fewest_of_all(
    rehearsals: Rehearsals, decision: Decision, *, share: float = SHARE, cap: float | None = None
) -> Decision:
    """Return, of all paths and levels that do at least `1 - share` of the decision's work and keep the cap as it does,
    one that changes fewest jobs, of those the one that does most. The decision is the best there is; every case that
    may be needed is played, so that this is for few jobs.

    Args:
        rehearsals: what plays; its view says what is in force.
        decision: paths and levels alone.
        share: of the work, that may be given up.
        cap: on every job's slowdown.
    """
    view = rehearsals.view
    decision = relabelled(view, decision)
    most, excess = _worth(rehearsals, decision, cap)
    least = most * (1 - share) * (1 - BETTER)
    known: dict[Hashable, _Ordered] = {}
    best: tuple[int, float, Paths, dict[int, int]] | None = None
    for paths in every_path(view):
        groups, ordered = rehearsals.groups(paths), []
        for group in groups:
            if group.case not in known:
                known[group.case] = _Ordered(bound=bound_by_links(view, group), orders=[])
            ordered.append(known[group.case])
        spare = sum(its.bound for its in ordered) - least
        if spare < 0:
            continue
        whole = [_Part(changes=0, flops_per_s=0.0, levels=())]
        for group, its in zip(groups, ordered, strict=True):
            if not its.orders:
                its.orders.extend(_orders_of(rehearsals, group, cap, excess))
            parts = _parts_of(view, group, paths, its.orders, its.bound - spare)
            whole = _undominated(_joined(one, other) for one in whole for other in parts)
        for part in whole:
            if part.flops_per_s >= least and (best is None or (part.changes, -part.flops_per_s) < (best[0], -best[1])):
                best = part.changes, part.flops_per_s, paths, dict(part.levels)
    if best is None or best[0] >= len(changed_jobs(view, decision)):
        return decision
    _, _, paths, levels = best
    each = [levels.get(job, contender.own_level) for job, contender in enumerate(view.jobs)]
    return replace(decision, paths=paths, levels=needed_levels(view, paths, each))


class _Ordered(NamedTuple):
    """Of a case the work that nothing passes, and its orders of levels with the work that each does."""

    bound: float
    orders: list[tuple[float, tuple[int, ...]]]


def _orders_of(
    rehearsals: Rehearsals, group: Group, cap: float | None, excess: float
) -> Iterator[tuple[float, tuple[int, ...]]]:
    """All orders of the group's levels that break the cap by no more."""
    jobs = [rehearsals.view.jobs[job] for job in group.jobs]
    for levels in weak_orders(len(jobs), rehearsals.view.levels or len(jobs)):
        rates = rehearsals.group_rates(group, levels)
        if excess_of(max(slowdowns(jobs, rates)), cap) <= excess:
            yield work_per_s(jobs, rates), levels


def _parts_of(
    view: View, group: Group, paths: Paths, orders: Sequence[tuple[float, tuple[int, ...]]], least: float
) -> list[_Part]:
    """Levels of a group that does at least so much, of which none changes fewer jobs and does as much."""
    jobs = [view.jobs[job] for job in group.jobs]
    moved = [paths[job] != view.jobs[job].now for job in group.jobs]
    parts = []
    for flops_per_s, order in orders:
        if flops_per_s < least:
            continue
        if len(jobs) == 1:
            parts.append(_Part(changes=int(moved[0]), flops_per_s=flops_per_s, levels=()))
            continue
        stays = [(level, job.own_level) for level, job, path in zip(order, jobs, moved, strict=True) if not path]
        numbers = fitting_numbers(stays, view.levels or len(view.jobs), order)
        levels = order if numbers is None else tuple(numbers[level] for level in order)
        stay = sum(level == job.own_level and not path for level, job, path in zip(levels, jobs, moved, strict=True))
        numbered = tuple(zip(group.jobs, levels, strict=True))
        parts.append(_Part(changes=len(jobs) - stay, flops_per_s=flops_per_s, levels=numbered))
    return _undominated(parts)


def _joined(one: _Part, other: _Part) -> _Part:
    return _Part(
        changes=one.changes + other.changes,
        flops_per_s=one.flops_per_s + other.flops_per_s,
        levels=one.levels + other.levels,
    )


def _undominated(parts: Iterable[_Part]) -> list[_Part]:
    """Of each number of changes the part that does most, where fewer changes do less."""
    kept: list[_Part] = []
    for part in sorted(parts, key=lambda each: (each.changes, -each.flops_per_s)):
        if not kept or part.flops_per_s > kept[-1].flops_per_s:
            kept.append(part)
    return kept


def fewer_changes(
    rehearsals: Rehearsals, decision: Decision, *, plays: int, share: float = SHARE, cap: float | None = None
) -> Decision:
    """Return the decision with the paths and levels of now for as many of the jobs that it changes as can be, while it
    does at least `1 - share` of its work and keeps the cap as it does; levels have the numbers that change fewest jobs.

    Args:
        rehearsals: what plays.
        decision: whatever it has, levels by axis too; when jobs begin is no change.
        plays: cases that may be played from now on, beside those of the decision itself.
        share: of the work, that may be given up.
        cap: on every job's slowdown.
    """
    view = rehearsals.view
    best = relabelled(view, decision)
    most, excess = _worth(rehearsals, best, cap)
    least, last = most * (1 - share) * (1 - BETTER), rehearsals.played + plays

    def tried(jobs: Sequence[int]) -> Decision | None:
        without = relabelled(view, restored(view, best, jobs))
        if rehearsals.played + rehearsals.would_play(without) > last:
            return None
        flops_per_s, its_excess = _worth(rehearsals, without, cap)
        return without if flops_per_s >= least and its_excess <= excess else None

    changed = changed_jobs(view, best)
    if len(changed) > FEW_CHANGES:
        return _without_first(best, _by_loss(view, best, changed), tried)
    for kept in range(len(changed)):
        sets = (tried([job for job in changed if job not in jobs]) for jobs in combinations(changed, kept))
        enough = [(each, rehearsals.rates_of(each)) for each in sets if each is not None]
        if enough:
            return max(enough, key=lambda it: work_per_s(view.jobs, it[1]))[0]
    return best


def _without_first(decision: Decision, jobs: Sequence[int], tried: Tried) -> Decision:
    """The decision without the changes of the first so many jobs, as many as can be by halving, then of those after
    them one by one."""
    without, best, low, high = list[int](), decision, 0, len(jobs)
    while low < high:
        middle = (low + high + 1) // 2
        found = tried(jobs[:middle])
        if found is None:
            high = middle - 1
        else:
            low, best, without = middle, found, list(jobs[:middle])
    for job in jobs[low:]:
        found = tried([*without, job])
        if found is not None:
            best, without = found, [*without, job]
    return best


def _by_loss(view: View, decision: Decision, jobs: Sequence[int]) -> list[int]:
    """The jobs of whose changes least is lost without them, by arithmetic, first."""
    if len(jobs) > MOST_RANKED:
        return sorted(jobs, key=lambda job: (view.jobs[job].flops / view.jobs[job].alone_s, view.jobs[job].id))
    starts = [_start_of(view, restored(view, decision, [job])) for job in jobs]
    works = dict(zip(jobs, works_by_arithmetic(view, starts), strict=True))
    return sorted(jobs, key=lambda job: (-works[job], view.jobs[job].id))


def _start_of(view: View, decision: Decision) -> Start:
    last = (view.levels or len(view.jobs)) - 1
    levels = (job.own_level if its is None else its for job, its in zip(view.jobs, decision.levels, strict=True))
    return Start(paths=decision.paths, levels=tuple(min(level, last) for level in levels))


def _worth(rehearsals: Rehearsals, decision: Decision, cap: float | None) -> tuple[float, float]:
    """Work a second, and by how much the cap is broken."""
    rates, jobs = rehearsals.rates_of(decision), rehearsals.view.jobs
    return work_per_s(jobs, rates), excess_of(max(slowdowns(jobs, rates), default=1.0), cap)
