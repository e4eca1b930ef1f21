"""`plan`: the exact search, or the Cells; which of the two a request means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from estimator.cells.stage_pricing import StagePricing
from estimator.frontends.load import load_any_model
from models_zoo.layers import TracedLayer
from planner.one_job.cells.request import (
    best_cell,
    count_assemblies,
    describe_sources,
    find_cells,
    hardware_of,
    read_request,
)
from planner.one_job.explicit.recording import record_plan
from planner.one_job.search.best import Best, find_best
from planner.one_job.search.spaces.request import SearchRequest, read_search
from planner.one_job.tuning.crius import tune_cell
from planner.one_job.tuning.local import Chosen, choose_by_running, run_here
from planner.shared.inputs import open_existing
from planner.shared.options.estimate import EstimateOptions
from planner.shared.options.record import entries
from planner.shared.options.search import Search, SearchOptions
from planner.shared.options.training import CellOptions, JobOptions, SoftwareOptions
from planner.shared.plan import Plan
from profiles.store import ProfileStore

SPACE_ALONE = ("fix", "max", "min", "tool", "allow", "limit", "profile_budget", "free", "no_offload")
"""Options of the space of plans that a search of Cells knows nothing of."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan; with the exact search's request and result, None where the Cells were asked, or `chosen` where candidates
    were run."""

    plan: Plan
    request: SearchRequest | None = None
    best: Best | None = None
    chosen: Chosen | None = None


def plan_model(
    options: SearchOptions, *, runners_up: int = 0, find: Callable[[SearchRequest], Best] | None = None
) -> Planned:
    """Return the best plan. Raise InputError for wrong input, NothingFits where there is none. `find` searches
    otherwise."""
    kind = kind_of_search(options)
    with open_existing(options.store) as opened:
        if kind != "exact":
            return Planned(plan=_plan_by_cells(options, kind, store=opened))
        request = read_best(options, store=opened)
        budget_s = options.profile_budget
        if budget_s is not None:
            measure = run_here(options.store, options.profiles or "torch")
            by_running = choose_by_running(request, budget_s=budget_s, measure=measure, progress=options.say)
            return Planned(plan=by_running.plan, request=request, chosen=by_running)
        best = find(request) if find else find_best(request, progress=options.say, runners_up=runners_up)
    return Planned(plan=best.plan, request=request, best=best)


def read_best(options: SearchOptions, *, store: ProfileStore | None) -> SearchRequest:
    """Return the exact search behind `options`. Raise InputError as `read_search`, and for a traced module."""
    model = load_any_model(options.model)
    if options.search == "exact" and any(isinstance(layer, TracedLayer) for layer in model.layers):
        raise options.wrong("search", found="exact", expected="cells: a traced module is estimated by its Cells")
    return read_search(options, store=store, objective=options.objective, limit=options.limit, model=model)


def kind_of_search(options: SearchOptions) -> Search:
    """Return what is named; else exact, or cells where an option or the model asks for them."""
    cells = list(options.part(CellOptions).changed())
    if isinstance(options.micro_batches, str):
        cells.append("micro_batches")
    if options.search == "exact" and cells:
        raise options.wrong(cells[0], found=getattr(options, cells[0]), expected="--search cells beside it")
    if options.search is None:
        return "cells" if cells or ":" in options.model else "exact"
    return options.search


def _plan_by_cells(options: SearchOptions, kind: Search, *, store: ProfileStore | None) -> Plan:
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
