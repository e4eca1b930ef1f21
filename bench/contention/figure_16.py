"""Figure 16: paths, priorities and compression, each beside the optimum of the other two; whole policies beside it.

- Paths: those of a method, with the best levels on them.
- Priorities: a method's order on the best paths, with the best compression of that order.
- Compression: a method's levels for the best order (of all, each job with a level of its own) on the best paths, beside
  the best compression of that order.
- `ours` by so many plays: the most work that it finds; and what it answers, all but a thousandth of that at most, so
  that fewer jobs change.
Shares of the most work (eq. 1) that any paths and levels do. Nothing varies: compute takes as long in every iteration.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations, product
from pathlib import Path
from statistics import mean

from bench.contention.cases import LEVELS, draw_case, priced_all
from bench.contention.cdf import cdf_svg
from planner.contention.policies.bound import bound_flops_per_s
from planner.contention.policies.catalogue import NETWORK_POLICIES, make_network_policy
from planner.contention.policies.coflows import bssi_order
from planner.contention.policies.compression.catalogue import COMPRESSIONS
from planner.contention.policies.compression.dag import contention_dag
from planner.contention.policies.crux import Crux
from planner.contention.policies.exhaustive import Paths as Ways
from planner.contention.policies.exhaustive import best_paths_and_levels
from planner.contention.policies.fewest import SHARE
from planner.contention.policies.intensity import bottleneck_s, intensities
from planner.contention.policies.loads import LinkSeconds, contending_jobs, contending_pairs, link_seconds
from planner.contention.policies.ours import Ours
from planner.contention.policies.priority import order_by
from planner.contention.policies.records import View
from planner.contention.policies.rehearsals import Rehearsals
from planner.contention.policies.taccl_star import TacclStar
from planner.contention.policies.worth import work_per_s

PAPER = {"paths: crux": "97.69", "priorities: crux": "97.24", "compression: algorithm-1": "97.12"}
BUDGETS = (50, 400)
"""Plays of `ours` without enumeration."""

Order = tuple[int, ...]
Worth = Callable[[Ways, Sequence[int | None]], float]


def lines(cases: int, first: int, kept: Path | None = None, picture: Path | None = None) -> Iterator[str]:
    """Yield the table over so many cases from a seed on.

    Args:
        cases: how many.
        first: the first one's seed.
        kept: a file that holds what is known of cases by seed, and gets what is found out, so that a run can go on.
        picture: a file that gets the distributions as SVG.
    """
    known: dict[str, dict[str, float]] = json.loads(kept.read_text()) if kept is not None and kept.exists() else {}
    priced_all()
    warm = draw_case(first)
    Ours(exact=0, plays=2).solve(warm)  # what is compiled is no cost of a case
    for seed in range(first, first + cases):
        if str(seed) not in known:
            known[str(seed)] = case_shares(seed)
            if kept is not None:
                kept.write_text(json.dumps(known))
    rows = [known[str(seed)] for seed in range(first, first + cases)]
    optima_s, plays = (sum(row[key] for row in rows) for key in (OPTIMUM_S, OPTIMUM_PLAYS))
    yield f"{cases} cases from seed {first}; {sum(row[CASE_S] for row in rows):.0f} s of CPU"
    yield f"all optima: {optima_s:.1f} s, {1e3 * optima_s / cases:.0f} ms and {plays / cases:.0f} plays a case"
    yield ""
    yield "| % of the optimum | paper | mean | median | 5% have less | 1% have less | worst |"
    yield "|---|---|---|---|---|---|---|"
    for name in rows[0]:
        if name not in (OPTIMUM_S, OPTIMUM_PLAYS, CASE_S):
            ranked = sorted(row[name] for row in rows)
            figures = (mean(ranked), *(ranked[int(part * (len(ranked) - 1))] for part in (0.5, 0.05, 0.01, 0)))
            yield f"| {name} | {PAPER.get(name, '')} | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |"
    if picture is not None:
        series = {name: [100 - row[key] for row in rows] for name, key in PICTURED.items()}
        title = f"Figure 16: how far from the optimum, {cases} cases"
        picture.write_text(cdf_svg(title, "% of the optimum that is missed", series, least=0.0, most=15.0))


OPTIMUM_S, OPTIMUM_PLAYS, CASE_S = "CPU s of the optimum", "plays of the optimum", "CPU s"
PICTURED = {
    "paths: crux": "paths: crux",
    "paths: TACCL*": "paths: tacclstar",
    "priorities: crux": "priorities: crux",
    "priorities: Sincronia": "priorities: sincronia",
    "compression: Algorithm 1": "compression: algorithm-1",
    "compression: Varys": "compression: equal-parts",
    "all of crux": "all: crux",
    "ours, 400 plays": "all: ours, 400 plays at most",
}


def case_shares(seed: int) -> dict[str, float]:
    """Return the shares of the optimum of a case by name, with what was spent on it."""
    view, began = draw_case(seed), time.process_time()
    rehearsals = Rehearsals(view)
    best = best_paths_and_levels(rehearsals)
    row = {OPTIMUM_S: time.process_time() - began, OPTIMUM_PLAYS: float(rehearsals.played)}
    row |= {name: 100 * worth for name, worth in _parts(view, rehearsals, best.paths, best.flops_per_s)}
    return row | {CASE_S: time.process_time() - began}


def _parts(view: View, rehearsals: Rehearsals, best_paths: Ways, most: float) -> Iterator[tuple[str, float]]:
    def worth(paths: Ways, levels: Sequence[int | None]) -> float:
        return work_per_s(view.jobs, rehearsals.iterations_per_s(paths, levels)) / most

    hashed = tuple(job.now for job in view.jobs)
    for name, paths in (
        ("crux", Crux().choose_paths(view)),
        ("tacclstar", TacclStar().decide(view).paths),
        ("hashed", hashed),
    ):
        yield f"paths: {name}", best_paths_and_levels(rehearsals, fixed=paths).flops_per_s / most
    seconds = link_seconds(view, best_paths)
    pairs = contending_pairs(seconds)
    for name, order in _orders(view, seconds):
        yield f"priorities: {name}", max(worth(best_paths, levels) for levels in _compressions(view, order, pairs))
    jobs = contending_jobs(seconds)
    unlimited = {order: worth(best_paths, _levels(view, order, range(len(order)))) for order in permutations(jobs)}
    order = max(unlimited, key=lambda order: (unlimited[order], order))
    reachable = max(worth(best_paths, levels) for levels in _compressions(view, order, pairs))
    dag = contention_dag(order, pairs, dict(enumerate(intensities(view, seconds))))
    for name, compress in COMPRESSIONS.items():
        levels = _levels(view, order, compress(dag, LEVELS)) if order else (None,) * len(view.jobs)
        yield f"compression: {name}", worth(best_paths, levels) / reachable
    for name in NETWORK_POLICIES:
        if name not in ("mixed", "ours"):
            decision = make_network_policy(name).decide(view)
            rates = rehearsals.rates_of(decision)
            yield f"all: {name}", work_per_s(view.jobs, rates) / most
    for plays in BUDGETS:
        searched = Ours(exact=0, plays=plays).solve(view, give_up=SHARE)
        yield f"all: ours, {plays} plays at most", searched.most_flops_per_s / most
        yield f"all: ours, {plays} plays, fewest changes", searched.best.flops_per_s / most
    yield "all: bound", bound_flops_per_s(view) / most


def _orders(view: View, seconds: Sequence[LinkSeconds]) -> Iterator[tuple[str, Order]]:
    jobs = contending_jobs(seconds)
    intensity = intensities(view, seconds)
    times = {job: bottleneck_s(view.jobs[job], seconds[job]) for job in jobs}
    yield "crux", Crux().rank(view, seconds)
    yield "intensity alone", order_by(view, jobs, [intensity[job] for job in jobs])
    yield "sincronia", tuple(bssi_order(view, seconds))
    yield "varys (shortest first)", tuple(sorted(jobs, key=lambda job: (times[job], view.jobs[job].id)))


def _levels(view: View, order: Sequence[int], levels: Sequence[int]) -> tuple[int | None, ...]:
    level = dict(zip(order, levels, strict=True))
    return tuple(level.get(job) for job in range(len(view.jobs)))


def _compressions(view: View, order: Order, pairs: set[tuple[int, int]]) -> Iterator[tuple[int | None, ...]]:
    """All levels that never put the less important of two jobs that share a link before the other."""
    place = {job: rank for rank, job in enumerate(order)}
    ranked = [tuple(sorted((place[one], place[other]))) for one, other in pairs]
    for levels in product(range(LEVELS), repeat=len(order)):
        if all(levels[first] <= levels[second] for first, second in ranked):
            yield _levels(view, order, levels)
