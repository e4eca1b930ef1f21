"""Paths and levels of many jobs: from several starts, step by step to what the simulator says is better."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random

from planner.contention.policies.exhaustive import Best, Paths
from planner.contention.policies.records import Choice, View
from planner.contention.policies.rehearsals import Rehearsals
from planner.contention.policies.worth import excess_of, slowdowns, work_per_s
from profiles.records import dataclass

BETTER = 1e-9
"""Work that is more by no more, relatively, is the same."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where the search begins."""

    paths: Paths
    levels: tuple[int, ...]


Move = Callable[[Start], Start | None]
"""A step from one decision to another; None where it leads nowhere new."""


def search(
    rehearsals: Rehearsals,
    starts: Sequence[Start],
    *,
    plays: int,
    cap: float | None = None,
    bound: float = float("inf"),
    seed: int = 0,
    allowed: Callable[[Start], bool] | None = None,
) -> Best:
    """Return the best that is found in at most `plays` played cases: the starts are looked at, then each is improved
    until no step from it is better, the best one first; when all have been, random ones follow. With a cap the least
    excess comes before the most work. Where the bound is reached it ends, with proof.

    Args:
        rehearsals: what plays. A case that it knows is no play but a look, of which there are `LOOKS` a play at most.
        starts: at least one. The first is looked at whatever it takes, others while there are plays for them.
        plays: cases that may be played from now on; nothing is begun that may take more.
        cap: on every job's slowdown.
        bound: FLOP/s that nothing can pass.
        seed: of the order of steps, and of random starts.
        allowed: where steps may lead; then no random starts follow, and each of `starts` is allowed.
    """
    rng, budget = Random(seed), _Budget(rehearsals, plays, cap)
    valued = [value_of(rehearsals, starts[0], cap)]
    valued += [value for start in starts[1:] if (value := budget.value_of(start)) is not None]
    best = max(valued, key=lambda it: it.key)
    ranked = [Start(paths=it.paths, levels=it.levels) for it in sorted(valued, key=lambda it: it.key, reverse=True)]
    for number, start in enumerate(_with_random(rehearsals.view, ranked, rng)):
        if best.excess == 0 and best.flops_per_s >= bound * (1 - BETTER):
            break
        over = budget.is_spent or number >= len(ranked) + RANDOM_STARTS or allowed is not None
        if number >= len(ranked) and over:
            break
        climbed = _climb(budget, start, rng, allowed)
        if climbed is not None and _better(climbed, best):
            best = climbed
    reached = best.excess == 0 and best.flops_per_s >= bound * (1 - BETTER)
    return replace(best, proved=True) if reached else best


RANDOM_STARTS = 40
"""So many follow those that are given, while plays are left."""
LOOKS = 20
"""Decisions whose cases are known may be looked at so often for each play: they cost some of it."""


class _Budget:
    """Cases that may still be played, and decisions that may still be looked at."""

    def __init__(self, rehearsals: Rehearsals, plays: int, cap: float | None) -> None:
        self.rehearsals, self._cap = rehearsals, cap
        self._last, self._looks = rehearsals.played + plays, LOOKS * plays
        self.is_spent = plays <= 0

    def value_of(self, start: Start) -> Best | None:
        """Return what a decision is worth; None where that takes more than is left."""
        if self.is_spent:
            return None
        self._looks -= 1
        cases = self.rehearsals.cases_of(start.paths, start.levels)
        affordable = self.rehearsals.played + cases <= self._last
        value = value_of(self.rehearsals, start, self._cap) if affordable else None
        self.is_spent = self.rehearsals.played >= self._last or self._looks <= 0
        return value


def _with_random(view: View, starts: Sequence[Start], rng: Random) -> Iterator[Start]:
    yield from starts
    levels = view.levels or max(len(view.jobs), 1)
    while True:
        yield Start(
            paths=tuple(tuple(rng.randrange(len(options)) for options in job.paths) for job in view.jobs),
            levels=tuple(rng.randrange(levels) for _ in view.jobs),
        )


def _climb(budget: _Budget, start: Start, rng: Random, allowed: Callable[[Start], bool] | None) -> Best | None:
    """Take the first step that is better, until none of them is or nothing is left; None where not even the start can
    be looked at."""
    at, best = start, budget.value_of(start)
    moves = list(_moves(budget.rehearsals.view))
    rng.shuffle(moves)
    since, place = 0, 0
    while best is not None and since < len(moves) and not budget.is_spent:
        following = moves[place](at)
        place, since = (place + 1) % len(moves), since + 1
        if following is None or (allowed is not None and not allowed(following)):
            continue
        value = budget.value_of(following)
        if value is not None and _better(value, best):
            at, best, since = following, value, 0
    return best


def value_of(rehearsals: Rehearsals, start: Start, cap: float | None = None) -> Best:
    """Return what a decision is worth."""
    rates = rehearsals.iterations_per_s(start.paths, start.levels)
    slowdown = max(slowdowns(rehearsals.view.jobs, rates), default=1.0)
    return Best(
        paths=start.paths,
        levels=start.levels,
        flops_per_s=work_per_s(rehearsals.view.jobs, rates),
        slowdown=slowdown,
        excess=excess_of(slowdown, cap),
        proved=False,
    )


def _better(one: Best, other: Best) -> bool:
    if one.excess != other.excess:
        return one.excess < other.excess
    return one.flops_per_s > other.flops_per_s * (1 + BETTER)


def _moves(view: View) -> Iterator[Move]:
    """All steps: another path for a connection, another level for a job, two jobs that swap their levels."""
    levels, jobs = view.levels or len(view.jobs), len(view.jobs)
    for job, contender in enumerate(view.jobs):
        for connection, options in enumerate(contender.paths):
            yield from (_to_path(job, connection, path) for path in range(len(options)) if len(options) > 1)
        yield from (_to_level(job, level) for level in range(min(levels, jobs)))
        yield from (_swap(job, other) for other in range(job + 1, jobs))


def _to_path(job: int, connection: int, path: Choice) -> Move:
    def move(start: Start) -> Start | None:
        choices = start.paths[job]
        if choices[connection] == path:
            return None
        changed = (*choices[:connection], path, *choices[connection + 1 :])
        return Start(paths=(*start.paths[:job], changed, *start.paths[job + 1 :]), levels=start.levels)

    return move


def _to_level(job: int, level: int) -> Move:
    def move(start: Start) -> Start | None:
        if start.levels[job] == level:
            return None
        return Start(paths=start.paths, levels=(*start.levels[:job], level, *start.levels[job + 1 :]))

    return move


def _swap(one: int, other: int) -> Move:
    def move(start: Start) -> Start | None:
        if start.levels[one] == start.levels[other]:
            return None
        levels = list(start.levels)
        levels[one], levels[other] = levels[other], levels[one]
        return Start(paths=start.paths, levels=tuple(levels))

    return move
