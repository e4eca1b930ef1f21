"""`plan`: the exact search, or the Cells; which of the two a request means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

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
from planner.one_job.search.best import Best, Progress, find_best
from planner.one_job.search.request import SearchRequest, read_search
from planner.one_job.tuning.crius import tune_cell
from planner.one_job.tuning.local import Chosen, choose_by_running, run_here
from planner.shared.inputs import open_existing
from planner.shared.options import JobOptions, SearchOptions, options_of, with_defaults
from planner.shared.plan import Plan
from profiles.errors import InputError
from profiles.store import ProfileStore

FOR_CELLS = ("stages", "partition", "formula", "assembly")
"""Options that only Cells have: they make a search that of Cells."""
CELLS_LACK = (
    "fix",
    "max",
    "min",
    "tool",
    "allow",
    "limit",
    "profile_budget",
    "free",
    "software",
    "feature",
    "grad_dtype",
    "vocab_pad",
    "freeze",
    "lora",
    "overlap",
    "moe_capacity",
    "no_offload",
)
"""Options that a search of Cells knows nothing of."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan; with the exact search's request and result, None where the Cells were asked, or `chosen` where candidates
    were run."""

    plan: Plan
    request: SearchRequest | None = None
    best: Best | None = None
    chosen: Chosen | None = None


def plan_model(
    model: str,
    *,
    cluster: str,
    store: Path | None,
    options: SearchOptions,
    progress: Progress | None = None,
    runners_up: int = 0,
    find: Callable[[SearchRequest], Best] | None = None,
) -> Planned:
    """The best plan. InputError for wrong input, NothingFits where there is none. `find` searches otherwise."""
    chosen = with_defaults(SearchOptions, options)
    kind = kind_of_search(chosen, model)
    with open_existing(store) as opened:
        if kind in ("cells", "crius"):
            return Planned(plan=_plan_by_cells(model, kind, cluster=cluster, store=opened, options=chosen))
        request = read_search(model, cluster=cluster, store=opened, options=chosen)
        budget_s = chosen["profile_budget"]
        if budget_s is not None:
            measure = run_here(store, chosen["profiles"] or "torch")
            by_running = choose_by_running(request, budget_s=budget_s, measure=measure, progress=progress)
            return Planned(plan=by_running.plan, request=request, chosen=by_running)
        best = find(request) if find else find_best(request, progress=progress, runners_up=runners_up)
    return Planned(plan=best.plan, request=request, best=best)


def kind_of_search(options: Mapping[str, Any], model: str) -> str:
    """What is named; else exact, or cells where an option or the model asks for them."""
    known = options_of(SearchOptions)
    cells = [name for name in FOR_CELLS if options[name] != known[name][1].default]
    if options["micro_batches"] is not None and not isinstance(options["micro_batches"], int):
        cells.append("micro_batches")
    kind = options["search"]
    if kind == "exact" and cells:
        name = cells[0].replace("_", "-")
        raise InputError(where="plan", key=f"--{name}", found=options[cells[0]], expected="--search cells beside it")
    if kind is None:
        kind = "cells" if cells or ":" in model else "exact"
    return cast(str, kind)


def _plan_by_cells(
    model: str, kind: str, *, cluster: str, store: ProfileStore | None, options: Mapping[str, Any]
) -> Plan:
    known = options_of(SearchOptions)
    for name in CELLS_LACK:
        if options[name] != known[name][1].default:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(where="plan", key=flag, found=options[name], expected="none: Cells have no such option")
    schedule = (options["schedule"] or ("1f1b",))[0]
    given = {name: options[name] for name in options_of(JobOptions) if name in known}
    given |= {
        "schedule": schedule,
        "micro_batches": options["micro_batches"] or "best",
    }
    request = read_request(model, cluster=cluster, store=store, **cast(JobOptions, given))
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
    plan = record_plan(best.setup, best.evaluation, reference=model, assumptions=assumptions)
    return replace(plan, provenance=replace(plan.provenance, search_space_size=size))
