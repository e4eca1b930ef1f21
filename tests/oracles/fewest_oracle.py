"""The fewest jobs that change under any paths and levels that do enough work, by trying all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from planner.contention.policies.records import View

Paths = tuple[tuple[int, ...], ...]


def fewest_changes(
    view: View, rates: Callable[[Paths, tuple[int, ...]], Sequence[float]], least: float, most_slowed: float
) -> tuple[int, float] | None:
    """Return how many jobs change at least, and the most work of those that change so many; None where nothing does
    enough. A job that shares no link has no level that could change."""
    found = []
    for paths in product(*(tuple(product(*map(range, map(len, job.paths)))) for job in view.jobs)):
        links = [
            {link for options, choice in zip(job.paths, choices, strict=True) for link, _ in options[choice]}
            for job, choices in zip(view.jobs, paths, strict=True)
        ]
        meets = [any(its & other for other in links if other is not its) for its in links]
        for levels in product(range(view.levels or len(view.jobs)), repeat=len(view.jobs)):
            its = rates(paths, levels)
            work = sum(job.flops * rate for job, rate in zip(view.jobs, its, strict=True))
            slowed = max(
                1 / (rate * job.alone_s) if rate else float("inf") for job, rate in zip(view.jobs, its, strict=True)
            )
            changed = sum(
                choices != job.now or (shares and level != job.own_level)
                for job, choices, shares, level in zip(view.jobs, paths, meets, levels, strict=True)
            )
            if work >= least and slowed <= most_slowed:
                found.append((changed, -work))
    return (min(found)[0], -min(found)[1]) if found else None
