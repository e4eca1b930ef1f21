"""All paths and levels of a few jobs, with proof: what is left out is equal to something that was played, or cannot be
better by a bound."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cache
from itertools import product
from math import prod

from planner.contention.policies.records import Choice, View
from planner.contention.policies.rehearsals import Amounts, Group, Rehearsals
from planner.contention.policies.worth import excess_of, slowdowns, work_per_s
from profiles.records import dataclass

Paths = tuple[tuple[Choice, ...], ...]

NO_BETTER = 1e-12
"""A bound that is above the best by no more, relatively, is not."""


@dataclass(frozen=True, kw_only=True)
class Best:
    """Paths and levels, the work that jobs do with them in a second and the greatest slowdown; whether nothing is
    better. `excess`: by how much that slowdown is above the cap."""

    paths: Paths
    levels: tuple[int, ...]
    flops_per_s: float
    slowdown: float
    excess: float
    proved: bool

    @property
    def key(self) -> tuple[float, float]:
        """The greater the better: the cap first, then the work."""
        return -self.excess, self.flops_per_s


@dataclass(frozen=True, kw_only=True)
class _GroupBest:
    levels: tuple[int, ...]
    flops_per_s: float
    slowdown: float
    excess: float


def count_paths(view: View) -> int:
    """Return how many ways there are to give all connections a path."""
    return prod(len(options) for job in view.jobs for options in job.paths)


def every_path(view: View) -> Iterator[Paths]:
    """Go through all of them."""
    options = [[range(len(its)) for its in job.paths] for job in view.jobs]
    yield from product(*(product(*its) for its in options))


@cache
def weak_orders(jobs: int, levels: int) -> list[tuple[int, ...]]:
    """Return all ways to give jobs at most `levels` levels, none of which is left out below one that is used."""
    orders = [()]  # type: list[tuple[int, ...]]
    for _ in range(jobs):
        orders = [(*order, level) for order in orders for level in range(min(levels, jobs))]
    return [order for order in orders if set(order) == set(range(max(order, default=-1) + 1))]


def most_plays(rehearsals: Rehearsals) -> int:
    """Return how many cases would be played at most to find the best of all."""
    view = rehearsals.view
    sizes = {group.case: len(group.jobs) for paths in every_path(view) for group in rehearsals.groups(paths)}
    return sum(len(weak_orders(size, view.levels or size)) for size in sizes.values())


def best_paths_and_levels(rehearsals: Rehearsals, *, cap: float | None = None, fixed: Paths | None = None) -> Best:
    """Return the best of all paths and levels; of levels alone where the paths are `fixed`. Paths that promise most are
    played first, and none whose bound is not above the best. With a cap the least excess comes before the most work."""
    memo: dict[Hashable, _GroupBest] = {}
    best: Best | None = None
    for promise, paths, groups in _candidates(rehearsals, [fixed] if fixed else every_path(rehearsals.view)):
        enough = -1.0 if best is None or best.excess > 0 else best.flops_per_s * (1 + NO_BETTER)
        if promise <= enough:
            break
        this = _best_on(rehearsals, paths, groups, memo, cap, enough)
        if this is not None and (best is None or this.key > best.key):
            best = this
    assert best is not None
    return best


def _candidates(rehearsals: Rehearsals, ways: Iterable[Paths]) -> list[tuple[float, Paths, list[Group]]]:
    """Paths, with their bound and their groups, one of each that are equal to playing; the greatest bound first."""
    promises: dict[Hashable, float] = {}
    candidates: dict[frozenset[Hashable], tuple[float, Paths, list[Group]]] = {}
    for paths in ways:
        groups = rehearsals.groups(paths)
        cases = frozenset(group.case for group in groups)
        if cases not in candidates:
            for group in groups:
                if group.case not in promises:
                    promises[group.case] = bound_by_links(rehearsals.view, group)
            candidates[cases] = sum(promises[group.case] for group in groups), paths, groups
    return sorted(candidates.values(), key=lambda candidate: (-candidate[0], candidate[1]))


def _best_on(
    rehearsals: Rehearsals,
    paths: Paths,
    groups: Sequence[Group],
    memo: dict[Hashable, _GroupBest],
    cap: float | None,
    enough: float,
) -> Best | None:
    """The best levels on these paths; None as soon as they cannot do more than `enough`. Groups share nothing, so that
    each has its own best."""
    open_groups = [group for group in groups if group.case not in memo]
    known = sum(memo[group.case].flops_per_s for group in groups if group.case in memo)
    promised = [bound_by_links(rehearsals.view, group) for group in open_groups]
    for place, group in enumerate(open_groups):
        if known + sum(promised[place:]) <= enough:
            return None
        memo[group.case] = _best_of_group(rehearsals, group, cap)
        known += memo[group.case].flops_per_s
    parts = [memo[group.case] for group in groups]
    levels = {
        job: level
        for group, part in zip(groups, parts, strict=True)
        for job, level in zip(group.jobs, part.levels, strict=True)
    }
    slowdown = max((part.slowdown for part in parts), default=1.0)
    return Best(
        paths=paths,
        levels=tuple(levels[job] for job in range(len(paths))),
        flops_per_s=sum(part.flops_per_s for part in parts),
        slowdown=slowdown,
        excess=excess_of(slowdown, cap),
        proved=True,
    )


def _best_of_group(rehearsals: Rehearsals, group: Group, cap: float | None) -> _GroupBest:
    """The best levels of a group."""
    view = rehearsals.view
    jobs = [view.jobs[job] for job in group.jobs]
    tried: dict[tuple[bool, ...], None] = {}
    best: _GroupBest | None = None
    for levels in weak_orders(len(jobs), view.levels or len(jobs)):
        signs = tuple(sign for a, b in group.sharing for sign in (levels[a] < levels[b], levels[a] > levels[b]))
        if signs in tried:
            continue
        tried[signs] = None
        rates = rehearsals.group_rates(group, levels)
        slowdown = max(slowdowns(jobs, rates))
        this = _GroupBest(
            levels=levels,
            flops_per_s=work_per_s(jobs, rates),
            slowdown=slowdown,
            excess=excess_of(slowdown, cap),
        )
        if best is None or (-this.excess, this.flops_per_s) > (-best.excess, best.flops_per_s):
            best = this
    assert best is not None
    return best


def bound_by_links(view: View, group: Group) -> float:
    """Return FLOP/s that a group cannot pass: of one link after the other, the jobs that do most for a second of it at
    full speed until it is full, the others at full speed; the least of all links."""
    jobs = {job: view.jobs[job] for job in group.jobs}
    full = sum(job.flops / job.alone_s for job in jobs.values())
    least = full
    for rate, users in group.links:
        times = [(number, _seconds_on(view, number, amounts, rate)) for number, amounts in users]
        left, worth = 1.0, full - sum(jobs[number].flops / jobs[number].alone_s for number, _ in times)
        for number, time_s in sorted(times, key=lambda user: -jobs[user[0]].flops / max(user[1], 1e-300)):
            share = min(left, time_s / jobs[number].alone_s)
            worth += (
                jobs[number].flops / jobs[number].alone_s * (share * jobs[number].alone_s / time_s if time_s else 1)
            )
            left -= share
        least = min(least, worth)
    return least


def _seconds_on(view: View, job: int, amounts: Amounts, bytes_per_s: float) -> float:
    """How long an iteration's bytes of a job keep a link busy on which its movers put these amounts."""
    sizes = [
        step.times * transfer.times * mover.seconds
        for step in view.jobs[job].steps
        for transfer in step.transfers
        for mover in transfer.movers
    ]
    total = sum(sizes[mover] * amount for mover, amount in amounts)
    return total / bytes_per_s if bytes_per_s > 0 else float("inf")
