"""Figure 5 and Table 2: 96 GPUs in two pods, aligned with PP groups, with DP groups, and with neither."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from bench.pods.jobs import L20_JOBS, Job, dense_24b, moe_24b, pods_of_nodes, price, seconds, shuffled
from estimator.pricing.outcome import Evaluation
from planner.one_job.site_pods.candidates import seating_by
from planner.one_job.site_pods.site_job import SiteJob
from profiles.vocabulary import Infeasible

PODS = (6, 6)
DRAWS = 10
PAPER = {
    "dense 24B": ("0%", "2.3%"),
    "MoE 24B": ("(alpha 0.3)", "1.8%"),
    "dense 7B": ("1.4%", ""),
    "dense 14B": ("", "0.5%"),
}
LAYERS = (1.0, 1.5, 2.0)
"""Figure 5(b): as many times the layers."""


def lines() -> Iterator[str]:
    """Return the tables' lines."""
    yield f"\nGains over nodes in no order (mean of {DRAWS} draws), in per cent of an iteration\n"
    yield "| job | neither | waits for pp | DP-aligned | paper | PP-aligned | paper |"
    yield "| -- | --: | --: | --: | --: | --: | --: |"
    jobs = (dense_24b(), moe_24b(), *L20_JOBS)
    for job in jobs:
        yield _row(job, *PAPER[job.name])
    yield "\nFigure 5(b): with more layers (paper: the gain grows)\n"
    yield "| job | neither | waits for pp | DP-aligned | paper | PP-aligned | paper |"
    yield "| -- | --: | --: | --: | --: | --: | --: |"
    for times in LAYERS[1:]:
        yield _row(dense_24b(int(52 * times)), "", "grows")
        yield _row(moe_24b(int(24 * times)), "", "grows")
    yield ""
    for job in jobs:
        yield f"- {job.name}, {job.devices} {job.device.upper()}: {job.said}"


def _row(job: Job, paper_dp: str, paper_pp: str) -> str:
    placed = job.on(pods_of_nodes(job.device, PODS))
    neither_s = mean(seconds(placed, shuffled(placed, seed)) for seed in range(DRAWS))
    dp, pp = (1 - _aligned(placed, alpha) / neither_s for alpha in (1.0, 0.0))
    layers = len(placed.setup.model.layers) - 2
    evaluation = price(placed.seated(shuffled(placed, 0)))
    assert isinstance(evaluation, Evaluation)
    waits = evaluation.breakdown.pp_s / evaluation.iteration_time_s
    cells = [f"{job.name}, {layers} layers", f"{neither_s:.2f} s", f"{waits:.1%}"]
    return f"| {' | '.join([*cells, f'{dp:.1%}', paper_dp, f'{pp:.1%}', paper_pp])} |"


def _aligned(job: SiteJob, alpha: float) -> float:
    """Seconds with DP groups as narrow as they can be (alpha 1), or PP groups (alpha 0)."""
    seating = seating_by(job, "spread", alpha)
    assert not isinstance(seating, Infeasible), seating
    return seconds(job, seating)
