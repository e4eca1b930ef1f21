"""What the workers of a granted Cell are told: the Cell's own plan, and where they sleep for how long."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from bench.scheduling.live.crew import Orders
from estimator.cells.cell import CellEstimate
from estimator.cells.stage_options import Machine
from planner.many_jobs.jobs.records import Workload
from planner.many_jobs.scheduling.cell_book import EstimatedCells
from planner.one_job.cells.planning import make_plan
from planner.one_job.running.program import Program, program_of
from planner.shared.plan_file import plan_to_json
from profiles.vocabulary import Infeasible


def orders_of_cells(cells: EstimatedCells, *, sleeps: bool) -> Orders:
    """Plans of the very Cells that policies see; their layers compute, or sleep as long as they are priced at."""

    @cache
    def orders(workload: Workload, pool: str, devices: int, stages: int | None) -> Mapping[str, Any]:
        if stages is None:
            best = cells.best(workload, pool, devices)
            assert best is not None, "a grant was checked to fit"
            stages = best.stages
        job, machine, cell = cells.estimate(workload, pool, devices, stages)
        assert isinstance(cell, CellEstimate), "a grant was checked to fit"
        plan = make_plan(
            job, machine, cell, reference=workload.model, search_space_size=cell.assemblies, assumptions=()
        )
        found: dict[str, Any] = {"plan": plan_to_json(plan), "sleeps": sleeps}
        if sleeps:
            program = program_of(plan, job.model, where=workload.model)
            found["times"] = [_times(program, number, machine) for number in range(len(program.stages))]
        return found

    return orders


def _times(program: Program, number: int, machine: Machine) -> dict[str, tuple[float, float, float]]:
    """(forward, backward, optimizer) seconds of each of the stage's layers."""
    stage = program.stages[number]
    found = {}
    for index in stage.layer_indices():
        cost = machine.costs.cost(program.model.layers[index], program.shard(stage, 0))
        assert not isinstance(cost, Infeasible), "its Cell fits"
        found[str(index)] = (cost.time.forward_s, cost.time.backward_s, cost.time.optimizer_s)
    return found
