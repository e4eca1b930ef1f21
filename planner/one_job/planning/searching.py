"""`plan`: the exact search, or the Cells; which of the two a request means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from estimator.frontends.load import load_any_model
from models_zoo.layers import TracedLayer
from planner.one_job.explicit.effects import Effect
from planner.one_job.explicit.whole import prices_of
from planner.one_job.planning.preferring import find_preferred
from planner.one_job.planning.whole_training import with_prices
from planner.one_job.search.best import Best, effects_of, find_best
from planner.one_job.search.spaces.request import SearchRequest, read_search
from planner.shared.inputs import open_existing
from planner.shared.options.choices import off_defaults_sentence
from planner.shared.options.search import Search, SearchOptions
from planner.shared.options.training import CellOptions
from planner.shared.plan import Plan
from profiles.records import dataclass
from profiles.store import ProfileStore

if TYPE_CHECKING:
    from planner.one_job.tuning.local import Chosen


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan; with the exact search's request and result, None where the Cells were asked, or `chosen` where candidates
    were run. `effects`: the assumptions that move its figures most."""

    plan: Plan
    request: SearchRequest | None = None
    best: Best | None = None
    chosen: Chosen | None = None
    effects: tuple[Effect, ...] = ()


def plan_model(options: SearchOptions, *, find: Callable[[SearchRequest], Best] | None = None) -> Planned:
    """Return the best plan, of equally fast ones a safe one unless a margin is stated. Raise InputError for wrong
    input, NothingFits where there is none. `find` searches otherwise."""
    kind = kind_of_search(options)
    with open_existing(options.store) as opened:
        if kind != "exact":
            from planner.one_job.planning.by_cells import plan_by_cells

            return Planned(plan=plan_by_cells(options, kind, store=opened))
        request = read_best(options, store=opened)
        budget_s = options.profile_budget
        if budget_s is not None:
            from planner.one_job.tuning.local import choose_by_running, run_here

            measure = run_here(options.store, options.profiles or "torch")
            by_running = choose_by_running(request, budget_s=budget_s, measure=measure, progress=options.say)
            return Planned(plan=by_running.plan, request=request, chosen=by_running)
        if find is not None:
            best = find(request)
        elif options.memory_margin is None:
            best = find_preferred(request, progress=options.say)
        else:
            best = find_best(request, progress=options.say)
        if find is None and options.fine_tunes and options.tool is None:
            from planner.one_job.exporting.runners import say_runners

            said = (*best.plan.assumptions, say_runners(best.plan, options.user_code))
            best = replace(best, plan=replace(best.plan, assumptions=said))
        effects = () if find is not None else effects_of(best)
    return Planned(plan=best.plan, request=request, best=best, effects=effects)


def read_best(options: SearchOptions, *, store: ProfileStore | None) -> SearchRequest:
    """Return the exact search behind `options`. Raise InputError as `read_search`, and for a traced module."""
    model = load_any_model(options.model, options.user_code)
    if options.search == "exact" and any(isinstance(layer, TracedLayer) for layer in model.layers):
        raise options.wrong("search", found="exact", expected="cells: a traced module is estimated by its Cells")
    request = read_search(options, store=store, objective=options.objective, limit=options.limit, model=model)
    request = with_prices(request, prices_of(options))
    return replace(request, assumptions=(*off_defaults_sentence(options), *request.assumptions))


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
