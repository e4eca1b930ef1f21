"""What `planner.api.estimate` does: the Cells of a model on a cluster, or one explicit plan, as values for JSON."""

from __future__ import annotations

from functools import partial
from typing import Any

from planner.one_job.cells.describe import describe_cells
from planner.one_job.cells.request import (
    best_cell,
    can_be_had,
    describe_sources,
    read_request,
    search_cells,
    why_nothing_fits,
)
from planner.one_job.explicit.dispatch import read_any_request
from planner.one_job.explicit.estimate import describe_estimated, estimate_explicit
from planner.one_job.explicit.evaluation import evaluate_with_store
from planner.one_job.timeline.events import make_timeline
from planner.one_job.timeline.save import save_timeline, timeline_form
from planner.shared.inputs import open_existing
from planner.shared.options.estimate import EstimateOptions
from planner.shared.plan_file import save_plan
from profiles.errors import NothingFits


def estimate_cells(options: EstimateOptions) -> dict[str, Any]:
    """Return all Cells; raise NothingFits, with the same value in it, if none can be had."""
    if options.output is not None:
        expected = "a plan to write, which --tp, --pp, --dp or another degree makes; or `cellplan plan`"
        raise options.wrong("output", found=options.output, expected=expected)
    with open_existing(options.store) as opened:
        request = read_request(options, store=opened)
        cells = search_cells(request, opened)
        possible = can_be_had(cells)
        best = best_cell(cells) if possible else None
        sources = describe_sources(request, best, opened) if best else ()
    recipe = request.job.recipe
    result = {
        "model": request.job.model.name,
        "cluster": request.cluster.text,
        "global_batch": recipe.global_batch,
        "seq_len": recipe.seq_len or None,
        "dtype": recipe.dtype,
        "cells": describe_cells(cells, best=best),
        "assumptions": [*request.assumptions, *sources],
    }
    if not possible:
        raise NothingFits(why_nothing_fits(request, cells), result=result)
    return result


def estimate_plan(options: EstimateOptions) -> dict[str, Any]:
    """Return the estimate of one explicit plan; write the plan and its timeline where the options say, if it fits.
    Raise NothingFits, with the same value in it, if it does not."""
    if options.timeline is not None:
        timeline_form(options.timeline)
    with open_existing(options.store) as opened:
        request = read_any_request(options, store=opened)
        evaluate = partial(evaluate_with_store, store=opened, profiles=options.profiles)
        estimated = estimate_explicit(request, whole=options, evaluate=evaluate)
        result = describe_estimated(estimated)
        if estimated.shortfall is not None:
            message = f"{request.reference} on {estimated.plan.cluster}: the plan does not fit; {estimated.shortfall}"
            raise NothingFits(message, result=result)
        if options.output is not None:
            save_plan(estimated.plan, options.output)
        if options.timeline is not None:
            drawn = make_timeline(
                estimated.plan, where="plan", store=opened, profiles=options.profiles, code=options.user_code
            )
            save_timeline(drawn, options.timeline)
    return result
