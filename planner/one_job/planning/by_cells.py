"""`plan` by Cells: the best assembly of each, or Crius's tuning of the best Cell."""

from __future__ import annotations

from dataclasses import replace

from estimator.cells.stage_pricing import StagePricing
from planner.one_job.cells.request import (
    best_cell,
    count_assemblies,
    describe_sources,
    find_cells,
    hardware_of,
    read_request,
)
from planner.one_job.explicit.recording import record_plan
from planner.one_job.tuning.crius import tune_cell
from planner.shared.options.choices import SIZES
from planner.shared.options.estimate import EstimateOptions
from planner.shared.options.record import entries
from planner.shared.options.search import Search, SearchOptions
from planner.shared.options.training import CellOptions, JobOptions, SoftwareOptions
from planner.shared.plan import Plan
from profiles.store import ProfileStore

SPACE_ALONE = (*SIZES, "fix", "max", "min", "tool", "allow", "limit", "profile_budget", "free", "no_offload")
"""Options of the space of plans that a search of Cells knows nothing of."""


def plan_by_cells(options: SearchOptions, kind: Search, *, store: ProfileStore | None) -> Plan:
    """Return the best Cell's plan, tuned as Crius does where that is the `kind` of search. Raise InputError for options
    that Cells lack, NothingFits where none fits."""
    for name in (*entries(SoftwareOptions), *SPACE_ALONE):
        if name in options.changed():
            raise options.wrong(name, found=getattr(options, name), expected="none: Cells have no such option")
    same = (
        *entries(JobOptions),
        *entries(CellOptions),
        "devices",
        "micro_batch",
        "zero",
        "sequence_parallel",
        "recompute",
    )
    asked = EstimateOptions(
        options.model,
        cluster=options.cluster,
        schedule=(options.schedule or ("1f1b",))[0],
        micro_batches=options.micro_batches or "best",
        **{name: getattr(options, name) for name in same},
    )
    request = read_request(asked, store=store)
    cells = find_cells(request, store)
    best = best_cell(cells)
    assumptions, size = request.assumptions, count_assemblies(cells)
    if kind == "crius":
        hardware = hardware_of(request, store, best)
        tuned = tune_cell(StagePricing(request.job, hardware), best, request.rules)
        best, size = tuned.cell, size + tuned.priced
        assumptions += (
            f"the best Cell tuned in the halves of its stages' plans that they favour (Crius, section 5.2):"
            f" {tuned.plans} of its {tuned.all_plans} plans, of which {tuned.priced} can be had",
        )
    assumptions = (*assumptions, *describe_sources(request, best, store))
    plan = record_plan(best.setup, best.evaluation, reference=options.model, assumptions=assumptions)
    return replace(plan, provenance=replace(plan.provenance, search_space_size=size))
