"""Which jobs take turns: Muri's grouping by matchings of maximum weight, over kinds of jobs.

Jobs that need the same are one kind, counted, not named: which of them are paired changes no weight. A matching of the
jobs is then a whole number of pairs for each two kinds, and the best one an integer programme as large as the kinds
are many, however many jobs there are. It finds what Edmonds' algorithm (blossoms), which Muri names, finds on the graph
of all jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import combinations_with_replacement

from planner.many_jobs.jobs.records import Use
from planner.many_jobs.scheduling.interleaving import efficiency, fit_together, interleaved_s
from profiles.errors import InputError
from profiles.records import dataclass

Group = tuple[int, ...]
"""Kinds of the jobs that take turns, rising."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Who may take turns: no more than `most_jobs` at once; where a round is shorter than all iterations one after the
    other by `least_gain` of these at least; and no job's iteration is longer than as many of its own as there are jobs,
    which is what it would have if all of them had equal shares of the time."""

    most_jobs: int = 2
    least_gain: float = 0.05


def weight(uses: Sequence[Use], rules: Rules) -> float:
    """Return the interleaving efficiency of a group; 0 of one that there must not be."""
    if len(uses) > rules.most_jobs or not fit_together(uses):
        return 0.0
    round_takes_s = interleaved_s(uses)
    if round_takes_s > (1 - rules.least_gain) * sum(use.iteration_s for use in uses):
        return 0.0
    if round_takes_s > len(uses) * min(use.iteration_s for use in uses):
        return 0.0
    return efficiency(uses)


def group_kinds(uses: Sequence[Use], counts: Sequence[int], rules: Rules) -> dict[Group, int]:
    """Return how many groups there are of which kinds, where there are so many jobs of each kind; those that take no
    turns are groups of one.

    Round by round (Muri, Algorithm 1) groups are paired by the matching of maximum weight, the sum of the efficiencies
    of the pairs, until groups are as large as they may be or no two of them make a better one.
    """
    groups: dict[Group, int] = {(kind,): count for kind, count in enumerate(counts) if count}

    @cache
    def weigh(group: Group) -> float:
        return weight([uses[kind] for kind in group], rules)

    largest = 1
    while largest < rules.most_jobs:
        largest *= 2
        names = sorted(groups)
        pairs = match_kinds([groups[name] for name in names], lambda a, b: weigh(tuple(sorted(names[a] + names[b]))))  # noqa: B023
        for (one, other), times in pairs.items():
            for name in (names[one], names[other]):
                groups[name] -= times
            joined = tuple(sorted(names[one] + names[other]))
            groups[joined] = groups.get(joined, 0) + times
        groups = {name: count for name, count in groups.items() if count}
        if not pairs:
            break
    return groups


def match_kinds(counts: Sequence[int], weigh: Callable[[int, int], float]) -> dict[tuple[int, int], int]:
    """Return how many pairs of two kinds, the lower number first, make a matching of maximum weight, where there are so
    many of each kind and a pair of two kinds weighs so much (0 or less: there must be none).

    maximise sum w_ab x_ab, where 2 x_aa + sum over b of x_ab <= counts_a, x whole. HiGHS proves it; of equal ones it
    takes the same each time. InputError where scipy is missing.
    """
    pairs: list[tuple[int, int]] = []
    weights: list[float] = []
    for one, other in combinations_with_replacement(range(len(counts)), 2):
        worth = weigh(one, other) if one != other or counts[one] > 1 else 0.0
        if worth > 0:
            pairs.append((one, other))
            weights.append(worth)
    if len(pairs) < 2:
        return {pair: _most(counts, pair) for pair in pairs}
    return _solved(tuple(counts), tuple(pairs), tuple(weights))


def _most(counts: Sequence[int], pair: tuple[int, int]) -> int:
    one, other = pair
    return counts[one] // 2 if one == other else min(counts[one], counts[other])


@lru_cache(maxsize=4096)
def _solved(
    counts: tuple[int, ...], pairs: tuple[tuple[int, int], ...], weights: tuple[float, ...]
) -> dict[tuple[int, int], int]:
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array
    except ModuleNotFoundError:
        expected = "pip install 'cellplan[schedule]'"
        raise InputError(where="policy muri", found="no scipy", expected=expected) from None
    import numpy as np

    number = np.arange(len(pairs))
    kinds = np.array(pairs)
    matrix = coo_array(
        (np.ones(2 * len(pairs)), (kinds.T.ravel(), np.tile(number, 2))), shape=(len(counts), len(pairs))
    ).tocsr()
    solved = milp(
        -np.array(weights),
        constraints=LinearConstraint(matrix, ub=np.array(counts, dtype=float)),
        integrality=np.ones(len(pairs)),
        bounds=Bounds(0, np.array([_most(counts, pair) for pair in pairs], dtype=float)),
        options={"mip_rel_gap": 0.0},
    )
    if solved.x is None:
        raise RuntimeError(f"the matching was not solved: {solved.message}")
    times = np.round(solved.x).astype(int).tolist()
    return {pair: count for pair, count in zip(pairs, times, strict=True) if count}
