"""What an iteration of a Cell needs of its devices and links: how long they compute, and what they hold."""

from __future__ import annotations

from collections.abc import Callable

from estimator.cells.cell import CellEstimate
from estimator.network.traffic import Span, Traffic
from estimator.pricing.outcome import TimeBreakdown
from estimator.pricing.parts import PricedSetup, price_setup
from estimator.pricing.pricing import Pricing
from estimator.traffic.of_plan import traffic_of
from planner.many_jobs.jobs.records import Grant, Job, Use, Workload
from planner.many_jobs.scheduling.cell_book import EstimatedCells


def uses_of_cells(cells: EstimatedCells) -> Callable[[Job, Grant], Use | None]:
    """Return what says what an iteration of a job needs under a grant of one pool: by the estimate of its Cell, kept.
    None of a job without a model, of one whose plan a planner makes, and where no such Cell fits."""
    uses: dict[tuple[Workload, str, int, int], Use | None] = {}

    def use(job: Job, grant: Grant) -> Use | None:
        if len(grant.parts) != 1 or grant.planner or job.workload.logged_devices is not None:
            return None
        pool, devices = grant.parts[0]
        stages = grant.stages
        if stages is None:
            best = cells.best(job.workload, pool, devices)
            if best is None:
                return None
            stages = best.stages
        key = (job.workload, pool, devices, stages)
        if key not in uses:
            uses[key] = _use(cells, *key)
        return uses[key]

    return use


def _use(cells: EstimatedCells, workload: Workload, pool: str, devices: int, stages: int) -> Use | None:
    estimate = cells.estimate(workload, pool, devices, stages)
    if not isinstance(estimate, CellEstimate):
        return None
    evaluation, hardware = estimate.evaluation, cells.hardware(pool, devices)
    priced = price_setup(estimate.setup, Pricing(lookup=hardware.lookup, link_tables=hardware.link_tables))
    assert isinstance(priced, PricedSetup), f"a Cell that was priced: {priced}"
    compute_s = min(computing_s(evaluation.breakdown), estimate.iteration_time_s)
    return Use(
        iteration_s=estimate.iteration_time_s,
        compute_s=compute_s,
        hidden_s=min(hidden_s(traffic_of(priced, 0.0)), compute_s),
        memory_bytes=max(rank.needed_bytes for rank in evaluation.memory),
        device_memory_bytes=min(evaluation.device_memory_bytes),
    )


def computing_s(parts: TimeBreakdown) -> float:
    """Return the seconds of an iteration in which the devices of the stage that limits the pipeline compute."""
    forward_and_back_s = parts.gemm_s + parts.attention_s + parts.convolution_s + parts.memory_bound_s
    return forward_and_back_s + parts.recompute_s + parts.optimizer_s


def hidden_s(traffic: Traffic) -> float:
    """Return the seconds of an iteration in which its exchanges go on while its devices compute."""
    return sum(span.times * _hidden_s(span) for span in traffic.spans)


def _hidden_s(span: Span) -> float:
    sent_s = sum(exchange.times * exchange.together_s for exchange in span.exchanges)
    return min(sent_s, max(0.0, span.compute_s - span.begins_s))
