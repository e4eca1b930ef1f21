"""What `planner.api.estimate` does: the Cells of a model on a cluster, or one explicit plan, as values for JSON."""

from __future__ import annotations

from functools import partial
from pathlib import Path
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
from planner.one_job.explicit.dispatch import options_of_cells, read_any_request, whole_training
from planner.one_job.explicit.estimate import describe_estimated, estimate_explicit
from planner.one_job.explicit.evaluation import evaluate_with_store
from planner.shared.inputs import open_existing
from planner.shared.options import EstimateOptions
from planner.shared.plan_file import save_plan
from profiles.errors import InputError, NothingFits


def estimate_cells(
    model: str | None, *, cluster: str | None, output: Path | None, store: Path | None, options: EstimateOptions
) -> dict[str, Any]:
    """All Cells; NothingFits, with the same value in it, if none can be had."""
    if model is None or cluster is None:
        found = "no model" if model is None else "no cluster"
        raise InputError(where="estimate", found=found, expected="a model and a cluster, or a plan file")
    if output is not None:
        expected = "a plan to write, which --tp, --pp, --dp or another degree makes; or `cellplan plan`"
        raise InputError(where="estimate", key="--output", found=output, expected=expected)
    with open_existing(store) as opened:
        request = read_request(model, cluster=cluster, store=opened, **options_of_cells(options))
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


def estimate_plan(
    model: str | None,
    *,
    cluster: str | None,
    plan: Path | None,
    output: Path | None,
    store: Path | None,
    options: EstimateOptions,
) -> dict[str, Any]:
    """One explicit plan, written to `output` if it fits; NothingFits, with the same value in it, if it does not."""
    with open_existing(store) as opened:
        request = read_any_request(model, cluster=cluster, plan=plan, store=opened, options=options)
        measured = partial(evaluate_with_store, store=opened, profiles=options.get("profiles"))
        found = estimate_explicit(request, whole=whole_training(options), evaluate=measured)
    result = describe_estimated(found)
    if found.shortfall is not None:
        message = f"{request.reference} on {found.plan.cluster}: the plan does not fit; {found.shortfall}"
        raise NothingFits(message, result=result)
    if output is not None:
        save_plan(found.plan, output)
    return result
