"""Figure 9: a large MoE on 208 and on 9,600 GPUs, placed by its groups, against what the framework gets by default.

Neither the cluster's pods nor what was free in them is published. Ours are drawn as those of Table 1
(`bench.pods.cases`): for 208 GPUs the 11 pods of (iii), half busy; for 9,600 of 16,000 GPUs 22 pods of 2,000 nodes, a
quarter busy. What MegaScale's scheduler takes by default is not published either: the columns are three that it may be.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from bench.pods.cases import TABLE_1, Setting, free_nodes
from bench.pods.jobs import LARGE, MEDIUM, Job, pods_of_nodes, seconds
from planner.one_job.site_pods.axis_spread import axis_spreads
from planner.one_job.site_pods.candidates import seating_by
from planner.one_job.site_pods.site_job import SiteJob
from profiles.vocabulary import Infeasible

WHOLE = Setting(name="16,000 GPUs", pods=22, nodes=2000, dp=150, tp=8, pp=8)
DEFAULTS = ("slurm", "cluster-order", "best-fit", "random-fit")
ALPHA = 0.3
"""The paper's of the MoE."""
CASES: tuple[tuple[Job, Setting, float, int, str], ...] = (
    (MEDIUM, TABLE_1[2], 0.5, 5, "+5.7%, DP 3x, PP 2x less"),
    (LARGE, WHOLE, 0.25, 2, "+10.6%, DP 1.5x, PP 1.3x less"),
)


def lines() -> Iterator[str]:
    """Return the tables' lines."""
    yield f"\nSpread at alpha {ALPHA}; gains in throughput and spreads (DP, PP in pods), means over draws\n"
    yield "| job | draws | spread: DP, PP | default | DP, PP | spread gains | arnold gains | paper |"
    yield "| -- | --: | -- | -- | -- | --: | --: | -- |"
    for job, setting, busy, draws, paper in CASES:
        sizes = [[size for size in free_nodes(setting, busy, seed) if size] for seed in range(draws)]
        placed = [job.on(pods_of_nodes(job.device, free)) for free in sizes]
        ours = [_timed(one, "spread") for one in placed]
        paper_s = [_timed(one, "arnold") for one in placed]
        for name in DEFAULTS:
            others = [_timed(one, name) for one in placed]
            gains = [
                mean(other[0] / one[0] - 1 for other, one in zip(others, way, strict=True)) for way in (ours, paper_s)
            ]
            cells = [job.name, f"{draws}", _spreads(ours), name, _spreads(others), *(f"{gain:+.1%}" for gain in gains)]
            yield f"| {' | '.join([*cells, paper])} |"
    yield ""
    for job, *_ in CASES:
        yield f"- {job.name}: {job.said}"


def _timed(job: SiteJob, method: str) -> tuple[float, int, int]:
    """Seconds of an iteration, and the pods of the widest DP and PP group."""
    seating = seating_by(job, method, ALPHA)
    assert not isinstance(seating, Infeasible), seating
    spreads = axis_spreads(job.seated(seating))
    return seconds(job, seating), spreads["dp"], spreads["pp"]


def _spreads(timed: list[tuple[float, int, int]]) -> str:
    return f"{mean(one[1] for one in timed):.1f}, {mean(one[2] for one in timed):.1f}"
