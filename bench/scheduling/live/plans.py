"""What the workers of a granted Cell are told: the Cell's own plan, and where they sleep for how long."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from bench.operator_times import operator_times
from bench.scheduling.live.crew import Orders
from estimator.cells.cell import CellEstimate
from estimator.pricing.layer_times import Lookup
from planner.many_jobs.jobs.records import Workload
from planner.many_jobs.scheduling.cell_book import EstimatedCells
from planner.one_job.explicit.recording import record_plan
from planner.one_job.running.program import Program, program_of
from planner.shared.plan_file import plan_to_json


def orders_of_cells(cells: EstimatedCells, *, sleeps: bool) -> Orders:
    """Plans of the very Cells that policies see; their layers compute, or sleep as long as they are priced at."""

    @cache
    def orders(workload: Workload, pool: str, devices: int, stages: int | None) -> Mapping[str, Any]:
        if stages is None:
            best = cells.best(workload, pool, devices)
            assert best is not None, "a grant was checked to fit"
            stages = best.stages
        cell = cells.estimate(workload, pool, devices, stages)
        assert isinstance(cell, CellEstimate), "a grant was checked to fit"
        setup = cell.setup
        plan = record_plan(setup, cell.evaluation, reference=workload.model, assumptions=())
        found: dict[str, Any] = {"plan": plan_to_json(plan), "sleeps": sleeps}
        if sleeps:
            program = program_of(plan, setup.model, where=workload.model)
            device = setup.cluster.group_of(setup.stages[0].slots[0]).device
            times = operator_times(setup.model, setup.cluster, device)
            found["times"] = [
                _times(program, number, times, stage.compute_s) for number, stage in enumerate(plan.stages)
            ]
        return found

    return orders


def _times(program: Program, number: int, times: Lookup, compute_s: float) -> dict[str, tuple[float, float, float]]:
    """(forward, backward, optimizer) seconds of each of the stage's layers, whose passes together take `compute_s`:
    launches of one layer hide behind another, which single ones do not show."""
    stage = program.stages[number]
    found = {}
    for index in stage.layer_indices():
        time = times(program.model.layers[index], program.shard(stage, 0))
        assert time is not None, "its Cell fits"
        found[str(index)] = (time.forward_s, time.backward_s, time.optimizer_s)
    scale = compute_s / sum(forward_s + backward_s for forward_s, backward_s, _ in found.values())
    return {index: (ahead * scale, back * scale, once) for index, (ahead, back, once) in found.items()}
