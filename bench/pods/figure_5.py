"""Figure 5 and Table 2: 96 GPUs in two pods, aligned with PP groups, with DP groups, and with neither."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import mean
from typing import Any

from bench.pods.jobs import L20_JOBS, SPREAD, Job, dense_24b, moe_24b, pods_of_nodes, seconds, shuffled
from planner.one_job.site_pods.candidates import seating_by
from planner.one_job.site_pods.site_job import SiteJob
from profiles.vocabulary import Infeasible

PODS = (6, 6)
DRAWS = 6
PAPER = {
    "dense 24B": ("0%", "2.3%"),
    "MoE 24B": ("helps less", "1.8%"),
    "dense 7B": ("1.4%", "less"),
    "dense 14B": ("less", "0.5%"),
}
FABRICS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("line to 4", {"spread": SPREAD}),
    ("ends at 2", {"spread": {"collective": [1, 0.83], "message": [1, 0.3], "source": "figure 4's ends at two pods"}}),
)
HIDDEN: tuple[tuple[str, tuple[str, ...] | None], ...] = (
    ("dp, tp, p2p", None),
    ("dp", ("dp",)),
    ("nothing", ()),
)
"""What runs beside compute: as the generic software has it, as Megatron's plain 1F1B, nothing."""
LAYERS = (1.5, 2.0)
"""Figure 5(b): as many times the layers."""
HEAD = "| job | layers | shares | beside compute | neither | DP-aligned | paper | PP-aligned | paper |"
RULE = "| -- | --: | -- | -- | --: | --: | --: | --: | --: |"


def lines() -> Iterator[str]:
    """Return the tables' lines."""
    yield f"\nGains over nodes in no order (mean of {DRAWS} draws), in per cent of an iteration"
    yield "\nShares: figure 4's ends on a line to 4 pods (as shipped), or both at 2 pods already\n"
    yield HEAD
    yield RULE
    jobs = (dense_24b(), moe_24b(), *L20_JOBS)
    for job in jobs:
        for fabric, level in FABRICS:
            for hidden, overlap in HIDDEN:
                yield _row(job, fabric, level, hidden, overlap, *PAPER[job.name])
    yield "\nFigure 5(b): more layers (paper: the gain grows)\n"
    yield HEAD
    yield RULE
    (fabric, level), (hidden, overlap) = FABRICS[1], HIDDEN[1]
    for job in (*(dense_24b(int(52 * times)) for times in LAYERS), *(moe_24b(int(24 * times)) for times in LAYERS)):
        yield _row(job, fabric, level, hidden, overlap, "", "grows")
    yield ""
    for job in jobs:
        yield f"- {job.name}, {job.devices} {job.device.upper()}: {job.said}"


def _row(
    job: Job,
    fabric: str,
    level: Mapping[str, Any],
    hidden: str,
    overlap: tuple[str, ...] | None,
    paper_dp: str,
    paper_pp: str,
) -> str:
    asked = job if overlap is None else replace(job, options={**job.options, "overlap": overlap})
    placed = asked.on(pods_of_nodes(job.device, PODS, level=level))
    neither_s = mean(seconds(placed, shuffled(placed, seed)) for seed in range(DRAWS))
    dp, pp = (neither_s / _aligned(placed, alpha) - 1 for alpha in (1.0, 0.0))
    layers = len(placed.setup.model.layers) - 2
    cells = [job.name, f"{layers}", fabric, hidden, f"{neither_s:.2f} s", f"{dp:.1%}", paper_dp, f"{pp:.1%}", paper_pp]
    return f"| {' | '.join(cells)} |"


def _aligned(job: SiteJob, alpha: float) -> float:
    """Seconds with DP groups as narrow as they can be (alpha 1), or PP groups (alpha 0)."""
    seating = seating_by(job, "spread", alpha)
    assert not isinstance(seating, Infeasible), seating
    return seconds(job, seating)
