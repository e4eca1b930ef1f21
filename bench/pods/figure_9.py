"""Figure 9: a large MoE on 208 and on 9,600 GPUs, placed by its groups, against what the framework gets by default.

Neither the cluster's pods nor what was free in them is published. Ours are drawn as those of Table 1
(`bench.pods.cases`): for 208 GPUs the 11 pods of (iii), eight tenths busy, so that few pods hold the job; for 9,600 of
16,000 GPUs 22 pods of 2,000 nodes, a quarter busy. What MegaScale's scheduler took by default is not published either:
the rows are four that it may have been.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import mean

from bench.pods.cases import TABLE_1, Setting, free_nodes
from bench.pods.jobs import LARGE, MEDIUM, Job, pods_of_nodes, price, seconds
from planner.one_job.site_pods.affinity import estimated_affinity
from planner.one_job.site_pods.axis_spread import axis_spreads
from planner.one_job.site_pods.candidates import candidates, seating_by
from planner.one_job.site_pods.least_time import place_by_time
from planner.one_job.site_pods.site_job import SiteJob
from profiles.vocabulary import Infeasible

WHOLE = Setting(name="16,000 GPUs", pods=22, nodes=2000, dp=150, tp=8, pp=8)
DEFAULTS = ("slurm", "cluster-order", "best-fit", "random-fit")
PAPERS_ALPHA = 0.3
CASES: tuple[tuple[Job, Setting, float, int, str], ...] = (
    (MEDIUM, TABLE_1[2], 0.8, 5, "+5.7%; DP 3x, PP 2x less"),
    (LARGE, WHOLE, 0.25, 1, "+10.6%; DP 1.5x, PP 1.3x less"),
)
HIDDEN: tuple[tuple[str, tuple[str, ...] | None], ...] = (("dp, tp, p2p", None), ("dp", ("dp",)))

Timed = tuple[float, int, int]
"""Seconds of an iteration, and the pods of the widest DP and PP group."""


def lines() -> Iterator[str]:
    """Return the tables' lines."""
    yield f"\nGains in throughput; spreads (DP, PP in pods); means over draws; arnold at the paper's {PAPERS_ALPHA}\n"
    yield "| job | draws | beside compute | default | DP, PP | ours: DP, PP | gain | arnold: DP, PP | gain | paper |"
    yield "| -- | --: | -- | -- | -- | -- | --: | -- | --: | -- |"
    for job, setting, busy, draws, paper in CASES:
        sizes = [[size for size in free_nodes(setting, busy, seed) if size] for seed in range(draws)]
        for hidden, overlap in HIDDEN:
            asked = job if overlap is None else replace(job, options={**job.options, "overlap": overlap})
            placed = [asked.on(pods_of_nodes(job.device, free)) for free in sizes]
            ours = [_ours(one) for one in placed]
            arnold = [_timed(one, "arnold", PAPERS_ALPHA) for one in placed]
            for name in DEFAULTS:
                others = [_timed(one, name, 0.5) for one in placed]
                cells = [job.name, f"{draws}", hidden, name, _spreads(others)]
                for way in (ours, arnold):
                    gain = mean(other[0] / one[0] - 1 for other, one in zip(others, way, strict=True))
                    cells += [_spreads(way), f"{gain:+.1%}"]
                yield f"| {' | '.join([*cells, paper])} |"
    yield ""
    for job, *_ in CASES:
        yield f"- {job.name}: {job.said}"


def _ours(job: SiteJob) -> Timed:
    """Of the default method, without exchanges of nodes, which are many at this size."""
    affinity = estimated_affinity(job, price)
    assert not isinstance(affinity, Infeasible), affinity
    placed = place_by_time(job, affinity.alpha, candidates(job, affinity.alpha), price, exchanges=False)
    assert not isinstance(placed, Infeasible), placed
    spreads = axis_spreads(placed.best.setup)
    return placed.best.time_s, spreads["dp"], spreads["pp"]


def _timed(job: SiteJob, method: str, alpha: float) -> Timed:
    seating = seating_by(job, method, alpha)
    assert not isinstance(seating, Infeasible), seating
    spreads = axis_spreads(job.seated(seating))
    return seconds(job, seating), spreads["dp"], spreads["pp"]


def _spreads(timed: list[Timed]) -> str:
    return f"{mean(one[1] for one in timed):.1f}, {mean(one[2] for one in timed):.1f}"
