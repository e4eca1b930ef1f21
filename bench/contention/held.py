"""What a decision loses where what it believes is wrong, what it still brings where few jobs may change, and what later
begins bring on top; over the cases of figure 16.

- Beliefs: of each job W, the seconds on the wire and those of compute are off by a share, each up or down by lot; the
  work is what the jobs then really do, beside that of the same policy where nothing is wrong.
- Changes: so many jobs at most change their path or level, from hashed paths and one level for all.
- Begins: `ours` without and with offsets and periods; work in the mean of draws in which jobs are late, and of draws in
  which none is (`planner.contention.policies.varied`); other draws than those by which begins were chosen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import mean

from bench.contention.cases import JOBS, draw_case
from planner.contention.policies.assembling import assemble_policy
from planner.contention.policies.beliefs import Believing
from planner.contention.policies.catalogue import make_network_policy
from planner.contention.policies.keeping import changed_jobs
from planner.contention.policies.ours import Ours
from planner.contention.policies.records import Decision, NetworkPolicy, View
from planner.contention.policies.rehearsals import Rehearsals
from planner.contention.policies.varied import Varied
from planner.contention.policies.worth import work_per_s

ERRORS = (0.05, 0.1, 0.2)
BELIEVERS = ("ecmp", "cassini", "varys", "crux", "ours")
CHANGERS = ("crux", "ours")
DRAWS = {"compute late by up to 6%": range(101, 111, 2), "compute even by 1%, none late": range(100, 110, 2)}
"""Of `planner.contention.policies.varied`, by what they are."""


def lines(cases: int, first: int) -> Iterator[str]:
    """Yield the tables, over so many cases from a seed on."""
    views = [draw_case(seed) for seed in range(first, first + cases)]
    yield f"{cases} cases from seed {first}"
    yield from _beliefs(views, first)
    yield from _changes(views)
    yield from _begins(views)


def _work(view: View, decision: Decision) -> float:
    return work_per_s(view.jobs, Rehearsals(view).rates_of(decision))


def _beliefs(views: list[View], first: int) -> Iterator[str]:
    yield ""
    yield "| work, % of hashed paths and fair shares | nothing wrong | 5% | 10% | 20% | lost at 20%, worst case |"
    yield "|---|---|---|---|---|---|"
    fair = [_work(view, make_network_policy("ecmp").decide(view)) for view in views]
    for name in BELIEVERS:
        policy = Ours(offsets=False) if name == "ours" else make_network_policy(name)
        shares: dict[float, list[float]] = defaultdict(list)
        for seed, (view, base) in enumerate(zip(views, fair, strict=True), first):
            for error in (0.0, *ERRORS):
                shares[error].append(100 * _work(view, Believing(policy, error, seed).decide(view)) / base)
        worst = max(100 * (1 - wrong / right) for right, wrong in zip(shares[0.0], shares[ERRORS[-1]], strict=True))
        yield f"| {name} | " + " | ".join(f"{mean(its):.2f}" for its in shares.values()) + f" | {worst:.1f}% |"


def _changes(views: list[View]) -> Iterator[str]:
    yield ""
    yield (
        "| jobs that change at most | "
        + " | ".join(f"{name}, % of its work with all changes" for name in CHANGERS)
        + " |"
    )
    yield "|---|" + "---|" * len(CHANGERS)
    best = {name: [_work(view, _held(name, JOBS).decide(view)) for view in views] for name in CHANGERS}
    for most in range(JOBS + 1):
        cells = []
        for name in CHANGERS:
            decisions = [_held(name, most).decide(view) for view in views]
            shares = [
                100 * _work(view, decision) / all_of_it
                for view, decision, all_of_it in zip(views, decisions, best[name], strict=True)
            ]
            changed = mean(len(changed_jobs(view, it)) for view, it in zip(views, decisions, strict=True))
            cells.append(f"{mean(shares):.2f} ({changed:.2f} changed)")
        yield f"| {most} | " + " | ".join(cells) + " |"


def _held(name: str, most: int) -> NetworkPolicy:
    options: dict[str, object] = {"offsets": False, "axes": False} if name == "ours" else {}
    return assemble_policy(name, options=options, change_at_most=most)


def _begins(views: list[View]) -> Iterator[str]:
    yield ""
    yield "| begins and periods on top of paths and levels | work gained, mean | most | least | gained in | lost in |"
    yield "|---|---|---|---|---|---|"
    decisions = [(Ours(offsets=False).decide(view), Ours().decide(view)) for view in views]
    for name, draws in DRAWS.items():
        gains = []
        for view, (before, after) in zip(views, decisions, strict=True):
            varied = Varied(view)
            gains.append(100 * (varied.work(after, draws) / varied.work(before, draws) - 1))
        more, less = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
        yield f"| {name} | {mean(gains):+.2f}% | {max(gains):+.2f}% | {min(gains):+.2f}% | {more} | {less} |"
    changed = sum(after != before for before, after in decisions)
    held = sum(any(after.periods_s) for _, after in decisions)
    yield ""
    yield f"Begins are kept in {changed} of {len(views)} cases, periods in {held}."
